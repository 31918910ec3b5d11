//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use super::Scored;
use crate::backend::choice::at_least_f32;
use crate::ops::cross_entropy::reference::{cross_entropy, hits};
use crate::ops::linear::Map;
use crate::ops::linear::reference::linear;

/// See [`linear_cross_entropy`](super::linear_cross_entropy).
pub fn linear_cross_entropy(
    x: &Tensor,
    map: Map<'_>,
    labels: &Tensor,
    label_smoothing: f64,
) -> Result<Scored> {
    let logits = at_least_f32(&linear(x, map.weight, map.bias)?)?;
    let loss = cross_entropy(&logits, labels, label_smoothing)?;
    Ok(Scored { loss, hits: hits(&logits, labels)? })
}
