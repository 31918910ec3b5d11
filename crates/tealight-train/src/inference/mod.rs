//! Inference: what models answer, each by a file or folder that takes a built model and what reads its inputs.
//!
//! Tasks use it for their metrics, samples and reports, and [`pipelines`](crate::pipelines) for the models that users
//! have trained.

pub mod attention_map;
pub(crate) mod batches;
pub mod continuation;
pub mod decision;
pub mod embed;
pub mod fill_mask;
pub mod forecast;
pub mod image_classifier;
pub mod labels;
pub mod readers;
pub mod symbols;
pub mod tagger;
pub mod text_classifier;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

/// The most probabilities in memory at a time, of all tokens at some positions: 16 MiB.
const MAX_PROBABILITIES: usize = 1 << 21;

/// `logits (n, n_classes)` → `n` rows of probabilities, in f64.
pub(crate) fn probabilities(logits: &Tensor) -> Result<Vec<Vec<f64>>> {
    let mut rows = values(logits)?;
    for row in &mut rows {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for x in &mut *row {
            *x = (*x - largest).exp();
        }
        let sum: f64 = row.iter().sum();
        for x in &mut *row {
            *x /= sum;
        }
    }
    Ok(rows)
}

/// `logits (n, n_outputs)` as rows of numbers in f64.
pub(crate) fn values(logits: &Tensor) -> Result<Vec<Vec<f64>>> {
    // Moved to the CPU first: Metal has no f64.
    Ok(logits.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2()?)
}

/// The index of the largest score; the first of equals.
pub(crate) fn likeliest(scores: &[f64]) -> usize {
    (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0)
}

/// Checks numbers that a model computed, before anything is chosen by them or shown.
///
/// # Errors
/// [`Error::NotFinite`] if one of them is NaN or infinite.
pub(crate) fn check_finite<'a, T: Copy + Into<f64> + 'a>(
    numbers: impl IntoIterator<Item = &'a T>,
) -> Result<()> {
    let is_finite = |number: &T| -> bool { Into::<f64>::into(*number).is_finite() };
    if numbers.into_iter().all(is_finite) { Ok(()) } else { Err(Error::NotFinite) }
}

/// What a model wrote for a report or a log; nothing if its outputs are not finite, which the loss beside it tells.
pub(crate) fn or_default_if_not_finite<T: Default>(written: Result<T>) -> Result<T> {
    match written {
        Err(Error::NotFinite) => Ok(T::default()),
        written => written,
    }
}

/// The `k` ids with the largest scores, in descending order; equal scores keep the order of `ids`. Sorts
/// only the selected ones, because vocabularies are large.
pub(crate) fn best(ids: &[u32], k: usize, score: impl Fn(u32) -> f64) -> Vec<u32> {
    let mut places: Vec<usize> = (0..ids.len()).collect();
    let order = |&a: &usize, &b: &usize| score(ids[b]).total_cmp(&score(ids[a])).then(a.cmp(&b));
    if k < places.len() {
        places.select_nth_unstable_by(k, order);
        places.truncate(k);
    }
    places.sort_unstable_by(order);
    places.into_iter().map(|place| ids[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals_is_the_likeliest() {
        assert_eq!(likeliest(&[0.2, 0.4, 0.4]), 1);
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        assert!(check_finite(&[0., f64::MAX, f64::MIN]).is_ok());
        assert!(check_finite(&[0_f32; 0]).is_ok());
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(matches!(check_finite(&[0., number]), Err(Error::NotFinite)), "{number}");
        }
    }

    #[test]
    fn the_best_are_those_of_a_stable_sort() {
        let score = |id: u32| f64::from(id * id % 7);
        let ids: Vec<u32> = (0..101).map(|n| n * 37 % 101).collect();
        let mut sorted = ids.clone();
        sorted.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        for k in [0, 1, 5, 37, 100, 101, 211] {
            assert_eq!(best(&ids, k, score), sorted[..k.min(ids.len())], "{k}");
        }
    }
}
