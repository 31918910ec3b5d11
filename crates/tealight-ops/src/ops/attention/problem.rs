//! The shapes and settings of an attention, and the band of keys that a query may read.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use super::{Layout, Options};
use crate::backend::simd::bf16::Bf16;
use crate::ops::dropout::Draw;
use crate::ops::padding_mask;

/// The shapes and settings of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub(super) batch: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) q_len: usize,
    pub(super) kv_len: usize,
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    pub(super) scale: f64,
    pub(super) band: Band,
    pub(super) dropout: Option<Draw>,
    pub(super) layout: Layout,
    /// Round the operands of products to bf16. The backward does as the forward, whose weights it computes again.
    pub(super) rounding: Option<Bf16>,
}

/// Which keys a query may read according to causality and window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    q_len: usize,
    kv_len: usize,
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
}

impl Problem {
    /// Checks the operands against each other and against the options.
    pub(super) fn new(
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: &Options<'_>,
    ) -> Result<Self> {
        /// The fewest rows and columns of products that gain from rounding.
        const FEWEST: usize = 32;
        let [query_dims, key_dims, value_dims] =
            [query, key, value].map(|x| options.layout.heads_first(x));
        let [batch, n_heads, q_len, head_dim] = query_dims?;
        let (key_dims, value_dims) = (key_dims?, value_dims?);
        let ([_, n_kv_heads, kv_len, _], [.., value_dim]) = (key_dims, value_dims);
        if key_dims != [batch, n_kv_heads, kv_len, head_dim]
            || value_dims != [batch, n_kv_heads, kv_len, value_dim]
        {
            let (q, k, v) = (query.shape(), key.shape(), value.shape());
            let axes = |names: [&str; 4]| options.layout.ordered(names).join(", ");
            bail!(
                "attention of query {q:?}, key {k:?}, value {v:?}: expected ({}), ({}), ({})",
                axes(["batch", "n_heads", "q_len", "head_dim"]),
                axes(["batch", "n_kv_heads", "kv_len", "head_dim"]),
                axes(["batch", "n_kv_heads", "kv_len", "value_dim"])
            )
        }
        if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            bail!("{n_kv_heads} heads of keys do not divide {n_heads} heads of queries")
        }
        if options.window == Some(0) {
            bail!("a window of 0 holds no key")
        }
        options.dropout.map_or(Ok(()), Draw::check)?;
        check_masks(options, [batch, n_heads, q_len, kv_len])?;
        let sizes = [q_len, kv_len, head_dim, value_dim];
        Ok(Self {
            batch,
            n_heads,
            n_kv_heads,
            q_len,
            kv_len,
            head_dim,
            value_dim,
            scale: options.scale.unwrap_or(1. / (head_dim as f64).sqrt()),
            band: Band { q_len, kv_len, causal: options.causal, window: options.window },
            dropout: options.dropout.filter(|dropout| dropout.rate > 0.),
            layout: options.layout,
            rounding: Bf16::asked_for().filter(|_| sizes.iter().all(|&size| size >= FEWEST)),
        })
    }

    /// The shape of the output, in the order of the axes.
    pub(super) fn output_shape(&self) -> [usize; 4] {
        self.layout.ordered([self.batch, self.n_heads, self.q_len, self.value_dim])
    }

    /// The number of query heads per head of keys.
    pub(super) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }
}

impl Layout {
    /// The sizes of `x` as `[batch, heads, len, width]`.
    pub(super) fn heads_first(self, x: &Tensor) -> Result<[usize; 4]> {
        let (batch, a, b, width) = x.dims4()?;
        Ok(self.ordered([batch, a, b, width]))
    }

    /// `[batch, heads, len, width]` in this order; and back.
    pub(super) fn ordered<S>(self, [batch, heads, len, width]: [S; 4]) -> [S; 4] {
        match self {
            Self::HeadsFirst => [batch, heads, len, width],
            Self::HeadsLast => [batch, len, heads, width],
        }
    }
}

fn check_masks(options: &Options<'_>, shape: [usize; 4]) -> Result<()> {
    let [batch, n_heads, q_len, kv_len] = shape;
    padding_mask::check(options.key_padding_mask, batch, kv_len)?;
    if let Some(segments) = options.segments {
        check_segments(segments, [batch, q_len, kv_len])?;
    }
    if let Some(mask) = options.attn_mask {
        let shape = [n_heads, q_len, kv_len];
        if mask.dims() != shape && mask.dims() != &shape[1..] {
            bail!("attn_mask has shape {:?}, expected {:?} or {shape:?}", mask.dims(), &shape[1..])
        }
        if !mask.dtype().is_float() {
            bail!("attn_mask has dtype {:?}, expected floats to add", mask.dtype())
        }
    }
    if let Some(sink) = options.sink
        && (sink.dims() != [n_heads] || !sink.dtype().is_float())
    {
        bail!("sink is {sink:?}, expected floats of shape {:?}", [n_heads])
    }
    options.log_forget.map_or(Ok(()), |log_forget| check_forget(log_forget, options, shape))
}

