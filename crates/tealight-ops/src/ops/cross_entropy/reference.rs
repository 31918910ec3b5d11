//! The definition, in plain tensor operations.

use candle_core::{D, DType, Result, Tensor};

use super::IGNORE_INDEX;
use crate::ops::softmax::reference::log_softmax;

/// `logits (n, classes)`, `labels (n)` → scalar
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Result<Tensor> {
    let (_, n_classes) = logits.dims2()?;
    if logits.elem_count() == 0 {
        return logits.sum_all(); // Candle's gather fails without elements; the sum is 0.
    }
    let labels = labels.to_dtype(DType::I64)?;
    let ignored = labels.eq(IGNORE_INDEX)?; // (n)
    let classes = ignored.where_cond(&labels.zeros_like()?, &labels)?.to_dtype(DType::U32)?;

    let log_p = log_softmax(logits)?; // (n, classes)
    let of_label = log_p.gather(&classes.unsqueeze(1)?, D::Minus1)?.squeeze(1)?; // (n)
    let log_likelihood = if label_smoothing == 0. {
        // Separate, because 0 · log 0 would be NaN.
        of_label
    } else {
        ((of_label * (1. - label_smoothing))?
            + (log_p.sum(1)? * (label_smoothing / n_classes as f64))?)?
    };
    ignored.where_cond(&log_likelihood.zeros_like()?, &log_likelihood)?.sum_all()?.neg()
}

/// `logits (n, classes)`, `labels (n)` → in how many rows the label has the largest logit
pub fn hits(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    if logits.elem_count() == 0 {
        return Tensor::new(0_u32, logits.device()); // Candle's max fails without elements.
    }
    let (n, n_classes) = logits.dims2()?;
    let is_largest = logits.broadcast_eq(&logits.max_keepdim(1)?)?;
    let index = Tensor::arange(0, n_classes as u32, logits.device())?.to_dtype(DType::I64)?;
    let index = index.broadcast_as((n, n_classes))?.contiguous()?;
    // Not Candle's argmax: on a GPU, it does not take the first of equals.
    let first = is_largest.where_cond(&index, &index.affine(0., n_classes as f64)?)?.min(1)?;
    let hits = first.eq(&labels.to_dtype(DType::I64)?)?;
    hits.to_dtype(DType::U32)?.sum_all()
}

/// `logits (n, classes)`, `targets (n, classes)` → scalar
pub fn cross_entropy_soft(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    if logits.elem_count() == 0 {
        return logits.sum_all(); // Candle's product without elements has no graph.
    }
    let targets = targets.detach().to_dtype(logits.dtype())?;
    let log_p = log_softmax(logits)?;
    // A class of probability 0 adds 0, even if its logit is −∞.
    let log_p = targets.eq(0.)?.where_cond(&log_p.zeros_like()?, &log_p)?;
    (targets * log_p)?.sum_all()?.neg()
}
