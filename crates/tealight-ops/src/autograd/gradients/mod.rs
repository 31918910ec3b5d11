//! [`backward`] and its result, [`Gradients`]: one per parameter, by name, in the order of the parameters.
//!
//! All functions run the same backward pass. They differ in the factor that the loss is multiplied by, and in when
//! gradients can be read:
//!
//! ```text
//! backward(loss, ..)                   ∂loss / ∂θ
//! backward_scaled(loss, factor, ..)    factor · ∂loss / ∂θ      factor is an f64, e.g. 1 / number of tokens
//! backward_weighted(loss, factor, ..)  factor · ∂loss / ∂θ      factor is a tensor on the loss's device
//! backward_observed(loss, factor, ..)  as backward_scaled       each gradient as soon as it is final, too
//! ```
//!
//! The factor is the gradient that the pass starts with. A mean is thus trained as its sum, scaled, without
//! another pass over all gradients. A tensor as the factor can change between replays of a CUDA graph, and
//! needs no synchronisation.
//!
//! Clipping by the global norm follows Pascanu et al. 2013, <https://arxiv.org/abs/1211.5063>:
//!
//! ```text
//! g ← g · min(1, max_norm / (‖g‖ + 10⁻⁶))
//! ```

mod cuda;
mod in_order;
mod observed;

use std::fmt;

use candle_core::{DType, Device, Result, Tensor, TensorId, WithDType, bail};

pub use self::in_order::{sum_in_order, sum_in_order_into};
pub use self::observed::backward_observed;
use crate::autograd::graph::walk;
use crate::backend::buffer::{View, contiguous, tensor};
use crate::backend::choice::{Backend, at_least_f32, dispatch};
use crate::backend::cuda::sums;
use crate::backend::element::Element;
use crate::backend::parallel::{self, block_len, by_blocks};

/// The gradient of `loss` (a single number) with respect to each named parameter.
///
/// A parameter that the loss does not depend on has an entry without a gradient, which [`Gradients::audit`]
/// reports.
///
/// # Errors
/// If `loss` has more than one element, if an operation has no backward, or if a backward has run over this
/// graph before: it frees the saved tensors.
pub fn backward<'a>(
    loss: &Tensor,
    parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Gradients> {
    backward_scaled(loss, 1., parameters)
}

/// [`backward`] of `factor · loss`.
///
/// # Errors
/// As [`backward`].
pub fn backward_scaled<'a>(
    loss: &Tensor,
    factor: f64,
    parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Gradients> {
    backward_weighted(loss, &(loss.ones_like()? * factor)?, parameters)
}

/// [`backward`] of `factor · loss`, where `factor` is a tensor with the shape, dtype and device of `loss`.
///
/// # Errors
/// As [`backward`]; and if `factor` has another shape or dtype than `loss`.
pub fn backward_weighted<'a>(
    loss: &Tensor,
    factor: &Tensor,
    parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Gradients> {
    check(loss, factor)?;
    let gradients = walk::gradients(loss, factor)?;
    Ok(Gradients::collect(parameters, |variable| gradients.get(&variable).cloned()))
}

/// Whether a backward pass can start from `loss` and `factor`.
fn check(loss: &Tensor, factor: &Tensor) -> Result<()> {
    if loss.elem_count() != 1 {
        bail!("the gradient of a loss of shape {:?}: expected a single number", loss.shape())
    }
    if (loss.shape(), loss.dtype()) != (factor.shape(), factor.dtype()) {
        let shapes = (loss.shape(), factor.shape());
        bail!("the gradient of a loss and a factor of shapes {shapes:?}: expected the same")
    }
    Ok(())
}

/// The gradient of every parameter, or `None`, in the order of the parameters.
#[derive(Clone, Debug)]
pub struct Gradients {
    entries: Vec<(String, Option<Tensor>)>,
}

