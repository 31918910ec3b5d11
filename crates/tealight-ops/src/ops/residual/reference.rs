//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use crate::ops::dropout::{self, Draw};

/// x + Dropout(change)
pub fn residual(x: &Tensor, change: &Tensor, draw: Option<Draw>) -> Result<Tensor> {
    match draw {
        Some(Draw { rate, stream }) => x + dropout::reference::dropout(change, rate, stream)?,
        None => x + change,
    }
}
