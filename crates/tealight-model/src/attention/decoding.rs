//! Decoding: inference position by position, with a state that each layer keeps of the past.

use std::fmt;

use candle_core::{D, Result, Tensor, bail};

use super::{Attention, AttentionInput, Memory};
use crate::mask::Mask;
use crate::mode::Mode;

/// The decoding state of a layer of any kind, which it borrows.
pub type BoxState<'a> = Box<dyn DecodingState + 'a>;

/// The state of one layer between decoding steps. The outputs of all steps together equal those of
/// [`Attention::forward`] on the whole sequence in evaluation.
pub trait DecodingState: fmt::Debug {
    /// Decodes the next positions: `x (batch, n_new, d_model)` → the same shape, `n_new` ≥ 1. `score_bias
    /// (n_heads, n_new, positions so far)` is added to the scores.
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor>;

    /// As [`Attention::passed_on`], for positions that [`Self::step`] will read next.
    fn passed_on(&mut self, _x: &Tensor) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// [`Self::step`] with what an earlier layer passed on for these positions, if any did.
    fn step_after(
        &mut self,
        _first: Option<&Tensor>,
        x: &Tensor,
        score_bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.step(x, score_bias)
    }

    /// All that it keeps between steps: tensors whose first axis is the batch.
    fn kept(&mut self) -> Vec<&mut Tensor>;

    /// Reorders the batch, as beam search needs it: row i continues from the state of row `rows[i]`.
    /// `rows (new batch)` of u32.
    fn select(&mut self, rows: &Tensor) -> Result<()> {
        select_each(self.kept(), rows)
    }
}

/// Bytes of the tensors that `state` keeps.
pub fn bytes_of(state: &mut dyn DecodingState) -> usize {
    state.kept().iter().map(|x| x.elem_count() * x.dtype().size_in_bytes()).sum()
}

/// The state of `attention` before the first position: its own or, if it has none, one that computes the
/// layer anew over the whole past at every step.
pub fn initial_state<'a>(
    attention: &'a dyn Attention,
    memory: Option<Memory<'a>>,
) -> Result<BoxState<'a>> {
    if let Some(state) = attention.decoding_state(memory)? {
        return Ok(state);
    }
    let memory = memory.map(|Memory { states, mask }| (states.clone(), mask.clone()));
    Ok(Box::new(Uncached { attention, memory, past: None, score_biases: Vec::new() }))
}

/// Reorders the first axis of each of `kept` by `rows (new batch)`.
pub(super) fn select_each(kept: Vec<&mut Tensor>, rows: &Tensor) -> Result<()> {
    kept.into_iter().try_for_each(|x| {
        *x = x.contiguous()?.index_select(rows, 0)?;
        Ok(())
    })
}

/// Refuses a `score_bias` in a layer without scores.
pub(super) fn refuse_score_bias(score_bias: Option<&Tensor>) -> Result<()> {
    match score_bias {
        Some(_) => bail!("a score bias was given to an attention that forms no scores"),
        None => Ok(()),
    }
}

/// Keeps the inputs of all steps and computes the layer anew over all of them at every step.
#[derive(Debug)]
struct Uncached<'a> {
    attention: &'a dyn Attention,
    memory: Option<(Tensor, Mask)>,
    past: Option<Tensor>,
    /// One for each step, `(n_heads, n_new, positions so far)`.
    score_biases: Vec<Tensor>,
}

impl DecodingState for Uncached<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        self.score_biases.extend(score_bias.cloned());
        let past = match &self.past {
            Some(past) => Tensor::cat(&[past, x], D::Minus2)?,
            None => x.clone(),
        };
        let (_batch, len, _d_model) = past.dims3()?;
        let biases = bias_mask(&self.score_biases, len)?;
        let (memory, mask) = match &self.memory {
            Some((states, mask)) => (Some(states), mask),
            None => (None, &biases),
        };
        let input = AttentionInput { memory, ..AttentionInput::new(&past, mask, Mode::Eval) };
        let y = self.attention.forward(&input)?;
        let (_batch, n_new, _d_model) = x.dims3()?;
        self.past = Some(past);
        y.narrow(1, len - n_new, n_new)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        let memory = self.memory.as_mut().map(|(states, _mask)| states);
        self.past.iter_mut().chain(memory).collect()
    }

    fn select(&mut self, rows: &Tensor) -> Result<()> {
        select_each(self.kept(), rows)?;
        if let Some((_states, mask)) = &mut self.memory {
            *mask = mask.select(rows)?;
        }
        Ok(())
    }
}

/// The mask that adds the biases of all steps, `(n_heads, len, len)`. Positions after a step get zeros; a
/// causal layer masks them anyway.
fn bias_mask(score_biases: &[Tensor], len: usize) -> Result<Mask> {
    if score_biases.is_empty() {
        return Ok(Mask::none());
    }
    let padded = score_biases.iter().map(|bias| {
        let (_n_heads, _n_new, so_far) = bias.dims3()?;
        bias.pad_with_zeros(D::Minus1, 0, len - so_far)
    });
    Mask::none().with_attn_mask(&Tensor::cat(&padded.collect::<Result<Vec<_>>>()?, 1)?)
}
