//! Attention masks: padding, segments of packed sequences, and additive masks.

use candle_core::{D, DType, Device, Result, Tensor, bail};
use tealight_ops::Tokens;

/// The masks of one call of an attention layer. Causality is not among them: a layer is built causal.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "PyTorch's names")]
pub struct Mask {
    key_padding_mask: Option<Tensor>,
    attn_mask: Option<Tensor>,
    segments: Option<Tensor>,
}

impl Mask {
    /// Masks nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Masks keys: `key_padding_mask (batch, kv_len)` of dtype u8, `1` = padding, ignored.
    pub fn with_key_padding_mask(mut self, key_padding_mask: &Tensor) -> Result<Self> {
        let (_batch, _kv_len) = key_padding_mask.dims2()?;
        if key_padding_mask.dtype() != DType::U8 {
            bail!("key_padding_mask has dtype {:?}, expected u8", key_padding_mask.dtype());
        }
        self.key_padding_mask = Some(key_padding_mask.clone());
        Ok(self)
    }

    /// Adds to the scores: `attn_mask (q_len, kv_len)` or `(n_heads, q_len, kv_len)`, where `0`
    /// keeps and `-inf` drops. A second mask is added to the first, in the wider dtype of the two.
    ///
    /// # Errors
    /// If the rank is another, or the dtype is an integer, as of boolean masks, which must not be added.
    pub fn with_attn_mask(mut self, attn_mask: &Tensor) -> Result<Self> {
        if !(2..=3).contains(&attn_mask.rank()) {
            bail!("attn_mask has shape {:?}, expected rank 2 or 3", attn_mask.dims());
        }
        if !attn_mask.dtype().is_float() {
            bail!("attn_mask has dtype {:?}, expected floats to add", attn_mask.dtype());
        }
        self.attn_mask = Some(match self.attn_mask {
            None => attn_mask.clone(),
            Some(other) => {
                let dtype = wider(other.dtype(), attn_mask.dtype());
                other.to_dtype(dtype)?.broadcast_add(&attn_mask.to_dtype(dtype)?)?
            }
        });
        Ok(self)
    }

    /// Keeps the documents of a packed sequence apart: `segments (batch, seq_len)` of dtype u32 numbers the
    /// documents, and a query reads only keys of its own (Krell et al. 2021, §3.2.2,
    /// <https://arxiv.org/abs/2107.02027>). For self-attention that was built as `packed`.
    pub fn with_segments(mut self, segments: &Tensor) -> Result<Self> {
        let (_batch, _seq_len) = segments.dims2()?;
        if segments.dtype() != DType::U32 {
            bail!("segments have dtype {:?}, expected u32", segments.dtype());
        }
        self.segments = Some(segments.clone());
        Ok(self)
    }

    /// The padded keys, `(batch, kv_len)`, `1` = padding.
    pub fn key_padding_mask(&self) -> Option<&Tensor> {
        self.key_padding_mask.as_ref()
    }

    /// The additive mask, `(q_len, kv_len)` or `(n_heads, q_len, kv_len)`.
    pub fn attn_mask(&self) -> Option<&Tensor> {
        self.attn_mask.as_ref()
    }

    /// The segment of every position, `(batch, seq_len)`.
    pub fn segments(&self) -> Option<&Tensor> {
        self.segments.as_ref()
    }

