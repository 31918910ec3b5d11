//! Autoregressive generation: greedy decoding, sampling and beam search.
//!
//! ```text
//! sampling   P(y_t = k) ∝ exp x_k, over the tokens that [`Sampling`] keeps
//! beams      the n most probable prefixes are extended; a finished sequence leaves the beam, which
//!            becomes narrower                                               Sutskever et al. 2014, §3.2
//! score      log P(y | x) / lp(y),   lp(y) = ((5 + |y|) / 6)^α              Wu et al. 2016, eq. (14)
//! ```
//!
//! Sutskever: <https://arxiv.org/abs/1409.3215>. Wu: <https://arxiv.org/abs/1609.08144>, whose search
//! also prunes by score and rewards coverage; ours does neither. |y| is the number of generated tokens,
//! including the end token. With one beam, the search is greedy decoding, whatever α.

mod beams;
mod filters;

use std::ops::ControlFlow;

use candle_core::{DType, Device, Result, Tensor, bail};
use tealight_ops::rng::Stream;

pub use filters::Sampling;
use filters::log_probabilities;

/// Why no sequence was generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// A logit is NaN or +∞, or all are −∞: there is no next token to choose.
    #[error("the model's logits are not finite, so no next token can be chosen")]
    NotFinite,
    /// A tensor operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// What was generated, or a [`GenerationError`].
pub type GenerationResult<T> = std::result::Result<T, GenerationError>;

/// A model with its decoding state, for a batch of sequences.
pub trait Predictor {
    /// Reads the next tokens, equally many of every row, and returns the logits of the token after the
    /// last: `vocab_size` numbers per row, −∞ for tokens that must not be generated.
    fn next(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f64>>>;

    /// Replaces the state of row i by that of row `rows[i]`.
    fn select(&mut self, rows: &[u32]) -> Result<()>;
}

/// When a sequence ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRules<'a> {
    /// The tokens that end a sequence; they are not part of it.
    pub stop: &'a [u32],
    /// The maximal number of generated tokens, including the end token.
    pub max_len: usize,
}

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strategy {
    /// The most probable token.
    Greedy,
    /// A random token.
    Sample {
        /// Row i draws its t-th token from fork i, at index t.
        stream: Stream,
        /// The distribution to sample from.
        sampling: Sampling,
    },
    /// Beam search.
    Beams {
        /// Number of beams, at least one.
        n_beams: usize,
        /// α: 0 compares probabilities, which favours short sequences; 1 nearly compares means per token.
        length_penalty: f64,
    },
}

/// A generated sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// The tokens, without the prompt and the end token.
    pub ids: Vec<u32>,
    /// The model's log P of the tokens and, if generated, the end token, regardless of sampling settings.
    pub log_probability: f64,
    /// The score by which beams are ranked; the log probability for other strategies.
    pub score: f64,
    /// Whether an end token or the caller ended the sequence, rather than the maximal length.
    pub has_ended: bool,
}

/// Continues the `prompts`, which must be equally long and not empty: each by one sequence, or by
/// `n_beams` sequences, best first.
pub fn generate(
    predictor: &mut dyn Predictor,
    prompts: &[Vec<u32>],
    ends: &StopRules<'_>,
    strategy: &Strategy,
) -> GenerationResult<Vec<Vec<Sequence>>> {
    stream(predictor, prompts, ends, strategy, &mut |_, _| ControlFlow::Continue(()))
}

/// As [`generate`], and calls `written(row, token)` with every token as soon as it is chosen, except for
/// end tokens. `ControlFlow::Break` ends the row. Beam search does not call it.
pub fn stream(
    predictor: &mut dyn Predictor,
    prompts: &[Vec<u32>],
    ends: &StopRules<'_>,
    strategy: &Strategy,
    written: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
) -> GenerationResult<Vec<Vec<Sequence>>> {
    check_prompts(prompts, ends)?;
    match *strategy {
        Strategy::Greedy => {
            choose(predictor, prompts, ends, |_, _, logits, _| likeliest(logits), written)
        }
        Strategy::Sample { stream, sampling } => {
            let draw = |row: usize, index: usize, logits: &[f64], read: &[u32]| {
                let weights = sampling.weights(logits, read);
                stream.fork(row as u64).categorical(index as u64, &weights)
            };
            choose(predictor, prompts, ends, draw, written)
        }
        Strategy::Beams { n_beams, length_penalty } => {
            beams::search(predictor, prompts, ends, n_beams, length_penalty)
        }
    }
}

fn check_prompts(prompts: &[Vec<u32>], ends: &StopRules<'_>) -> Result<()> {
    let len = prompts.first().map_or(0, Vec::len);
    let (n_rows, max_len) = (prompts.len(), ends.max_len);
    if len == 0 || max_len == 0 {
        bail!(
            "nothing to generate: {n_rows} prompts of {len} tokens, and at most {max_len} new tokens"
        );
    }
    if let Some(other) = prompts.iter().find(|prompt| prompt.len() != len) {
        bail!("prompts of {len} and of {} tokens cannot be continued together", other.len());
    }
    Ok(())
}

