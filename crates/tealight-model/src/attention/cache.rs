//! Decoding with a cache of what queries read of each position, such as keys and values, for layers whose queries read
//! positions one by one.
//!
//! A step projects only the new positions: O(T) time, where computing everything again takes O(T²). The
//! keys and values of a memory are projected once. A layer with a window caches only the keys that the
//! next position may still read. Training never comes here.

use candle_core::{D, Result, Tensor};

use super::decoding::select_each;
use super::short_convolution::Before;
use super::state::State;
use super::{BoxState, DecodingState, Memory, Reads};
use crate::mask::Mask;
use crate::mode::Mode;

/// A layer that can decode with a cache.
pub(super) trait CachedLayer: std::fmt::Debug + Send + Sync {
    /// Which positions it reads.
    fn reads(&self) -> Reads;

    /// How many positions one reads at most, its own included; `None`: all.
    fn window(&self) -> Option<usize> {
        None
    }

    /// The queries of `x (batch, q_len, d_model)`, whose first position is `start`. Of the positions before it, they and
    /// [`Self::cached`] have what is in `before`.
    fn queries(&self, x: &Tensor, start: usize, before: &mut Before<'_>) -> Result<Tensor>;

    /// What queries read of `source (batch, len, d_model)`, whose first position is `start`: tensors `(batch, len, ..)`.
    fn cached(&self, source: &Tensor, start: usize, before: &mut Before<'_>)
    -> Result<Vec<Tensor>>;

    /// The attention without its maps → all heads concatenated, `(batch, q_len, width)`. The last query of a causal
    /// layer is at the last position of `cached`.
    fn attend(&self, query: &Tensor, cached: &[Tensor], mask: &Mask, mode: Mode) -> Result<Tensor>;

    /// The output of the heads of the queries of `x (batch, q_len, d_model)`: the shape of `x`.
    fn output(&self, x: &Tensor, heads: &Tensor) -> Result<Tensor>;
}

/// The state of `layer` before the first position; `None` for a layer that reads later positions, too.
pub(super) fn decoding_state<'a>(
    layer: &'a dyn CachedLayer,
    memory: Option<Memory<'a>>,
) -> Result<Option<BoxState<'a>>> {
    let mut past = State::default();
    let (kept, memory_mask) = match (layer.reads(), memory) {
        (Reads::Past, None) => (Vec::new(), None),
        (Reads::Memory, Some(Memory { states, mask })) => {
            mask.refuse_segments()?;
            (layer.cached(states, 0, &mut Before::after(&mut past))?, Some(mask.clone()))
        }
        _ => return Ok(None),
    };
    Ok(Some(Box::new(Cache { layer, kept, past, memory_mask, n_read: 0 })))
}

#[derive(Debug)]
struct Cache<'a> {
    layer: &'a dyn CachedLayer,
    /// What queries read of each position, `(batch, kv_len, ..)`; empty before the first.
    kept: Vec<Tensor>,
    /// What the maps of the next position need of the past besides.
    past: State,
    /// The mask on the memory in cross-attention, where `kept` is computed once from the memory. `None` in
    /// self-attention, where each step appends its keys and values to `kept`.
    memory_mask: Option<Mask>,
    /// Positions of all steps so far.
    n_read: usize,
}

impl DecodingState for Cache<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        let (_batch, n_new, _d_model) = x.dims3()?;
        let query = self.layer.queries(x, self.n_read, &mut Before::after(&mut self.past))?;
        if self.memory_mask.is_none() {
            self.extend(x)?;
        }
        let kv_len = self.kept[0].dim(1)?;
        let mask = self.mask(score_bias, kv_len, n_new)?;
        let heads = self.layer.attend(&query, &self.kept, &mask, Mode::Eval)?;
        self.n_read += n_new;
        if self.memory_mask.is_none() {
            self.trim(kv_len)?;
        }
        self.layer.output(x, &heads)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        self.kept.iter_mut().chain(self.past.tensors_mut()).collect()
    }

    fn select(&mut self, rows: &Tensor) -> Result<()> {
        select_each(DecodingState::kept(self), rows)?;
        if let Some(mask) = &mut self.memory_mask {
            *mask = mask.select(rows)?;
        }
        Ok(())
    }
}

impl Cache<'_> {
    /// Adds what queries read of `x`.
    fn extend(&mut self, x: &Tensor) -> Result<()> {
        let new = self.layer.cached(x, self.n_read, &mut Before::after(&mut self.past))?;
        let kept = std::mem::take(&mut self.kept);
        self.kept = if kept.is_empty() {
            new
        } else {
            let joined = kept.iter().zip(&new).map(|(kept, new)| Tensor::cat(&[kept, new], 1));
            joined.collect::<Result<_>>()?
        };
        Ok(())
    }

    /// Leaves the last window − 1 of `kv_len` positions: those that the next one may read beside itself.
    fn trim(&mut self, kv_len: usize) -> Result<()> {
        let Some(window) = self.layer.window().filter(|&window| kv_len >= window) else {
            return Ok(());
        };
        for x in &mut self.kept {
            // A copy: a view would keep the memory of all positions.
            *x = x.narrow(1, kv_len + 1 - window, window - 1)?.force_contiguous()?;
        }
        Ok(())
    }

    /// The mask of `n_new` queries on `kv_len` keys.
    fn mask(&self, score_bias: Option<&Tensor>, kv_len: usize, n_new: usize) -> Result<Mask> {
        let Some(memory) = &self.memory_mask else {
            return score_bias.map_or(Ok(Mask::none()), |bias| {
                let so_far = bias.dim(D::Minus1)?;
                Mask::none().with_attn_mask(&bias.narrow(D::Minus1, so_far - kv_len, kv_len)?)
            });
        };
        let mut mask = Mask::none();
        if let Some(padding) = memory.key_padding_mask() {
            mask = mask.with_key_padding_mask(padding)?;
        }
        if let Some(additive) = memory.attn_mask() {
            mask = mask.with_attn_mask(&additive.narrow(D::Minus2, self.n_read, n_new)?)?;
        }
        Ok(mask)
    }
}
