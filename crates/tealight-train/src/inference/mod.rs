//! Inference: probabilities, filling masks and continuing texts.

pub mod continuation;
pub mod fill_mask;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;

/// `logits (n, n_classes)` → `n` rows of probabilities, in f64.
pub(crate) fn probabilities(logits: &Tensor) -> Result<Vec<Vec<f64>>> {
    // Moved to the CPU first: Metal has no f64.
    let logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(tealight_ops::softmax::softmax(&logits)?.to_vec2()?)
}
