//! Converts recorded masks to padding masks and causality.

use candle_core::{Result, Tensor};
use tealight_ops::Reach;
use tealight_ops::testing::device;

use crate::record::Case;

/// Padded keys, and whether later keys are masked.
pub(crate) struct Mask {
    /// `(batch, kv_len)`, 1 = padding.
    padding: Option<Tensor>,
    pub(crate) causal: bool,
    /// An additive mask of the recorded shape: 0, and −∞ at masked keys.
    additive: Option<Tensor>,
}

impl Mask {
    /// From `mask (batch, [n_heads,] q_len, kv_len)`, 1 = may attend, which must consist of padding and
    /// causality only.
    pub(crate) fn from_case(case: &Case<'_>) -> Result<Self> {
        if !case.has("mask") {
            return Ok(Self { padding: None, causal: false, additive: None });
        }
        let mask = case.tensor("mask");
        let zeros = mask.to_dtype(case.dtype)?.zeros_like()?;
        let additive = mask.where_cond(&zeros, &(&zeros + f64::NEG_INFINITY)?)?;

        let (q_len, kv_len) = (mask.dim(mask.rank() - 2)?, mask.dim(mask.rank() - 1)?);
        let batch = mask.dim(0)?;
        let maps: Vec<Vec<Vec<u8>>> = mask.reshape(((), q_len, kv_len))?.to_vec3()?;
        let n_heads = maps.len() / batch;
        // The last query attends to all keys that are not padding.
        let padding = maps.iter().step_by(n_heads).flat_map(|map| &map[q_len - 1]);
        let padding: Vec<u8> = padding.map(|&may| 1 - may).collect();
        let is_padding = |map: usize, j: usize| padding[map / n_heads * kv_len + j] == 1;
        let future = |i: usize, j: usize| j + q_len > i + kv_len;

        let each = (0..maps.len()).flat_map(|map| (0..q_len).map(move |i| (map, i)));
        let each = each.flat_map(|(map, i)| (0..kv_len).map(move |j| (map, i, j)));
        let forbidden = |(map, i, j): (usize, usize, usize)| maps[map][i][j] == 0;
        let causal = each.clone().any(|at @ (map, _, j)| forbidden(at) && !is_padding(map, j));
        for at @ (map, i, j) in each {
            if forbidden(at) != (is_padding(map, j) || (causal && future(i, j))) {
                case.fail("the mask does not consist of padding and causality only");
                break;
            }
        }
        let padding = Tensor::from_vec(padding, (batch, kv_len), device())?;
        Ok(Self { padding: Some(padding), causal, additive: Some(additive) })
    }

    /// From `key_mask (batch, kv_len)`, 1 = may be read, and the causality of the case.
    pub(crate) fn from_key_mask(case: &Case<'_>) -> Result<Self> {
        let keys = case.has("key_mask").then(|| case.tensor("key_mask"));
        let padding = keys.map(|keys| keys.eq(0_u8)).transpose()?;
        Ok(Self { padding, causal: case.description.causal, additive: None })
    }

    /// −∞ for padded keys of `scores (batch, n_heads, q_len, kv_len)`.
    pub(crate) fn apply_padding(&self, scores: &Tensor) -> Result<Tensor> {
        let Some(padding) = &self.padding else { return Ok(scores.clone()) };
        let padding = padding.unsqueeze(1)?.unsqueeze(1)?.broadcast_as(scores.shape())?;
        padding.where_cond(&(scores.zeros_like()? + f64::NEG_INFINITY)?, scores)
    }

    pub(crate) fn padding(&self) -> Option<&Tensor> {
        self.padding.as_ref()
    }

    pub(crate) fn reach(&self) -> Reach {
        if self.causal { Reach::Past } else { Reach::Everything }
    }

    /// Adds the mask to scores.
    pub(crate) fn apply(&self, scores: Tensor) -> Result<Tensor> {
        match &self.additive {
            Some(additive) => scores + additive,
            None => Ok(scores),
        }
    }
}
