//! Shared by tasks that assign one class to a sequence of tokens (listops, classify).

use candle_core::{DType, Device, Tensor};
use tealight_model::Mask;
use tealight_ops::cross_entropy::{cross_entropy, hits};
use tealight_ops::device::tensor_of;

use crate::data::padded;
use crate::error::Result;
use crate::task::{Inputs, Loss};

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// `(batch, longest)`
    pub(super) ids: Tensor,
    pub(super) mask: Mask,
    /// `(batch)`
    labels: Tensor,
    /// Without padding.
    pub(super) n_tokens: u64,
}

impl Batch {
    /// Sequences with their classes; shorter ones are padded with `pad`.
    pub(super) fn new(
        rows: &[Vec<u32>],
        classes: Vec<u32>,
        pad: u32,
        device: &Device,
    ) -> Result<Self> {
        let (ids, mask) = padded(rows, pad, device)?;
        let n_tokens = rows.iter().map(|row| row.len() as u64).sum();
        let labels = tensor_of(classes, rows.len(), device)?;
        Ok(Self { ids, mask, labels, n_tokens })
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        let Self { ids, mask, labels, .. } = self;
        let tensors = [ids, labels].into_iter().chain(mask.tensors());
        Inputs { tensors: tensors.collect(), count: labels.elem_count() }
    }

    /// Cross-entropy and accuracy of `logits (batch, n_classes)`.
    pub(super) fn loss(&self, logits: &Tensor, label_smoothing: f64) -> Result<Loss> {
        let sum = cross_entropy(logits, &self.labels, label_smoothing)?;
        let hits = hits(logits, &self.labels)?;
        Ok(Loss::with_hits(sum, self.labels.elem_count(), "accuracy", &hits))
    }
}

/// `logits (batch, n_classes)` → `(batch)` rows of `n_classes` probabilities, in f64.
pub(super) fn probabilities(logits: &Tensor) -> Result<Vec<Vec<f64>>> {
    // Moved to the CPU first: Metal has no f64.
    let logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(tealight_ops::softmax::softmax(&logits)?.to_vec2::<f64>()?)
}
