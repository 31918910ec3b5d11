//! Batches of several tasks: the labels of tokens, sequences with a class, the predicted class.

use candle_core::{Device, Tensor};
use tealight_model::Mask;
use tealight_ops::cross_entropy::{IGNORE_INDEX, cross_entropy, hits};
use tealight_ops::device::tensor_of;

use crate::data::padded;
use crate::error::Result;
use crate::task::{Inputs, Loss};

/// `(rows · width)`: the labels of tokens, with [`IGNORE_INDEX`] for the padding of shorter rows.
pub(super) fn token_labels(rows: &[Vec<i64>], width: usize, device: &Device) -> Result<Tensor> {
    let n = rows.len() * width;
    let mut labels = Vec::with_capacity(n);
    for row in rows {
        labels.extend_from_slice(row);
        labels.resize(labels.len() + width - row.len(), IGNORE_INDEX);
    }
    Ok(tensor_of(labels, n, device)?)
}

/// A batch of sequences with one class each, on the device.
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
        Inputs { tensors: tensors.collect(), count: labels.elem_count() as f64 }
    }

    /// Cross-entropy and accuracy of `logits (batch, n_classes)`.
    pub(super) fn loss(&self, logits: &Tensor, label_smoothing: f64) -> Result<Loss> {
        let sum = cross_entropy(logits, &self.labels, label_smoothing)?;
        let hits = hits(logits, &self.labels)?;
        Ok(Loss::with_hits(sum, self.labels.elem_count(), "accuracy", &hits))
    }
}
