//! The cross-entropy of the logits of a linear map, in chunks of rows. With a vocabulary of thousands the
//! logits would be the largest tensor of a language model; here they are never held all at once.
//!
//! ```text
//! logits = x Wᵀ + b,   loss = Σ_rows cross-entropy(logits, label)          see `cross_entropy`
//!
//! d = dloss / dlogits,   dx = d W,   dW = dᵀ x,   db = Σ d                          Σ over the rows
//! ```
//!
//! The forward also computes the gradients, while a chunk's logits exist, and keeps them for the backward, which scales
//! them. If there are more rows than features, they take less memory than the logits would. Cost: that of
//! [`linear`](mod@crate::ops::linear), forward and backward, and one pass over the logits.

mod cpu;
pub mod reference;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::buffer::{self, contiguous, stored};
use crate::backend::choice::dispatch;
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::vector::Lanes;
use crate::ops::cross_entropy::{classes, cross_entropy, hits};
use crate::ops::linear::{Map, linear};
use cpu::Targets;

const NAME: &str = "linear cross-entropy";

/// The cost of labels under a model.
#[derive(Clone, Debug)]
pub struct Scored {
    /// The sum over the rows that have a label.
    pub loss: Tensor,
    /// In how many rows the label has the largest logit, as [`hits`] counts them.
    pub hits: Tensor,
}

/// `x (n, in)`, a map to one output per class, `labels (n)` → the sum over the rows whose label is not
/// [`IGNORE_INDEX`](crate::ops::cross_entropy::IGNORE_INDEX).
///
/// The same as [`linear()`], [`cross_entropy()`] and [`hits`], one after the other.
///
/// # Errors
/// As for these.
pub fn linear_cross_entropy(
    x: &Tensor,
    map: Map<'_>,
    labels: &Tensor,
    label_smoothing: f64,
) -> Result<Scored> {
    let Map { weight, bias } = map;
    let ((n, width), (n_classes, n_inputs)) = (x.dims2()?, weight.dims2()?);
    let fits = bias.is_none_or(|bias| bias.dims() == [n_classes]);
    if width != n_inputs || labels.dims() != [n] || !fits {
        let (x, labels) = (x.shape(), labels.shape());
        bail!(
            "linear cross-entropy of x {x:?}, {map:?}, labels {labels:?}: expected x (n, in), \
             weight (classes, in), bias (classes), labels (n)"
        )
    }
    if !(0. ..=1.).contains(&label_smoothing) {
        bail!("label smoothing {label_smoothing} is not in [0, 1]")
    }
    let operands: Vec<_> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
    let targets =
        || Result::Ok(Targets { classes: classes(labels, n_classes)?, n_classes, label_smoothing });
    dispatch!(match operands {
        Cpu(T) => on_cpu::<T>(&operands, &targets()?),
        Cuda => composed(x, map, labels, label_smoothing),
        Reference => {
            targets()?;
            reference::linear_cross_entropy(x, map, labels, label_smoothing)
        }
    })
}

/// As separate operations.
fn composed(x: &Tensor, map: Map<'_>, labels: &Tensor, label_smoothing: f64) -> Result<Scored> {
    let logits = linear(x, map.weight, map.bias)?;
    let hits = hits(&logits, labels)?;
    Ok(Scored { loss: cross_entropy(&logits, labels, label_smoothing)?, hits })
}

/// `operands`: x, W and b (if there is one). Computes the gradients that are needed at once, for a loss
/// whose gradient is 1.
fn on_cpu<T: Lanes>(operands: &[&Tensor], targets: &Targets) -> Result<Scored> {
    let inputs = contiguous(operands)?;
    let is_needed: Vec<_> = inputs.iter().map(Tensor::track_op).collect();
    let map = Map { weight: &inputs[1], bias: inputs.get(2) };
    let cpu::Outcome { loss, hits, gradients } =
        timed(NAME, Phase::Forward, || cpu::run::<T>(&inputs[0], map, targets, &is_needed))?;
    let loss = stored(vec![T::from_f64(loss)], ());
    let loss = record_saving(NAME, &inputs, loss, Saved::Nothing, move |inputs, _, gradient| {
        let factor = T::from_f64(gradient.to_dtype(DType::F64)?.to_scalar()?);
        let scaled = gradients.into_iter().map(|gradient| {
            let mut gradient = gradient?;
            cpu::scale(&mut gradient, factor);
            Some(gradient)
        });
        buffer::gradients(scaled, inputs)
    })?;
    Ok(Scored { loss, hits: Tensor::new(hits as u32, &Device::Cpu)? })
}
