//! Batches of texts: which texts share a forward pass, by their lengths.

use std::cmp::Reverse;

/// The most positions in one forward pass, unless one text alone has more.
pub(super) const MAX_POSITIONS: usize = 4096;
/// The padding that a batch may have in any case, in positions: about what a separate forward pass costs.
const FREE_PADDING: usize = 128;
/// Beyond that, the largest share of padding in a batch: one position of this many.
const PADDING_SHARE: usize = 16;

/// Which texts share a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batching {
    /// Texts of similar lengths, for models whose result does not depend on padding.
    Padded,
    /// Texts of one length, because padding changes the result of some kinds of attention.
    OneLength {
        /// The most positions in a batch, unless one text alone has more.
        max_positions: usize,
    },
    /// None, because a model may mix the texts of a batch: one that pads each text to the length that its attention
    /// requires, for example.
    OneByOne,
}

impl Batching {
    /// The indices of the texts in each batch, the longest text first; `lens` has the length of each text.
    pub(crate) fn batches(self, lens: &[usize]) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..lens.len()).collect();
        order.sort_by_key(|&at| Reverse(lens[at]));
        match self {
            Self::Padded => padded(&order, lens),
            Self::OneLength { max_positions } => order
                .chunk_by(|&a, &b| lens[a] == lens[b])
                .flat_map(|same| same.chunks((max_positions / lens[same[0]].max(1)).max(1)))
                .map(<[usize]>::to_vec)
                .collect(),
            Self::OneByOne => order.into_iter().map(|at| vec![at]).collect(),
        }
    }
}

/// Batches of texts in `order`, the longest first, that are padded to their first: at most [`MAX_POSITIONS`] positions,
/// unless one text has more, and so much padding that another forward pass would not be faster.
fn padded(order: &[usize], lens: &[usize]) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let (mut batch, mut padding): (Vec<usize>, usize) = (Vec::new(), 0);
    for &at in order {
        let longest = lens[*batch.first().unwrap_or(&at)];
        let positions = (batch.len() + 1) * longest;
        padding += longest - lens[at];
        let is_full = positions > MAX_POSITIONS && !batch.is_empty();
        if is_full || padding > FREE_PADDING.max(positions / PADDING_SHARE) {
            batches.push(std::mem::take(&mut batch));
            padding = 0;
        }
        batch.push(at);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_batches_hold_all_texts_with_little_padding() {
        let lens: Vec<usize> = (0..1009).map(|n| 3 + n % 7 + n / 11).collect();
        let batches = Batching::Padded.batches(&lens);
        let mut all = batches.concat();
        assert!(all.is_sorted_by_key(|&at| Reverse(lens[at])));
        all.sort_unstable();
        assert_eq!(all, (0..1009).collect::<Vec<_>>());
        for batch in &batches {
            let longest = lens[batch[0]];
            let positions = batch.len() * longest;
            let padding: usize = batch.iter().map(|&at| longest - lens[at]).sum();
            assert!(positions <= MAX_POSITIONS, "{batch:?}");
            assert!(padding <= FREE_PADDING.max(positions / PADDING_SHARE), "{batch:?}: {padding}");
        }
        assert!(batches.len() < 40, "{}", batches.len());
    }

    #[test]
    fn a_text_that_is_longer_than_a_batch_is_evaluated_alone() {
        let batches = Batching::Padded.batches(&[9000, 9000, 4096, 3]);
        assert_eq!(batches, [[0], [1], [2], [3]]);
        assert!(Batching::Padded.batches(&[]).is_empty());
    }

    #[test]
    fn texts_of_one_length_go_together_as_far_as_they_fit() {
        let one_length = Batching::OneLength { max_positions: MAX_POSITIONS };
        let batches = one_length.batches(&[5, 2000, 7, 2000, 9000, 5, 2000]);
        assert_eq!(batches, [vec![4], vec![1, 3], vec![6], vec![2], vec![0, 5]]);
    }

    #[test]
    fn no_texts_go_together_where_a_model_may_mix_them() {
        assert_eq!(Batching::OneByOne.batches(&[5, 7, 5]), [[1], [0], [2]]);
    }
}