fn check_forget(log_forget: &Tensor, options: &Options<'_>, shape: [usize; 4]) -> Result<()> {
    let [batch, n_heads, q_len, kv_len] = shape;
    let expected = [batch, n_heads, kv_len];
    if log_forget.dims() != expected || !log_forget.dtype().is_float() {
        bail!("log_forget is {log_forget:?}, expected floats of shape {expected:?}")
    }
    if !options.causal || q_len > kv_len {
        bail!("log_forget is for causal attention of no more queries than keys")
    }
    Ok(())
}

fn check_segments(segments: &Tensor, [batch, q_len, kv_len]: [usize; 3]) -> Result<()> {
    if q_len != kv_len {
        bail!("segments of one sequence, but {q_len} queries and {kv_len} keys")
    }
    if segments.dims() != [batch, kv_len] {
        bail!("segments have shape {:?}, expected {:?}", segments.dims(), [batch, kv_len])
    }
    if segments.dtype() != DType::U32 {
        bail!("segments have dtype {:?}, expected u32", segments.dtype())
    }
    Ok(())
}

impl Band {
    /// The keys that query `row` may read.
    pub(super) fn keys(&self, row: usize) -> Range<usize> {
        // The last query has the position of the last key.
        let (row, kv_len) = (row + self.kv_len, self.kv_len);
        let from = self.window.map_or(0, |w| (row + 1).saturating_sub(self.q_len + w));
        let ahead = self.window.map_or(kv_len, |w| (row + w).saturating_sub(self.q_len));
        let past = (row + 1).saturating_sub(self.q_len);
        let to = if self.causal { ahead.min(past) } else { ahead }.min(kv_len);
        from.min(to)..to
    }

    /// The queries that may read `key`.
    pub(super) fn queries(&self, key: usize) -> Range<usize> {
        let (key, q_len) = (key + self.q_len, self.q_len);
        let behind = self.window.map_or(0, |w| (key + 1).saturating_sub(self.kv_len + w));
        let present = key.saturating_sub(self.kv_len);
        let from = if self.causal { behind.max(present) } else { behind };
        let to = self.window.map_or(q_len, |w| (key + w).saturating_sub(self.kv_len)).min(q_len);
        from.min(to)..to
    }

    /// The keys that any of the queries `rows` may read.
    pub(super) fn keys_of(&self, rows: &Range<usize>) -> Range<usize> {
        let (first, last) = (self.keys(rows.start), self.keys(rows.end - 1));
        // Both ends rise with the query, except for queries that read nothing.
        let from = rows.clone().map(|row| self.keys(row)).find(|keys| !keys.is_empty());
        from.unwrap_or(first).start..last.end
    }

    /// Whether each of the queries `rows` may read each of `keys`.
    pub(super) fn is_unmasked(&self, rows: &Range<usize>, keys: &Range<usize>) -> bool {
        let (first, last) = (self.keys(rows.start), self.keys(rows.end - 1));
        last.start <= keys.start && keys.end <= first.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// |i − j| < window and j ≤ i, with the last query at the last key.
    fn may_read(band: &Band, row: usize, key: usize) -> bool {
        let (row, key) = (row + band.kv_len, key + band.q_len);
        let near = band.window.is_none_or(|w| row.abs_diff(key) < w);
        near && (!band.causal || key <= row)
    }

    #[test]
    fn a_band_is_its_definition() {
        for (q_len, kv_len) in [(1, 1), (5, 5), (3, 7), (7, 3), (1, 6), (6, 1)] {
            for causal in [false, true] {
                for window in [None, Some(1), Some(2), Some(4), Some(100)] {
                    let band = Band { q_len, kv_len, causal, window };
                    for row in 0..q_len {
                        for key in 0..kv_len {
                            let may = may_read(&band, row, key);
                            assert_eq!(band.keys(row).contains(&key), may, "{band:?} {row} {key}");
                            assert_eq!(band.queries(key).contains(&row), may, "{band:?}");
                        }
                        let rows = row..q_len;
                        let of = band.keys_of(&rows);
                        for key in 0..kv_len {
                            if rows.clone().any(|row| may_read(&band, row, key)) {
                                assert!(of.contains(&key), "{band:?} {rows:?} {key}");
                            }
                        }
                    }
                }
            }
        }
    }
}