impl Gradients {
    /// The gradients that `gradient` has for `parameters`.
    fn collect<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
        gradient: impl Fn(TensorId) -> Option<Tensor>,
    ) -> Self {
        let entry =
            |(name, parameter): (&str, &Tensor)| (name.to_owned(), gradient(parameter.id()));
        Self { entries: parameters.into_iter().map(entry).collect() }
    }

    /// Name and gradient of every parameter; `None` if the loss does not depend on it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&Tensor>)> {
        self.entries.iter().map(|(name, gradient)| (name.as_str(), gradient.as_ref()))
    }

    /// The gradient of the parameter at `index`; `None` if there is no such parameter, or no gradient for it.
    pub fn at(&self, index: usize) -> Option<&Tensor> {
        self.entries.get(index)?.1.as_ref()
    }

    /// The gradient of one parameter; `None` if there is no such parameter, or no gradient for it.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find(|(other, _)| *other == name)?.1
    }

    /// Adds the gradients of another micro-batch, at least in f32; a missing gradient counts as zero.
    ///
    /// # Errors
    /// If `other` has other parameters.
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        if !self.iter().map(|(name, _)| name).eq(other.iter().map(|(name, _)| name)) {
            bail!("accumulating the gradients of different parameters")
        }
        for ((_, sum), (_, term)) in self.entries.iter_mut().zip(other.entries) {
            *sum = sum_of(sum.take(), term)?;
        }
        Ok(())
    }

    /// The sum with the gradients of another micro-batch; see [`Self::accumulate`].
    ///
    /// # Errors
    /// If `other` has other parameters.
    pub fn plus(mut self, other: Self) -> Result<Self> {
        self.accumulate(other)?;
        Ok(self)
    }

    /// Multiplies every gradient by `factor`.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        let mut all: Vec<_> = self.entries.iter_mut().filter_map(|(_, g)| g.as_mut()).collect();
        // On a GPU, one kernel for many gradients of one dtype.
        for like in all.chunk_by_mut(|a, b| a.dtype() == b.dtype()) {
            let contiguous =
                contiguous(&like.iter().map(|gradient| &**gradient).collect::<Vec<_>>())?;
            let operands: Vec<_> = contiguous.iter().collect();
            if Backend::from_operands(&operands) == Backend::Cuda {
                for (gradient, scaled) in like.iter_mut().zip(cuda::scaled(&operands, factor)?) {
                    **gradient = scaled;
                }
            } else {
                for (gradient, contiguous) in like.iter_mut().zip(&contiguous) {
                    **gradient = scaled(contiguous, factor)?;
                }
            }
        }
        Ok(())
    }

    /// The sum of the squares of each gradient, accumulated in f64; `None` where there is no gradient. Each sum depends
    /// on its gradient alone. Synchronises with the GPU.
    pub fn sums_of_squares(&self) -> Result<Vec<Option<f64>>> {
        let mut sums = vec![None; self.entries.len()];
        let all: Vec<_> =
            self.iter().enumerate().filter_map(|(i, (_, gradient))| Some((i, gradient?))).collect();
        for like in all.chunk_by(|(_, a), (_, b)| a.dtype() == b.dtype()) {
            let contiguous = contiguous(&like.iter().map(|(_, x)| *x).collect::<Vec<_>>())?;
            let operands: Vec<_> = contiguous.iter().collect();
            let of_like = if Backend::from_operands(&operands) == Backend::Cuda {
                sums::of_squares(&operands)?
            } else {
                operands.into_iter().map(sum_of_squares).collect::<Result<_>>()?
            };
            for ((index, _), sum) in like.iter().zip(of_like) {
                sums[*index] = Some(sum);
            }
        }
        Ok(sums)
    }

    /// The Euclidean norm of all gradients together, accumulated in f64, in the order of the parameters. Synchronises
    /// with the GPU.
    pub fn norm(&self) -> Result<f64> {
        Ok(self.sums_of_squares()?.into_iter().flatten().sum::<f64>().sqrt())
    }

    /// Scales all gradients so that their norm is at most `max_norm`; returns the norm before.
    ///
    /// As `torch.nn.utils.clip_grad_norm_`, except that gradients whose norm is not finite are left unchanged:
    /// scaling would turn all of them to NaN or to zero.
    pub fn clip(&mut self, max_norm: f64) -> Result<f64> {
        let norm = self.norm()?;
        let factor = clip_factor(norm, max_norm);
        if factor < 1. {
            self.scale(factor)?;
        }
        Ok(norm)
    }

    /// The parameters whose gradient is missing, all zeros or not finite, in the order of the parameters.
    pub fn audit(&self) -> Result<Vec<GradientFault>> {
        let mut faults = Vec::new();
        for (name, gradient) in self.iter() {
            if let Some(kind) = fault(gradient)? {
                faults.push(GradientFault { name: name.to_owned(), kind });
            }
        }
        Ok(faults)
    }
}

