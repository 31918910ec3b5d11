//! Held-out texts with masks, filled in by the model.

use tealight_model::Mode;
use tealight_model::embedding::Input;
use tealight_model::models::masked_lm::MaskedLm as Model;
use tealight_ops::device::tensor_of;

use super::MaskedLm;
use crate::data::text::sequences::Sequence;
use crate::data::text::tokenizer::Specials;
use crate::error::Result;
use crate::inference::probabilities;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};

/// Tokens of a text that are shown.
const N_SHOWN: usize = 32;
/// Masks of a text.
const N_MASKS: usize = 2;

/// The first held-out texts with fixed tokens masked.
pub(super) fn samples(task: &MaskedLm, model: &Model) -> Result<Vec<Sample>> {
    let n = task.texts.n_validation.min(N_SAMPLES as u64);
    let samples = (0..n).map(|index| sample(task, model, task.texts.held_out(index)));
    samples.filter_map(Result::transpose).collect()
}

/// `None` for a text in which nothing can be masked.
fn sample(task: &MaskedLm, model: &Model, mut sequence: Sequence) -> Result<Option<Sample>> {
    let tokenizer = &task.texts.tokenizer;
    let places = masked_places(&sequence.ids, |id| tokenizer.is_special(id));
    let (Some(mask), false) = (tokenizer.special().mask, places.is_empty()) else {
        return Ok(None);
    };
    let text = |id: u32| tokenizer.decode(&[id], Specials::Keep);
    let truth = places.iter().map(|&at| text(sequence.ids[at])).collect::<Result<_>>()?;
    for &at in &places {
        sequence.ids[at] = mask;
    }
    let is_shown = |id: &u32| *id == mask || !tokenizer.is_special(*id);
    let shown: Vec<u32> = sequence.ids.iter().take(N_SHOWN).copied().filter(is_shown).collect();
    let rows = task.rows(&[sequence]);
    let device = &task.texts.device;
    let ids = tensor_of(rows.ids.clone(), (1, rows.seq_len), device)?;
    let n_places = places.len();
    let places = tensor_of(places.iter().map(|&at| at as u32).collect(), n_places, device)?;
    let (input, mask) = (Input::tokens(&ids), task.texts.mask(&rows)?);
    let hidden = model.hidden_at(&input, &mask, &places, Mode::Eval)?; // (n_places, d_model)
    let scores = probabilities(&model.logits(&hidden)?)?; // (n_places, vocab_size)
    let candidates = |scores: Vec<f64>| {
        let likeliest = likeliest((0..).map(|id: u32| id.to_string()).zip(scores)).into_iter();
        let named = likeliest.map(|mut candidate| {
            candidate.text = text(candidate.text.parse().unwrap_or(u32::MAX))?;
            Ok(candidate)
        });
        named.collect::<Result<_>>()
    };
    Ok(Some(Sample {
        input: tokenizer.decode(&shown, Specials::Keep)?,
        truth,
        candidates: scores.into_iter().map(candidates).collect::<Result<_>>()?,
        ..Sample::default()
    }))
}

/// Up to two of the shown tokens, a third and two thirds of the way through those that are not special.
fn masked_places(ids: &[u32], is_special: impl Fn(u32) -> bool) -> Vec<usize> {
    let shown = &ids[..ids.len().min(N_SHOWN)];
    let ordinary: Vec<usize> = (0..shown.len()).filter(|&at| !is_special(shown[at])).collect();
    let n = ordinary.len();
    let mut places: Vec<usize> =
        (1..=N_MASKS).filter_map(|i| ordinary.get(i * n / (N_MASKS + 1)).copied()).collect();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_tokens_are_masked_and_they_differ() {
        let is_special = |id: u32| id < 5;
        assert_eq!(masked_places(&[2, 11, 12, 13, 14, 15, 16, 3], is_special), [3, 5]);
        assert_eq!(masked_places(&[2, 11, 3], is_special), [1]);
        assert_eq!(masked_places(&[2, 3], is_special), [0; 0]);
        assert!(masked_places(&[9; 500], is_special).iter().all(|&at| at < N_SHOWN));
    }
}
