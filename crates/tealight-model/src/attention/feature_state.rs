//! What linear attention keeps of the keys and values that it has read: S and z, in O(1) of the
//! sequence's length.
//!
//! The formulas are those of [`tealight_ops::linear_attention`]: a feature's sums are held relative
//! to the largest logarithm m that the feature had so far.

use candle_core::{D, Result, Tensor};

/// `Sᵣ = Σⱼ e^(ln φ(kⱼ)ᵣ − mᵣ) vⱼ` and `zᵣ = Σⱼ e^(ln φ(kⱼ)ᵣ − mᵣ)`.
#[derive(Clone, Debug)]
pub(super) struct FeatureState {
    /// m, `(batch, n_heads, n_features, 1)`
    max: Tensor,
    /// z, `(batch, n_heads, n_features, 1)`
    total: Tensor,
    /// S, `(batch, n_heads, n_features, head_dim)`
    sum: Tensor,
}

impl FeatureState {
    /// The state after `log_key (batch, n_heads, len, n_features)` and `value (batch, n_heads, len,
    /// head_dim)`, without the keys that `key_padding_mask (batch, len)` marks.
    pub(super) fn of(
        log_key: &Tensor,
        value: &Tensor,
        key_padding_mask: Option<&Tensor>,
    ) -> Result<Self> {
        let mut log_key = log_key.clone();
        if let Some(mask) = key_padding_mask {
            let (batch, len) = mask.dims2()?;
            let mask = mask.reshape((batch, 1, len, 1))?.broadcast_as(log_key.shape())?;
            let nothing = log_key.ones_like()?.affine(0., f64::NEG_INFINITY)?;
            log_key = mask.where_cond(&nothing, &log_key)?;
        }
        let log_key = log_key.transpose(2, 3)?.contiguous()?; // (batch, n_heads, n_features, len)
        let max = log_key.max_keepdim(D::Minus1)?;
        // Where every key is padding there is no maximum; any finite number serves.
        let max = max.eq(f64::NEG_INFINITY)?.where_cond(&max.zeros_like()?, &max)?;
        let features = log_key.broadcast_sub(&max)?.exp()?;
        let (total, sum) =
            (features.sum_keepdim(D::Minus1)?, features.matmul(&value.contiguous()?)?);
        Ok(Self { max, total, sum })
    }

    /// The state after what both have read.
    pub(super) fn and(&self, other: &Self) -> Result<Self> {
        let max = self.max.maximum(&other.max)?;
        let fades = [self, other].map(|state| (&state.max - &max)?.exp());
        let [own, others] = fades;
        let (own, others) = (own?, others?);
        let total = ((&self.total * &own)? + (&other.total * &others)?)?;
        let sum = (self.sum.broadcast_mul(&own)? + other.sum.broadcast_mul(&others)?)?;
        Ok(Self { max, total, sum })
    }

    /// `log_query (batch, n_heads, len, n_features)` → `(batch, n_heads, len, head_dim)`; zeros where
    /// nothing was read.
    pub(super) fn read(&self, log_query: &Tensor) -> Result<Tensor> {
        let logs = log_query.broadcast_add(&self.max.transpose(2, 3)?)?;
        let features = logs.broadcast_sub(&logs.max_keepdim(D::Minus1)?)?.exp()?;
        let total = features.matmul(&self.total)?; // (batch, n_heads, len, 1)
        let total = (&total + total.eq(0.)?.to_dtype(total.dtype())?)?;
        features.matmul(&self.sum)?.broadcast_div(&total)
    }

    /// Row i goes on from row `rows[i]`.
    pub(super) fn select(&self, rows: &Tensor) -> Result<Self> {
        let select = |x: &Tensor| x.contiguous()?.index_select(rows, 0);
        Ok(Self { max: select(&self.max)?, total: select(&self.total)?, sum: select(&self.sum)? })
    }
}
