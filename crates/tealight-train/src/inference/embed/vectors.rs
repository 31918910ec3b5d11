//! The vectors of texts, and the nearest neighbours of each.

use candle_core::{Device, Tensor};

use super::settings::to_unit_length;
use crate::error::Result;
use crate::inference::best;

/// The number of vectors whose cosines with all others are computed at once.
const COSINES_AT_ONCE: usize = 256;

/// The vectors of several texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    /// `(n, dim)`: one row for each text.
    pub(super) values: Vec<f32>,
    pub(super) dim: usize,
    /// Of each text: whether it was longer than the model reads.
    pub(super) are_truncated: Vec<bool>,
    /// Of each text: the tokens that the model read, special ones included.
    pub(super) lens: Vec<usize>,
}

/// A vector that is near another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// Its row.
    pub index: usize,
    /// The cosine of the angle between the two, in −1 to 1; 0 for a vector of zeros.
    pub cosine: f32,
}

impl Embeddings {
    /// The number of vectors.
    pub fn len(&self) -> usize {
        self.rows().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The length of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// `(n, dim)`: one row after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The vectors in the order of their texts, each of [`Self::dim`] numbers.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dim.max(1))
    }

    /// The number of texts that were longer than the model reads, and lost tokens.
    pub fn n_truncated(&self) -> usize {
        self.are_truncated.iter().filter(|&&is_truncated| is_truncated).count()
    }

    /// Of each text, whether it was longer than the model reads.
    pub(crate) fn are_truncated(&self) -> &[bool] {
        &self.are_truncated
    }

    /// The number of tokens that the model read, special ones included.
    pub fn n_tokens(&self) -> usize {
        self.lens.iter().sum()
    }

    /// The same in groups of so many texts, whose sum is that of all texts.
    pub fn divided(&self, lens: impl Iterator<Item = usize>) -> Vec<Self> {
        let (mut first, dim) = (0, self.dim);
        let group = |len: usize| {
            let texts = first..first + len;
            first += len;
            Self {
                values: self.values[texts.start * dim..texts.end * dim].to_vec(),
                dim,
                are_truncated: self.are_truncated[texts.clone()].to_vec(),
                lens: self.lens[texts].to_vec(),
            }
        };
        lens.map(group).collect()
    }

    /// For each of these vectors, the `k` nearest of `others`, the nearest first; of equal ones the earlier first.
    ///
    /// # Errors
    /// If the vectors have another length.
    pub fn nearest(&self, others: &Self, k: usize) -> Result<Vec<Vec<Neighbour>>> {
        let mut nearest = Vec::with_capacity(self.len());
        self.each_cosines(others, |_, cosines| nearest.push(highest(cosines, k, |_| true)))?;
        Ok(nearest)
    }

    /// Calls `each` with every row and its cosines with all `others`.
    pub(super) fn each_cosines(
        &self,
        others: &Self,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let [own, others] = [self, others].map(Self::unit_rows);
        let (own, others) = (own?, others?.t()?);
        for start in (0..self.len()).step_by(COSINES_AT_ONCE) {
            let rows = own.narrow(0, start, COSINES_AT_ONCE.min(self.len() - start))?;
            let cosines: Vec<Vec<f32>> = rows.matmul(&others)?.to_vec2()?;
            cosines.iter().enumerate().for_each(|(at, row)| each(start + at, row));
        }
        Ok(())
    }

    /// The cosine of each of these vectors with the only one of `other`; 0 for a vector of zeros.
    ///
    /// # Errors
    /// If that vector has another length.
    pub fn cosines(&self, other: &Self) -> Result<Vec<f32>> {
        let cosines = self.unit_rows()?.matmul(&other.unit_rows()?.t()?)?;
        let cosines: Vec<f32> = cosines.flatten_all()?.to_vec1()?;
        Ok(cosines.into_iter().map(|cosine| cosine.clamp(-1., 1.)).collect())
    }

    /// `(n, dim)` on the CPU, each row of length 1.
    fn unit_rows(&self) -> Result<Tensor> {
        let mut values = self.values.clone();
        values.chunks_exact_mut(self.dim.max(1)).for_each(to_unit_length);
        Ok(Tensor::from_vec(values, (self.len(), self.dim), &Device::Cpu)?)
    }
}

/// The places of the `k` highest values among those that `keeps` accepts, the highest first.
pub(super) fn highest(values: &[f32], k: usize, keeps: impl Fn(usize) -> bool) -> Vec<Neighbour> {
    let places = (0..values.len() as u32).filter(|&place| keeps(place as usize));
    let places: Vec<u32> = places.collect();
    // −0 is equal to 0.
    let cosine = |place: u32| f64::from(values[place as usize]) + 0.;
    let places = best(&places, k, cosine).into_iter().map(|place| place as usize);
    places.map(|index| Neighbour { index, cosine: values[index].clamp(-1., 1.) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_are_those_with_the_highest_cosine() {
        let of = |values: &[f32]| Embeddings {
            values: values.to_vec(),
            dim: 2,
            are_truncated: Vec::new(),
            lens: Vec::new(),
        };
        let others = of(&[0., 2., 5., 0., -1., 0., 3., 3., 7., 0.]);
        let found = of(&[1., 0., 0., -4.]).nearest(&others, 3).unwrap();
        let places: Vec<Vec<usize>> =
            found.iter().map(|row| row.iter().map(|one| one.index).collect()).collect();
        assert_eq!(places, [[1, 4, 3], [1, 2, 4]]);
        assert!((found[0][2].cosine - 0.5_f32.sqrt()).abs() < 1e-6, "{found:?}");
        let cosines = others.cosines(&of(&[0., 3.])).unwrap();
        assert!((cosines[3] - 0.5_f32.sqrt()).abs() < 1e-6 && cosines[0] == 1., "{cosines:?}");
        assert_eq!(of(&[1., 0.]).nearest(&others, 11).unwrap()[0].len(), 5);
        assert!(of(&[]).nearest(&others, 3).unwrap().is_empty());
    }
}