/// Logits `(batch, vocab_size)` → rows of f64, with −∞ for the ids of `never`.
pub fn rows(logits: &Tensor, never: &[u32]) -> Result<Vec<Vec<f64>>> {
    // Moved to the CPU before the conversion to f64, which Metal does not support.
    let mut rows = logits.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    for row in &mut rows {
        for &id in never {
            if let Some(logit) = row.get_mut(id as usize) {
                *logit = f64::NEG_INFINITY;
            }
        }
    }
    Ok(rows)
}

/// The logits of the next token of each row, of which at least one is finite and each other finite or −∞.
fn next_logits(
    predictor: &mut dyn Predictor,
    unread: &[Vec<u32>],
) -> GenerationResult<Vec<Vec<f64>>> {
    let rows = predictor.next(unread)?;
    let is_broken = |logit: &f64| logit.is_nan() || *logit == f64::INFINITY;
    let has_choice =
        |row: &Vec<f64>| row.iter().any(|logit| logit.is_finite()) && !row.iter().any(is_broken);
    if rows.iter().all(has_choice) { Ok(rows) } else { Err(GenerationError::NotFinite) }
}

/// An unfinished sequence, without its prompt.
#[derive(Clone, Debug)]
struct Draft {
    ids: Vec<u32>,
    log_probability: f64,
}

impl Draft {
    fn empty() -> Self {
        Self { ids: Vec::new(), log_probability: 0. }
    }

    fn extended(&self, id: u32, log_probability: f64) -> Self {
        let mut ids = self.ids.clone();
        ids.push(id);
        Self { ids, log_probability: self.log_probability + log_probability }
    }

    fn finish(mut self, ends: &StopRules<'_>, length_penalty: f64) -> Sequence {
        let score = self.log_probability / penalty(self.ids.len(), length_penalty);
        let has_ended = self.has_stopped(ends);
        if has_ended {
            self.ids.pop();
        }
        Sequence { ids: self.ids, log_probability: self.log_probability, score, has_ended }
    }

    fn has_stopped(&self, ends: &StopRules<'_>) -> bool {
        self.ids.last().is_some_and(|last| ends.stop.contains(last))
    }

    fn is_finished(&self, ends: &StopRules<'_>) -> bool {
        self.has_stopped(ends) || self.ids.len() >= ends.max_len
    }
}

/// lp(y) for a sequence of `len` tokens.
fn penalty(len: usize, alpha: f64) -> f64 {
    ((5. + len as f64) / 6.).powf(alpha)
}

/// Generates one sequence per row; the batch runs until all rows have ended. `pick(row, index, logits,
/// read)` chooses the token at `index`.
fn choose(
    predictor: &mut dyn Predictor,
    prompts: &[Vec<u32>],
    ends: &StopRules<'_>,
    pick: impl Fn(usize, usize, &[f64], &[u32]) -> usize,
    written: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
) -> GenerationResult<Vec<Vec<Sequence>>> {
    let mut rows: Vec<Row> = prompts.iter().map(|prompt| Row::new(prompt)).collect();
    let mut unread = prompts.to_vec();
    for index in 0..ends.max_len {
        let next = next_logits(predictor, &unread)?;
        for (number, (row, logits)) in rows.iter_mut().zip(&next).enumerate() {
            if !row.is_finished(ends) {
                let id = pick(number, index, logits, &row.read);
                row.write(id, logits);
                if !row.draft.has_stopped(ends) {
                    row.is_told_to_end = written(number, id as u32).is_break();
                }
            }
            unread[number] = row.read.last().copied().into_iter().collect();
        }
        if rows.iter().all(|row| row.is_finished(ends)) {
            break;
        }
    }
    Ok(rows.into_iter().map(|row| vec![row.finish(ends)]).collect())
}

/// An unfinished sequence, with its prompt.
#[derive(Debug)]
struct Row {
    read: Vec<u32>,
    draft: Draft,
    is_told_to_end: bool,
}

impl Row {
    fn new(prompt: &[u32]) -> Self {
        Self { read: prompt.to_vec(), draft: Draft::empty(), is_told_to_end: false }
    }

    fn write(&mut self, id: usize, logits: &[f64]) {
        self.draft = self.draft.extended(id as u32, log_probabilities(logits)[id]);
        self.read.push(id as u32);
    }

    fn is_finished(&self, ends: &StopRules<'_>) -> bool {
        self.is_told_to_end || self.draft.is_finished(ends)
    }

    fn finish(self, ends: &StopRules<'_>) -> Sequence {
        let sequence = self.draft.finish(ends, 0.);
        Sequence { has_ended: sequence.has_ended || self.is_told_to_end, ..sequence }
    }
}

/// The index of the largest logit; of equal ones, the first.
fn likeliest(next: &[f64]) -> usize {
    let better = |best: usize, id: usize| if next[id] > next[best] { id } else { best };
    (1..next.len()).fold(0, better)
}

#[cfg(test)]
mod tests;
