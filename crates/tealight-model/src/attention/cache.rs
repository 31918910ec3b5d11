//! Decoding with the keys and values of what has been read.
//!
//! A step projects the new positions alone: O(T) where reading everything again would take O(T²).
//! The keys and values of a memory are projected once. A layer with a window keeps no more than what
//! the next position may still read.

use candle_core::{D, Result, Tensor};

use super::projection::Projection;
use super::{AttentionInput, DecodingState, Memory, Reads};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::position::rotary::Rotary;

/// A layer that reads values where queries meet keys, whatever it makes of the meeting.
pub trait Reader: std::fmt::Debug + Send + Sync {
    /// The maps into queries, keys and values.
    fn projection(&self) -> &Projection;

    /// The rotation of queries and keys.
    fn rotary(&self) -> Option<&Rotary>;

    /// How many keys a position may read, its own included; `None`: all.
    fn window(&self) -> Option<usize> {
        None
    }

    /// `query (batch, q_len, n_heads, head_dim)`, `key` and `value (batch, kv_len, n_kv_heads,
    /// head_dim)`, rotated → `(batch, q_len, d_model)`. The last query of a causal layer stands at
    /// the last key.
    fn read(
        &self,
        query: &Tensor,
        keys_and_values: (&Tensor, &Tensor),
        mask: &Mask,
        mode: Mode,
    ) -> Result<Tensor>;
}

/// Queries, keys and values of a whole sequence, rotated: the shapes of [`Reader::read`].
pub fn whole(layer: &dyn Reader, input: &AttentionInput<'_>) -> Result<(Tensor, Tensor, Tensor)> {
    let (query, key, value) = layer.projection().project_heads_last(input)?;
    Ok((rotated(layer, &query, 0)?, rotated(layer, &key, 0)?, value))
}

/// What `layer` keeps, with nothing read yet; `None` for one that reads its own future.
pub fn begin<'a>(
    layer: &'a dyn Reader,
    memory: Option<Memory<'a>>,
) -> Result<Option<Box<dyn DecodingState + 'a>>> {
    let state = match (layer.projection().reads(), memory) {
        (Reads::Past, None) => Cache { layer, kept: None, memory: None, n_read: 0 },
        (Reads::Memory, Some(Memory { states, mask })) => {
            mask.refuse_segments()?;
            let (key, value) = layer.projection().keys_and_values_heads_last(states)?;
            let key = rotated(layer, &key, 0)?;
            Cache { layer, kept: Some((key, value)), memory: Some(mask.clone()), n_read: 0 }
        }
        _ => return Ok(None),
    };
    Ok(Some(Box::new(state)))
}

fn rotated(layer: &dyn Reader, x: &Tensor, start: usize) -> Result<Tensor> {
    layer.rotary().map_or(Ok(x.clone()), |rotary| rotary.forward_heads_last(x, start))
}

#[derive(Debug)]
struct Cache<'a> {
    layer: &'a dyn Reader,
    /// `(batch, kv_len, n_kv_heads, head_dim)`, twice.
    kept: Option<(Tensor, Tensor)>,
    /// The mask of the memory, where there is one: then nothing is added to what is kept.
    memory: Option<Mask>,
    /// Positions that have come.
    n_read: usize,
}

impl DecodingState for Cache<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        let (_batch, n_new, _d_model) = x.dims3()?;
        let query =
            rotated(self.layer, &self.layer.projection().queries_heads_last(x)?, self.n_read)?;
        let (key, value) = match (&self.memory, self.kept.take()) {
            (Some(_), Some(kept)) => kept,
            (_, kept) => self.extended(kept, x)?,
        };
        let mask = self.mask(score_bias, key.dim(1)?, n_new)?;
        let y = self.layer.read(&query, (&key, &value), &mask, Mode::Eval)?;
        self.n_read += n_new;
        self.kept =
            Some(if self.memory.is_some() { (key, value) } else { self.trimmed(key, value)? });
        Ok(y)
    }

    fn select(&mut self, rows: &Tensor) -> Result<()> {
        let select = |x: &Tensor| x.contiguous()?.index_select(rows, 0);
        if let Some((key, value)) = &mut self.kept {
            (*key, *value) = (select(key)?, select(value)?);
        }
        if let Some(mask) = &mut self.memory {
            *mask = mask.select(rows)?;
        }
        Ok(())
    }
}

impl Cache<'_> {
    /// What was kept, and the keys and values of `x` after it.
    fn extended(&self, kept: Option<(Tensor, Tensor)>, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (key, value) = self.layer.projection().keys_and_values_heads_last(x)?;
        let key = rotated(self.layer, &key, self.n_read)?;
        Ok(match kept {
            Some((keys, values)) => {
                (Tensor::cat(&[&keys, &key], 1)?, Tensor::cat(&[&values, &value], 1)?)
            }
            None => (key, value),
        })
    }

    /// What the next position may still read.
    fn trimmed(&self, key: Tensor, value: Tensor) -> Result<(Tensor, Tensor)> {
        let kv_len = key.dim(1)?;
        match self.layer.window() {
            Some(window) if kv_len >= window => {
                let (start, len) = (kv_len + 1 - window, window - 1);
                // A copy: a view would keep all of it.
                let last = |x: &Tensor| x.narrow(1, start, len)?.force_contiguous();
                Ok((last(&key)?, last(&value)?))
            }
            _ => Ok((key, value)),
        }
    }

    /// The mask of `n_new` queries on `kv_len` keys.
    fn mask(&self, score_bias: Option<&Tensor>, kv_len: usize, n_new: usize) -> Result<Mask> {
        let Some(memory) = &self.memory else {
            return score_bias.map_or(Ok(Mask::none()), |bias| {
                let so_far = bias.dim(D::Minus1)?;
                Mask::none().with_attn_mask(&bias.narrow(D::Minus1, so_far - kv_len, kv_len)?)
            });
        };
        let mask = match memory.key_padding_mask() {
            Some(padding) => Mask::none().with_key_padding_mask(padding)?,
            None => Mask::none(),
        };
        match memory.attn_mask() {
            Some(additive) => {
                mask.with_attn_mask(&additive.narrow(D::Minus2, self.n_read, n_new)?)
            }
            None => Ok(mask),
        }
    }
}