impl FromIterator<(String, Option<Tensor>)> for Gradients {
    fn from_iter<I: IntoIterator<Item = (String, Option<Tensor>)>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}

/// The sum of the gradients of two micro-batches, at least in f32; a missing gradient counts as zero.
///
/// # Errors
/// If their shapes differ.
pub fn sum_of(left: Option<Tensor>, right: Option<Tensor>) -> Result<Option<Tensor>> {
    Ok(match (left, right) {
        // Half precision would lose small terms of a long sum.
        (Some(left), Some(right)) => Some((at_least_f32(&left)? + at_least_f32(&right)?)?),
        (left, right) => left.or(right),
    })
}

/// The factor, at most 1, that clips gradients of this norm; 1 if the norm is not finite. An optimizer that
/// multiplies by it while it reads the gradients saves a pass over them.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    let factor = max_norm / (norm + 1e-6);
    if norm.is_finite() { factor.min(1.) } else { 1. }
}

/// `factor` times a contiguous gradient.
fn scaled(gradient: &Tensor, factor: f64) -> Result<Tensor> {
    dispatch!(match [gradient] {
        Cpu(T) => {
            let scaled = products::<T>(&View::from_tensor(gradient)?, T::from_f64(factor));
            tensor(scaled, gradient.shape())
        }
        Cuda | Reference => gradient * factor,
    })
}

/// factor · g
fn products<T: Element>(gradient: &[T], factor: T) -> Vec<T> {
    let len = block_len(1);
    by_blocks(
        (gradient, len),
        (gradient, len),
        #[inline(always)]
        |products, gradient, _| {
            for (product, &g) in products.iter_mut().zip(gradient) {
                *product = g * factor;
            }
        },
    )
}

fn sum_of_squares(gradient: &Tensor) -> Result<f64> {
    dispatch!(match [gradient] {
        Cpu(T) => Ok(parallel::sum_of_squares::<T>(&View::from_tensor(gradient)?)),
        // In f32: not all devices can add in f64.
        Cuda | Reference => {
            gradient.to_dtype(DType::F32)?.sqr()?.sum_all()?.to_scalar::<f32>().map(f64::from)
        }
    })
}

fn fault(gradient: Option<&Tensor>) -> Result<Option<FaultKind>> {
    let Some(gradient) = gradient else { return Ok(Some(FaultKind::Missing)) };
    let values = gradient.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?;
    let values = values.to_vec1::<f64>()?;
    Ok(if !values.iter().all(|g| g.is_finite()) {
        Some(FaultKind::NotFinite)
    } else if values.iter().all(|&g| g == 0.) {
        Some(FaultKind::Zero)
    } else {
        None
    })
}

/// A parameter with a faulty gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GradientFault {
    /// The parameter's name.
    pub name: String,
    /// What is wrong with its gradient.
    pub kind: FaultKind,
}

/// What is wrong with a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The gradient is missing: the loss does not depend on the parameter, or a tensor in between is detached.
    Missing,
    /// Every element is zero.
    Zero,
    /// Some element is infinite or not a number.
    NotFinite,
}

