//! Decoding with cached keys and values, for layers whose queries read them one by one.
//!
//! A step projects only the new positions: O(T) time, where computing everything again takes O(T²). The
//! keys and values of a memory are projected once. A layer with a window caches only the keys that the
//! next position may still read. Training never comes here.

use candle_core::{D, Result, Tensor};

use super::decoding::select_rows;
use super::projection::Projection;
use super::{BoxState, DecodingState, Memory, Reads};
use crate::layers::linear::Linear;
use crate::mask::Mask;
use crate::mode::Mode;

/// A layer that can decode with cached keys and values.
pub(super) trait KeyValueLayer: std::fmt::Debug + Send + Sync {
    /// The linear maps around the attention.
    fn maps(&self) -> LinearMaps<'_>;

    /// The attention without its linear maps: query `(batch, q_len, n_heads, head_dim)`, key and value
    /// `(batch, kv_len, n_kv_heads, head_dim)`, query and key rotated → all heads concatenated, `(batch, q_len,
    /// n_heads·head_dim)`. The last query of a causal layer is at the position of the last key.
    fn attend(&self, qkv: &[Tensor; 3], mask: &Mask, mode: Mode) -> Result<Tensor>;
}

/// The linear maps around an attention, and which keys it reads.
#[derive(Debug)]
pub(super) struct LinearMaps<'a> {
    /// Into queries, keys and values.
    pub(super) projection: &'a Projection,
    /// Back into the residual stream.
    pub(super) output: &'a Linear,
    /// How many keys a position reads at most, its own included; `None`: all.
    pub(super) window: Option<usize>,
}

/// The state of `layer` before the first position; `None` for a layer that reads later positions, too.
pub(super) fn decoding_state<'a>(
    layer: &'a dyn KeyValueLayer,
    memory: Option<Memory<'a>>,
) -> Result<Option<BoxState<'a>>> {
    let maps = layer.maps();
    let (kept, memory_mask) = match (maps.projection.reads(), memory) {
        (Reads::Past, None) => (None, None),
        (Reads::Memory, Some(Memory { states, mask })) => {
            mask.refuse_segments()?;
            (Some(maps.projection.keys_and_values(states, 0)?), Some(mask.clone()))
        }
        _ => return Ok(None),
    };
    Ok(Some(Box::new(Cache { layer, maps, kept, memory_mask, n_read: 0 })))
}

#[derive(Debug)]
struct Cache<'a> {
    layer: &'a dyn KeyValueLayer,
    maps: LinearMaps<'a>,
    /// Keys and values, `(batch, kv_len, n_kv_heads, head_dim)` each.
    kept: Option<(Tensor, Tensor)>,
    /// The mask on the memory in cross-attention, where `kept` is computed once from the memory. `None` in
    /// self-attention, where each step appends its keys and values to `kept`.
    memory_mask: Option<Mask>,
    /// Positions of all steps so far.
    n_read: usize,
}

impl DecodingState for Cache<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        let (_batch, n_new, _d_model) = x.dims3()?;
        let query = self.maps.projection.queries(x, self.n_read)?;
        let (key, value) = match (&self.memory_mask, self.kept.take()) {
            (Some(_), Some(kept)) => kept,
            (_, kept) => self.extended(kept, x)?,
        };
        let mask = self.mask(score_bias, key.dim(1)?, n_new)?;
        let qkv = [query, key, value];
        let heads = self.layer.attend(&qkv, &mask, Mode::Eval)?;
        let [_query, key, value] = qkv;
        self.n_read += n_new;
        self.kept =
            Some(if self.memory_mask.is_some() { (key, value) } else { self.trimmed(key, value)? });
        self.maps.output.forward(&heads)
    }

    fn select(&mut self, rows: &Tensor) -> Result<()> {
        if let Some((key, value)) = &mut self.kept {
            (*key, *value) = (select_rows(key, rows)?, select_rows(value, rows)?);
        }
        if let Some(mask) = &mut self.memory_mask {
            *mask = mask.select(rows)?;
        }
        Ok(())
    }
}

impl Cache<'_> {
    /// `kept`, followed by the keys and values of `x`.
    fn extended(&self, kept: Option<(Tensor, Tensor)>, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (key, value) = self.maps.projection.keys_and_values(x, self.n_read)?;
        Ok(match kept {
            Some((keys, values)) => {
                (Tensor::cat(&[&keys, &key], 1)?, Tensor::cat(&[&values, &value], 1)?)
            }
            None => (key, value),
        })
    }

    /// The last window − 1 keys and values: those that the next position may read beside its own.
    fn trimmed(&self, key: Tensor, value: Tensor) -> Result<(Tensor, Tensor)> {
        let kv_len = key.dim(1)?;
        match self.maps.window {
            Some(window) if kv_len >= window => {
                let (start, len) = (kv_len + 1 - window, window - 1);
                // A copy: a view would keep the memory of all keys.
                let last = |x: &Tensor| x.narrow(1, start, len)?.force_contiguous();
                Ok((last(&key)?, last(&value)?))
            }
            _ => Ok((key, value)),
        }
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