    /// All tensors of the mask.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let Self { key_padding_mask, attn_mask, segments } = self;
        key_padding_mask.iter().chain(attn_mask).chain(segments)
    }

    /// The padding mask, for attention without scores.
    ///
    /// # Errors
    /// If there is an additive mask or there are segments, which need scores.
    pub fn padding_only(&self) -> Result<Option<&Tensor>> {
        if self.attn_mask.is_some() {
            bail!("an attn_mask was given to an attention that has no scores to add it to")
        }
        if self.segments.is_some() {
            bail!("segments were given to an attention that has no scores to keep them apart by")
        }
        Ok(self.key_padding_mask())
    }

    /// The padding and the segments, for a recurrence, which has no scores.
    ///
    /// # Errors
    /// If there is an additive mask.
    pub(crate) fn tokens(&self) -> Result<Tokens<'_>> {
        if self.attn_mask.is_some() {
            bail!("an attn_mask was given to an attention that has no scores to add it to")
        }
        Ok(Tokens { key_padding_mask: self.key_padding_mask(), segments: self.segments() })
    }

    /// Refuses segments, for cross-attention.
    pub(crate) fn refuse_segments(&self) -> Result<()> {
        if self.segments.is_some() {
            bail!("segments were given to an attention that reads another sequence")
        }
        Ok(())
    }

    /// The mask for the examples `rows (new batch)` of u32, in their order.
    pub fn select(&self, rows: &Tensor) -> Result<Self> {
        let select = |x: &Option<Tensor>| x.as_ref().map(|x| x.index_select(rows, 0)).transpose();
        Ok(Self {
            key_padding_mask: select(&self.key_padding_mask)?,
            attn_mask: self.attn_mask.clone(),
            segments: select(&self.segments)?,
        })
    }

    /// Adds all masks to `scores (batch, n_heads, q_len, kv_len)`; masked ones become `-inf`.
    pub fn apply(&self, scores: &Tensor) -> Result<Tensor> {
        let (_batch, _n_heads, q_len, kv_len) = scores.dims4()?;
        self.check_lens(q_len, kv_len)?;
        self.apply_to_rows(scores, 0)
    }

    /// Refuses masks of other numbers of queries and keys.
    pub(crate) fn check_lens(&self, q_len: usize, kv_len: usize) -> Result<()> {
        let of_pairs = self.attn_mask.iter().any(|mask| !mask.dims().ends_with(&[q_len, kv_len]));
        let of_keys = [&self.key_padding_mask, &self.segments].into_iter().flatten();
        if of_pairs || of_keys.into_iter().any(|mask| !mask.dims().ends_with(&[kv_len])) {
            bail!(
                "masks of shapes {:?} do not fit {q_len} queries and {kv_len} keys",
                self.tensors().map(Tensor::dims).collect::<Vec<_>>()
            )
        }
        Ok(())
    }

    /// The same for scores of some queries, the first of which is `first`, and of the first keys: masks may be of more.
    pub(crate) fn apply_to_rows(&self, scores: &Tensor, first: usize) -> Result<Tensor> {
        let (batch, _n_heads, q_len, kv_len) = scores.dims4()?;
        let mut scores = scores.clone();
        if let Some(attn_mask) = &self.attn_mask {
            let rows = attn_mask.narrow(D::Minus2, first, q_len)?.narrow(D::Minus1, 0, kv_len)?;
            scores = scores.broadcast_add(&rows.to_dtype(scores.dtype())?)?;
        }
        if let Some(padding) = &self.key_padding_mask {
            let padding = drop_where(&padding.narrow(1, 0, kv_len)?, scores.dtype())?;
            scores = scores.broadcast_add(&padding.reshape((batch, 1, 1, kv_len))?)?;
        }
        if let Some(segments) = &self.segments {
            let of_queries = segments.narrow(1, first, q_len)?.unsqueeze(2)?;
            let of_keys = segments.narrow(1, 0, kv_len)?.unsqueeze(1)?;
            let other = of_queries.broadcast_ne(&of_keys)?;
            let other = drop_where(&other, scores.dtype())?; // (batch, q_len, kv_len)
            scores = scores.broadcast_add(&other.unsqueeze(1)?)?;
        }
        Ok(scores)
    }
}

/// `(q_len, kv_len)` in f32: `-inf` where the key comes after the query, else `0` (Vaswani et al. 2017,
/// §3.2.3). With fewer queries than keys, the queries are the last positions.
pub fn causal_mask(q_len: usize, kv_len: usize, device: &Device) -> Result<Tensor> {
    let offset = kv_len.saturating_sub(q_len);
    let future = (0..q_len)
        .flat_map(|i| (0..kv_len).map(move |j| if j > i + offset { f32::NEG_INFINITY } else { 0. }))
        .collect::<Vec<_>>();
    Tensor::from_vec(future, (q_len, kv_len), device)
}