impl fmt::Display for GradientFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::Missing => "has no gradient",
            FaultKind::Zero => "has a gradient of zero everywhere",
            FaultKind::NotFinite => "has a gradient that is not finite",
        };
        write!(f, "`{}` {what}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    const ERROR: f64 = 1e-6;

    fn var(values: &[f32]) -> Result<Var> {
        Var::new(values, &Device::Cpu)
    }

    /// loss = 3 Σ a + 4 b, so the gradient is 3 for each a, and 4.
    fn three_and_four(a: &Var, b: &Var) -> Result<Gradients> {
        let loss = ((a.sum_all()? * 3.)? + (b.sum_all()? * 4.)?)?;
        backward(&loss, [("b", b.as_tensor()), ("a", a.as_tensor())])
    }

    fn values(gradients: &Gradients, name: &str) -> Result<Vec<f32>> {
        gradients.get(name).expect("a gradient").to_vec1()
    }

    #[test]
    fn gradients_come_in_the_order_of_the_parameters() -> Result<()> {
        let gradients = three_and_four(&var(&[1., 2.])?, &var(&[5.])?)?;
        assert_eq!(gradients.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(values(&gradients, "a")?, [3., 3.]);
        assert_eq!(values(&gradients, "b")?, [4.]);
        assert!(gradients.get("c").is_none());
        Ok(())
    }

    #[test]
    fn clipping_scales_to_the_norm_and_gives_the_one_before() -> Result<()> {
        let mut gradients = three_and_four(&var(&[1.])?, &var(&[5.])?)?;
        assert_eq!(gradients.clip(10.)?, 5.);
        assert_eq!(values(&gradients, "a")?, [3.]);
        assert_eq!(gradients.clip(1.)?, 5.);
        assert!((gradients.norm()? - 1.).abs() < ERROR);
        Ok(())
    }

    #[test]
    fn clipping_leaves_gradients_alone_when_the_norm_is_infinite() -> Result<()> {
        let (a, b) = (var(&[1., 2.])?, var(&[5.])?);
        let loss = ((&a.sum_all()? * f64::INFINITY)? + b.sum_all()?)?;
        let mut gradients = backward(&loss, [("a", a.as_tensor()), ("b", b.as_tensor())])?;
        assert!(!gradients.clip(1.)?.is_finite());
        assert_eq!(values(&gradients, "b")?, [1.]);
        Ok(())
    }

    #[test]
    fn accumulation_adds_and_takes_absence_as_zero() -> Result<()> {
        let (a, b) = (var(&[1., 2.])?, var(&[5.])?);
        let parameters = || [("b", b.as_tensor()), ("a", a.as_tensor())];
        let mut gradients = backward(&a.sum_all()?, parameters())?;
        gradients.accumulate(three_and_four(&a, &b)?)?;
        assert_eq!(values(&gradients, "a")?, [4., 4.]);
        assert_eq!(values(&gradients, "b")?, [4.]);
        let other = backward(&a.sum_all()?, [("a", a.as_tensor())])?;
        assert!(gradients.accumulate(other).is_err());
        Ok(())
    }

    #[test]
    fn the_audit_names_every_fault() -> Result<()> {
        let (fine, missing, zero, infinite) = (var(&[1.])?, var(&[1.])?, var(&[1.])?, var(&[0.])?);
        let loss = (((fine.sum_all()? + (zero.as_tensor() * &zero.zeros_like()?)?.sum_all()?)?)
            + infinite.log()?.sum_all()?)?;
        let named =
            [("fine", &fine), ("missing", &missing), ("zero", &zero), ("infinite", &infinite)];
        let gradients = backward(&loss, named.map(|(name, var)| (name, var.as_tensor())))?;
        let faults = gradients.audit()?;
        let kinds: Vec<_> = faults.iter().map(|fault| (fault.name.as_str(), fault.kind)).collect();
        assert_eq!(
            kinds,
            [
                ("missing", FaultKind::Missing),
                ("zero", FaultKind::Zero),
                ("infinite", FaultKind::NotFinite),
            ]
        );
        assert_eq!(faults[0].to_string(), "`missing` has no gradient");
        Ok(())
    }

    #[test]
    fn a_loss_is_a_single_number() -> Result<()> {
        let a = var(&[1., 2.])?;
        let error = backward(&a, [("a", a.as_tensor())]).expect_err("two numbers").to_string();
        assert!(error.contains("[2]"), "{error}");
        Ok(())
    }
}
