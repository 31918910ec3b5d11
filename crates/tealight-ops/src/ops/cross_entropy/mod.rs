//! Cross-entropy of a softmax, summed over rows; label smoothing as in Szegedy et al. 2015,
//! <https://arxiv.org/abs/1512.00567>.
//!
//! ```text
//! loss = −Σ_rows Σ_c q_c log p_c,   p = softmax(logits)                dlogits = g (p Σ_c q_c − q)
//!
//! q_c = (1 − ε) [c = label] + ε / classes      label smoothing (Szegedy et al. 2015, §7)
//! q   = targets                                soft labels
//! ```
//!
//! As in `torch`, the uniform mass ε goes to all classes, the true one included. The result is the sum,
//! not the mean: dividing once by the number of labels weighs micro-batches and masks of uneven size
//! correctly. Cost: one pass over the logits; no `(n, classes)` memory besides the gradient.

pub(crate) mod cpu;
mod cuda;
pub mod reference;

use candle_core::{DType, Device, Result, Tensor, WithDType, bail};

use crate::autograd::graph::{Saved, fused, record_saving};
use crate::backend::buffer::{View, check_integers, stored, tensor};
use crate::backend::choice::{at_least_f32, dispatch};
use crate::backend::element::Element;
use crate::backend::profile::{Phase, timed};

const NAME: &str = "cross-entropy";

/// The label of a row that carries no loss and no gradient (the value of `torch`).
pub const IGNORE_INDEX: i64 = -100;

/// `logits (n, classes)`, `labels (n)` → scalar: the sum over the rows whose label is not [`IGNORE_INDEX`].
///
/// Labels are of any integer dtype: u8, u32, i16, i32 or i64; unsigned labels cannot be [`IGNORE_INDEX`].
/// Half-precision logits give a loss in f32. The gradient is for the logits.
///
/// # Errors
/// If the shapes do not match, a label is not a class, or `label_smoothing` is not in [0, 1].
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, label_smoothing: f64) -> Result<Tensor> {
    let (n, n_classes) = logits.dims2()?;
    if labels.dims() != [n] {
        bail!(
            "cross-entropy of logits {:?} with labels {:?}: expected (n, classes), (n)",
            logits.shape(),
            labels.shape()
        )
    }
    if !(0. ..=1.).contains(&label_smoothing) {
        bail!("label smoothing {label_smoothing} is not in [0, 1]")
    }
    check_integers("labels", labels)?;
    let classes = || classes(labels, n_classes);
    dispatch!(match [logits] {
        Cpu(T) => {
            let classes = classes()?;
            fused(NAME, [logits], (), Saved::Inputs, |[logits]| {
                let loss = cpu::loss::<T>(logits, &classes, n_classes, label_smoothing);
                (vec![T::from_f64(loss)], move |[logits], _, g| {
                    [cpu::gradient(logits, &classes, n_classes, label_smoothing, g[0])]
                })
            })
        }
        Cuda => cuda::cross_entropy(logits, cuda::Targets::labels(labels, label_smoothing)?),
        Reference => {
            classes()?;
            reference::cross_entropy(&at_least_f32(logits)?, labels, label_smoothing)
        }
    })
}

/// `logits (n, classes)`, `targets (n, classes)` → scalar, the sum over the rows.
///
/// `targets` are probabilities. They are constants: their gradient is not computed. A target of 0 adds 0,
/// even if the logit is −∞.
///
/// # Errors
/// If the shapes do not match.
pub fn cross_entropy_soft(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    if logits.dims2()? != targets.dims2()? {
        bail!(
            "cross-entropy of logits {:?} with targets {:?}: expected the same (n, classes)",
            logits.shape(),
            targets.shape()
        )
    }
    dispatch!(match [logits, targets] {
        Cpu(T) => soft_on_cpu::<T>(logits, targets.detach().contiguous()?),
        Cuda => {
            let targets = cuda::Targets::soft(at_least_f32(&targets.detach())?.contiguous()?);
            cuda::cross_entropy(logits, targets)
        }
        Reference => reference::cross_entropy_soft(&at_least_f32(logits)?, targets),
    })
}

/// `logits (n, classes)`, `labels (n)` → in how many rows the label has the largest logit; of several
/// largest ones the first counts, and [`IGNORE_INDEX`] is never counted. A u32 on the logits' device.
///
/// # Errors
/// As [`cross_entropy`].
pub fn hits(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (n, n_classes) = logits.dims2()?;
    if labels.dims() != [n] {
        bail!(
            "hits of logits {:?} with labels {:?}: expected (n, classes), (n)",
            logits.shape(),
            labels.shape()
        )
    }
    check_integers("labels", labels)?;
    let logits = logits.detach().contiguous()?;
    let classes = || classes(labels, n_classes);
    let logits = &logits;
    dispatch!(match [logits] {
        Cpu(T) => {
            let hits = cpu::hits::<T>(&View::from_tensor(logits)?, &classes()?, n_classes);
            Tensor::new(hits as u32, &Device::Cpu)
        }
        Cuda => cuda::hits(logits, labels),
        Reference => {
            classes()?;
            reference::hits(logits, labels)
        }
    })
}

/// Each row's class; `None` for a row that is ignored.
pub(crate) fn classes(labels: &Tensor, n_classes: usize) -> Result<Vec<Option<usize>>> {
    let class = |label: i64| match usize::try_from(label) {
        _ if label == IGNORE_INDEX => Ok(None),
        Ok(class) if class < n_classes => Ok(Some(class)),
        _ => bail!("label {label} is out of range for {n_classes} classes"),
    };
    check_integers("labels", labels)?;
    labels.to_dtype(DType::I64)?.to_vec1()?.into_iter().map(class).collect()
}

fn soft_on_cpu<T: Element>(logits: &Tensor, targets: Tensor) -> Result<Tensor> {
    let (_, n_classes) = logits.dims2()?;
    let logits = logits.contiguous()?;
    let loss = timed(NAME, Phase::Forward, || {
        Result::Ok(cpu::soft_loss::<T>(
            &View::from_tensor(&logits)?,
            &View::from_tensor(&targets)?,
            n_classes,
        ))
    })?;
    let loss = stored(vec![T::from_f64(loss)], ());
    record_saving(NAME, &[&logits], loss, Saved::Inputs, move |inputs, _, gradient| {
        let (logits, targets) = (View::<T>::from_tensor(&inputs[0])?, View::from_tensor(&targets)?);
        let factor = View::from_tensor(gradient)?[0];
        let dlogits = cpu::soft_gradient(&logits, &targets, n_classes, factor);
        Ok(vec![Some(tensor(dlogits, inputs[0].shape())?)])
    })
}
