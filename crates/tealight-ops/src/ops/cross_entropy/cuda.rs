//! Kernels with one block per row; the loss is the sum over the rows.

use candle_core::{DType, Result, Tensor};

use super::{IGNORE_INDEX, NAME};
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source, sums, wide};

const KERNELS: Source = Source::new("cross_entropy", &[include_str!("kernel.cu")]);

/// q, the target distribution of each row: labels or probabilities.
pub(super) struct Targets {
    /// i64. A label that is no class gives NaN: checking it on the host would synchronise with the device.
    labels: Option<Tensor>,
    /// `(n, classes)`
    soft: Option<Tensor>,
    label_smoothing: f64,
}

impl Targets {
    pub(super) fn labels(labels: &Tensor, label_smoothing: f64) -> Result<Self> {
        let labels = labels.to_dtype(DType::I64)?.contiguous()?;
        Ok(Self { labels: Some(labels), soft: None, label_smoothing })
    }

    pub(super) fn soft(targets: Tensor) -> Self {
        Self { labels: None, soft: Some(targets), label_smoothing: 0. }
    }
}

pub(super) fn cross_entropy(logits: &Tensor, targets: Targets) -> Result<Tensor> {
    let logits = logits.contiguous()?;
    let (n, n_classes) = logits.dims2()?;
    let mut losses = Buffer::unwritten(n, wide(logits.dtype()), logits.device())?;
    let Targets { labels, soft, label_smoothing } = targets;
    Launch::new(&KERNELS, "cross_entropy_forward", &logits)?
        .rows(n, n_classes)
        .read(&logits)?
        .read_if(labels.as_ref())?
        .read_if(soft.as_ref())?
        .write(&mut losses)?
        .size(n_classes)
        .number(label_smoothing)
        .long(IGNORE_INDEX)
        .run()?;
    let loss = sums::of_all(&logits, &losses, n)?;
    record_saving(NAME, &[&logits], loss.value(()), Saved::Inputs, move |inputs, _, gradient| {
        let logits = &inputs[0];
        let mut dlogits = Buffer::like(logits)?;
        Launch::new(&KERNELS, "cross_entropy_backward", logits)?
            .rows(n, n_classes)
            .read(logits)?
            .read_if(labels.as_ref())?
            .read_if(soft.as_ref())?
            .read(gradient)?
            .write(&mut dlogits)?
            .size(n_classes)
            .number(label_smoothing)
            .long(IGNORE_INDEX)
            .run()?;
        Ok(vec![Some(dlogits.tensor(logits.shape())?)])
    })
}

/// The number of rows whose label has the largest logit.
pub(super) fn hits(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (n, n_classes) = logits.dims2()?;
    let labels = labels.to_dtype(DType::I64)?.contiguous()?;
    let mut count = Buffer::zeros(1, DType::U32, logits.device())?;
    Launch::new(&KERNELS, "hits", logits)?
        .rows(n, n_classes)
        .reads([logits, &labels])?
        .write(&mut count)?
        .size(n_classes)
        .run()?;
    count.tensor(())
}
