//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

use super::Mlp;
use crate::backend::choice::widened;
use crate::ops::activation::reference::activation;
use crate::ops::dropout::reference::dropout;
use crate::ops::linear::reference::linear;

/// See [`mlp`](super::mlp).
pub fn mlp(x: &Tensor, settings: &Mlp<'_>) -> Result<Tensor> {
    let Mlp { up, function, dropout: draw, down } = settings;
    let inner = widened(&linear(x, up.weight, up.bias)?, |u| {
        let h = activation(*function, u)?;
        match draw {
            Some(draw) => dropout(&h, draw.rate, draw.stream),
            None => Ok(h),
        }
    })?;
    linear(&inner, down.weight, down.bias)
}
