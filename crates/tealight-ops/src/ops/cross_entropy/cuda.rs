//! Kernels with one block per row; the loss is the sum over the rows.

use candle_core::{DType, Result, Tensor};

use super::IGNORE_INDEX;
use crate::autograd::graph::{Operation, record};
use crate::backend::cuda::{Buffer, Launch, Source, sums, wide};

const KERNELS: Source = Source::new("cross_entropy", &[include_str!("kernel.cu")]);

/// q, the target distribution of each row.
pub(super) enum Targets {
    /// i64. A label that is no class gives NaN: checking it on the host would synchronise with the device.
    Labels { labels: Tensor, label_smoothing: f64 },
    /// `(n, classes)`
    Soft(Tensor),
}

impl Targets {
    pub(super) fn labels(labels: &Tensor, label_smoothing: f64) -> Result<Self> {
        let labels = labels.to_dtype(DType::I64)?.contiguous()?;
        Ok(Self::Labels { labels, label_smoothing })
    }

    /// Labels or soft targets, and the smoothing.
    fn split(&self) -> (Option<&Tensor>, Option<&Tensor>, f64) {
        match self {
            Self::Labels { labels, label_smoothing } => (Some(labels), None, *label_smoothing),
            Self::Soft(targets) => (None, Some(targets), 0.),
        }
    }
}

pub(super) fn cross_entropy(logits: &Tensor, targets: Targets) -> Result<Tensor> {
    let logits = logits.contiguous()?;
    let (n, n_classes) = logits.dims2()?;
    let mut losses = Buffer::unwritten(n, wide(logits.dtype()), logits.device())?;
    let (labels, soft, label_smoothing) = targets.split();
    Launch::new(&KERNELS, "cross_entropy_forward", &logits)?
        .rows(n, n_classes)
        .read(&logits)?
        .read_if(labels)?
        .read_if(soft)?
        .write(&mut losses)?
        .size(n_classes)
        .number(label_smoothing)
        .long(IGNORE_INDEX)
        .run()?;
    let loss = sums::of_all(&logits, &losses, n)?;
    record(CrossEntropy(targets), &[&logits], loss.value(()))
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

struct CrossEntropy(Targets);

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn reads_output(&self) -> bool {
        false
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let logits = &inputs[0];
        let (n, n_classes) = logits.dims2()?;
        let (labels, soft, label_smoothing) = self.0.split();
        let mut dlogits = Buffer::like(logits)?;
        Launch::new(&KERNELS, "cross_entropy_backward", logits)?
            .rows(n, n_classes)
            .read(logits)?
            .read_if(labels)?
            .read_if(soft)?
            .read(gradient)?
            .write(&mut dlogits)?
            .size(n_classes)
            .number(label_smoothing)
            .long(IGNORE_INDEX)
            .run()?;
        Ok(vec![Some(dlogits.tensor(logits.shape())?)])
    }
}