/// A dtype that represents the values of both.
fn wider(a: DType, b: DType) -> DType {
    match (a, b) {
        _ if a == b => a,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        _ => DType::F32,
    }
}

/// `1` → `-inf`, `0` → `0`, in the scores' dtype.
fn drop_where(flags: &Tensor, dtype: DType) -> Result<Tensor> {
    let zeros = flags.to_dtype(dtype)?.zeros_like()?;
    flags.where_cond(&(zeros.ones_like()? * f64::NEG_INFINITY)?, &zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f32 = f32::NEG_INFINITY;

    #[test]
    fn the_future_is_dropped_and_queries_are_the_last_positions() -> Result<()> {
        let mask = causal_mask(2, 3, &Device::Cpu)?.to_vec2::<f32>()?;
        assert_eq!(mask, [[0., 0., INF], [0., 0., 0.]]);
        Ok(())
    }

    #[test]
    fn padding_and_additive_masks_meet() -> Result<()> {
        let scores = Tensor::zeros((1, 1, 2, 3), DType::F32, &Device::Cpu)?;
        let padding = Tensor::new(&[[0_u8, 0, 1]], &Device::Cpu)?;
        let causal = causal_mask(2, 3, &Device::Cpu)?;
        let bias = Tensor::new(&[[[1_f32, 2., 3.], [4., 5., 6.]]], &Device::Cpu)?;
        let mask = Mask::none()
            .with_attn_mask(&causal)?
            .with_attn_mask(&bias)?
            .with_key_padding_mask(&padding)?;
        let masked = mask.apply(&scores)?.flatten_to(2)?.to_vec2::<f32>()?;
        assert_eq!(masked, [[1., 2., INF], [4., 5., INF]]);
        Ok(())
    }

    /// Boolean masks of other libraries, in which `1` keeps: added to the scores they did nothing.
    #[test]
    fn a_mask_of_flags_is_not_an_attn_mask() -> Result<()> {
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let flags = Tensor::ones((2, 3), dtype, &Device::Cpu)?;
            let error = Mask::none().with_attn_mask(&flags).expect_err("flags").to_string();
            assert!(error.contains(&format!("attn_mask has dtype {dtype:?}")), "{error}");
        }
        Ok(())
    }

    #[test]
    fn two_masks_meet_in_the_wider_dtype() -> Result<()> {
        let tiny = Tensor::full(1e-12_f64, (2, 3), &Device::Cpu)?;
        let causal = causal_mask(2, 3, &Device::Cpu)?;
        let mask = Mask::none().with_attn_mask(&causal)?.with_attn_mask(&(tiny + 1.)?)?;
        let sum = mask.attn_mask().expect("a mask").to_vec2::<f64>()?;
        assert_eq!(sum[0][0], 1. + 1e-12);
        let [half, brain] = [DType::F16, DType::BF16].map(|dtype| causal.to_dtype(dtype));
        let mask = Mask::none().with_attn_mask(&half?)?.with_attn_mask(&brain?)?;
        assert_eq!(mask.attn_mask().expect("a mask").dtype(), DType::F32);
        Ok(())
    }

    #[test]
    fn a_position_reads_its_own_segment() -> Result<()> {
        let scores = Tensor::zeros((1, 1, 3, 3), DType::F32, &Device::Cpu)?;
        let mask = Mask::none().with_segments(&Tensor::new(&[[4_u32, 4, 7]], &Device::Cpu)?)?;
        let masked = mask.apply(&scores)?.flatten_to(2)?.to_vec2::<f32>()?;
        assert_eq!(masked, [[0., 0., INF], [0., 0., INF], [INF, INF, 0.]]);
        Ok(())
    }

    #[test]
    fn a_mask_of_the_wrong_kind_is_refused() -> Result<()> {
        let floats = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
        assert!(Mask::none().with_key_padding_mask(&floats).is_err());
        assert!(Mask::none().with_attn_mask(&floats.flatten_all()?).is_err());
        assert!(Mask::none().with_segments(&floats).is_err());
        Ok(())
    }
}
