//! Hard negatives: for a pair of texts, those of other texts that are near the first and no answer to it (Karpukhin et al.
//! 2020, <https://arxiv.org/abs/2004.04906>, §3.2).

use std::collections::BTreeMap;

use super::vectors::{Embeddings, Neighbour, highest};
use crate::error::Result;

/// Which of the nearest texts are negatives.
#[derive(Clone, Copy, Debug)]
pub struct Mining {
    /// The most negatives of a pair.
    pub n: usize,
    /// How far the cosine of a negative is below that of the positive, at least: nearer ones may be answers, too.
    pub margin: f32,
    /// The highest cosine of a negative.
    pub max_cosine: f32,
    /// How many of the nearest are left out.
    pub skip: usize,
    /// How many of the nearest are looked at.
    pub depth: usize,
}

impl Mining {
    /// The negatives of each of `pairs`, which are rows of `anchors` and of `texts`, the nearest first; `answers` are the texts
    /// that answer an anchor, its positives included.
    ///
    /// # Errors
    /// If the vectors of anchors and texts differ in length.
    pub fn negatives<A: IntoIterator<Item = usize>>(
        &self,
        [anchors, texts]: [&Embeddings; 2],
        pairs: &[(usize, usize)],
        answers: impl Fn(usize) -> A,
    ) -> Result<Vec<Vec<Neighbour>>> {
        let mut of_anchor: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, (anchor, _)) in pairs.iter().enumerate() {
            of_anchor.entry(*anchor).or_default().push(place);
        }
        let mut mined = vec![Vec::new(); pairs.len()];
        let mut is_answer = vec![false; texts.len()];
        anchors.each_cosines(texts, |anchor, cosines| {
            answers(anchor).into_iter().for_each(|text| is_answer[text] = true);
            let nearest = highest(cosines, self.depth, |text| !is_answer[text]);
            for &place in of_anchor.get(&anchor).into_iter().flatten() {
                let highest = (cosines[pairs[place].1] - self.margin).min(self.max_cosine);
                let looked_at = nearest.iter().skip(self.skip);
                let below = looked_at.filter(|other| other.cosine <= highest);
                mined[place] = below.take(self.n).copied().collect();
            }
            answers(anchor).into_iter().for_each(|text| is_answer[text] = false);
        })?;
        Ok(mined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negatives_are_near_and_below_the_positive_and_no_answers() {
        let of = |angles: &[f32]| Embeddings {
            values: angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect(),
            dim: 2,
            are_truncated: vec![false; angles.len()],
            lens: vec![1; angles.len()],
        };
        // The positive of the first pair is text 1; text 0 is nearer, and text 4 is an answer, too.
        let (anchors, texts) = (of(&[0., 3.]), of(&[0.1, 0.4, 0.5, 0.9, 0.7, 2.]));
        let answers = |anchor: usize| [vec![1, 4], vec![5]][anchor].clone();
        let mining = Mining { n: 2, margin: 0., max_cosine: 1., skip: 0, depth: 10 };
        let mined = |mining: Mining| -> Vec<Vec<usize>> {
            let pairs = [(0, 1), (1, 5)];
            let all = mining.negatives([&anchors, &texts], &pairs, answers).unwrap();
            all.iter().map(|of| of.iter().map(|one| one.index).collect()).collect()
        };
        assert_eq!(mined(mining), [[2, 3].to_vec(), [3, 4].to_vec()]);
        assert_eq!(mined(Mining { margin: 0.1, ..mining })[0], [3, 5]);
        assert_eq!(mined(Mining { max_cosine: 0., ..mining })[0], [5]);
        assert_eq!(mined(Mining { skip: 2, ..mining })[0], [3, 5]);
        assert_eq!(mined(Mining { depth: 2, ..mining })[0], [2]);
        assert_eq!(mined(Mining { n: 1, ..mining })[0], [2]);
    }
}
