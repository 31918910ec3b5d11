//! Beginnings of held-out texts, continued by the model.

use tealight_model::generation::{Sampling, StopRules, Strategy, generate};
use tealight_model::models::causal_lm::{CachedPredictor, CausalLm as Model};
use tealight_ops::rng::{Purpose, Stream};

use super::CausalLm;
use crate::data::text::tokenizer::Specials;
use crate::error::{Error, Result};
use crate::inference::continuation::{Continuer, Vocabulary};
use crate::inference::or_default_if_not_finite;
use crate::task::sample::Sample;
use crate::task::text::Texts;

/// Texts that are continued.
const N_PROMPTS: u64 = 2;
/// Tokens of a beginning, at most half of what the model reads.
const PROMPT_TOKENS: usize = 24;
/// Tokens of a continuation.
const N_TOKENS: usize = 40;

/// The beginnings of the first held-out texts with continuations that are drawn with a fixed seed.
pub(super) fn samples(task: &CausalLm, model: &Model) -> Result<Vec<Sample>> {
    let Texts { tokenizer, device, n_validation, .. } = &task.texts;
    let seq_len = task.config.seq_len;
    let len = PROMPT_TOKENS.min(seq_len / 2);
    let texts = (0..N_PROMPTS.min(*n_validation)).map(|index| task.texts.held_out(index).ids);
    let prompts: Vec<Vec<u32>> = texts.filter_map(|ids| Some(ids.get(..len)?.to_vec())).collect();
    if len == 0 || prompts.is_empty() {
        return Ok(Vec::new());
    }
    let continuer = Continuer { model, tokenizer, device, vocabulary: Vocabulary::Text };
    let suppressed = continuer.suppressed_tokens();
    let mut predictor = CachedPredictor::new(model, &suppressed, device)?;
    let stop = Vec::from_iter(tokenizer.special().end);
    let ends = StopRules { stop: &stop, max_len: N_TOKENS.min(seq_len - len) };
    let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
    let strategy = Strategy::Sample { stream: Stream::new(0, Purpose::Sampling), sampling };
    let written = generate(&mut predictor, &prompts, &ends, &strategy).map_err(Error::from);
    let sample = |(prompt, ids): (&Vec<u32>, Vec<u32>)| {
        let input = tokenizer.decode(prompt, Specials::Skip)?;
        let whole = tokenizer.decode(&[&prompt[..], &ids].concat(), Specials::Skip)?;
        // Pieces of a word may be joined differently once the word is complete.
        let text = whole.strip_prefix(&input).map_or_else(|| format!(" … {whole}"), str::to_owned);
        Ok(Sample { input, text: Some(text), ..Sample::default() })
    };
    let written =
        or_default_if_not_finite(written)?.into_iter().flatten().map(|sequence| sequence.ids);
    prompts.iter().zip(written).map(sample).collect()
}
