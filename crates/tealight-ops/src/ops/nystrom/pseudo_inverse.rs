//! The inverse of a matrix of weights, by iteration.

mod cuda;

use candle_core::{D, Result, Tensor, bail};

use super::normalisation::{Normalisation, Start};
use super::reference;
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::buffer::{View, tensor};
use crate::backend::choice::{Backend, dispatch, widened};
use crate::backend::element::Element;
use crate::backend::product_precision::{ProductPrecision, with_product_precision};
use crate::backend::profile::{Phase, timed};
use crate::ops::matmul::{matmul, matmul_transposed};

const NAME: &str = "pseudo-inverse";

/// `a (.., m, m)`, whose rows are not negative and sum to 1 → `(.., m, m)`, approximately its Moore–Penrose
/// inverse (Xiong et al. 2021, eq. (11); Razavi et al. 2014).
///
/// ```text
/// Z₀    = Aᵀ / (‖A‖₁ ‖A‖∞) = Aᵀ / s,     s = max over the columns of their sums, as ‖A‖∞ = 1
/// Z_k+1 = ¼ Z_k (13 I − A Z_k (15 I − A Z_k (7 I − A Z_k)))
/// ```
///
/// A step maps an eigenvalue x of A Z to 1 − (1 − x)³ (4 − x) / 4. All eigenvalues of A Z₀ are in [0, 1], and stay
/// there. Small ones grow by 13/4 per step, and so does the rounding error of eigenvalues that should be 0: after n
/// steps it is about (13/4)ⁿ times the precision of the dtype. In f32 it is 10⁻⁴ after 6 steps, and larger than the
/// result after 14, however well A is conditioned.
///
/// The gradient passes through the maximum, and equal sums share it. The backward saves only A and repeats
/// the iteration.
///
/// Cost: O(m³·`n_iterations`) time per matrix.
///
/// # Errors
/// If the matrices are not square.
pub fn pseudo_inverse(
    a: &Tensor,
    n_iterations: usize,
    normalisation: Normalisation,
) -> Result<Tensor> {
    if a.dim(D::Minus1)? != a.dim(D::Minus2)? {
        bail!("the inverse of {:?}: the matrices are not square", a.shape())
    }
    let iteration = Iteration { n_iterations, normalisation };
    let by_loops = || timed(NAME, Phase::Forward, || of_products(a, iteration));
    match Backend::from_operands(&[a]) {
        Backend::CpuF32 => by_loops(),
        #[cfg(feature = "f64")]
        Backend::CpuF64 => by_loops(),
        Backend::Cuda => widened(a, |a| of_products(a, iteration)),
        Backend::Reference => {
            widened(a, |a| reference::pseudo_inverse(a, n_iterations, normalisation))
        }
    }
}

/// Computes the inverse with the products of this crate, and records one operation for all of them.
fn of_products(a: &Tensor, iteration: Iteration) -> Result<Tensor> {
    let a = a.contiguous()?;
    let inverse = iteration.inverse(&a.detach())?;
    let (storage, _) = inverse.storage_and_layout();
    let value = (storage.try_clone(inverse.layout())?, a.shape().clone());
    drop(storage);
    record_saving(NAME, &[&a], value, Saved::Inputs, move |inputs, _, gradient| {
        Ok(vec![Some(iteration.gradient(&inputs[0], gradient)?)])
    })
}

#[derive(Clone, Copy)]
struct Iteration {
    n_iterations: usize,
    normalisation: Normalisation,
}

impl Iteration {
    fn inverse(self, a: &Tensor) -> Result<Tensor> {
        // The steps amplify rounding errors.
        with_product_precision(ProductPrecision::F32, || {
            let Start { mut z, .. } = self.normalisation.start(a)?;
            for _ in 0..self.n_iterations {
                z = Step::from(a, z)?.result()?;
            }
            z.contiguous()
        })
    }

    fn gradient(self, a: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        with_product_precision(ProductPrecision::F32, || self.exact_gradient(a, gradient))
    }

    fn exact_gradient(self, a: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let a = a.detach(); // so that no graph of the backward is recorded
        let start = self.normalisation.start(&a)?;
        let mut steps = Vec::with_capacity(self.n_iterations);
        let mut z = start.z.clone();
        for _ in 0..self.n_iterations {
            let step = Step::from(&a, z)?;
            z = step.result()?;
            steps.push(step);
        }
        let (mut dz, mut da) = (gradient.contiguous()?, a.zeros_like()?);
        for step in steps.iter().rev() {
            (dz, da) = step.backward(&a, &dz, da)?;
        }
        start.gradient(&dz, &da)
    }
}

/// One step of the iteration.
struct Step {
    /// Z
    z: Tensor,
    /// X = A Z
    x: Tensor,
    /// 7 I − X
    inner: Tensor,
    /// 15 I − X inner
    middle: Tensor,
    /// ¼ (13 I − X middle): multiplying by a power of two is exact
    outer: Tensor,
}

impl Step {
    fn from(a: &Tensor, z: Tensor) -> Result<Self> {
        let x = matmul(a, &z)?;
        let inner = multiple_minus(7., &x, 1.)?;
        let middle = multiple_minus(15., &matmul(&x, &inner)?, 1.)?;
        let outer = multiple_minus(13., &matmul(&x, &middle)?, 0.25)?;
        Ok(Self { z, x, inner, middle, outer })
    }

    fn result(&self) -> Result<Tensor> {
        matmul(&self.z, &self.outer)
    }

    /// The gradients of Z and of A, from the gradient of the result and the gradient of A so far.
    fn backward(&self, a: &Tensor, gradient: &Tensor, da: Tensor) -> Result<(Tensor, Tensor)> {
        let dz = matmul_transposed(gradient, &self.outer)?;
        let douter = (transposed_matmul(&self.z, gradient)? * 0.25)?;
        let dmiddle = transposed_matmul(&self.x, &douter)?.neg()?;
        let dinner = transposed_matmul(&self.x, &dmiddle)?.neg()?;
        let dx = (matmul_transposed(&douter, &self.middle)?
            + matmul_transposed(&dmiddle, &self.inner)?)?;
        let dx = (dx + dinner)?.neg()?;
        let dz = (dz + transposed_matmul(a, &dx)?)?;
        Ok((dz, (da + matmul_transposed(&dx, &self.z)?)?))
    }
}

/// scale (multiple · I − x) for `x (.., m, m)`
fn multiple_minus(multiple: f64, x: &Tensor, scale: f64) -> Result<Tensor> {
    dispatch!(match [x] {
        Cpu(T) => multiple_minus_on_cpu::<T>(multiple, x, scale),
        Cuda => cuda::multiple_minus(multiple, x, scale),
        Reference => {
            let identity = Tensor::eye(x.dim(D::Minus1)?, x.dtype(), x.device())?;
            (identity * multiple)?.broadcast_sub(x)? * scale
        }
    })
}

fn multiple_minus_on_cpu<T: Element>(multiple: f64, x: &Tensor, scale: f64) -> Result<Tensor> {
    let (m, x) = (x.dim(D::Minus1)?, x.contiguous()?);
    let (multiple, scale) = (T::from_f64(multiple), T::from_f64(scale));
    let at = |(i, &x): (usize, &T)| {
        let (row, column) = (i / m % m, i % m);
        scale * (if row == column { multiple - x } else { T::ZERO - x })
    };
    tensor(View::<T>::from_tensor(&x)?.iter().enumerate().map(at).collect(), x.shape())
}

/// Aᵀ B of `a (.., k, m)` and `b (.., k, n)`
fn transposed_matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match Backend::from_operands(&[a, b]) {
        Backend::Cuda => cuda::transposed_matmul(a, b),
        _ => matmul(&a.t()?, b),
    }
}

impl Start {
    /// The gradient of A, from the gradient of Z₀ and the gradient of A so far.
    fn gradient(&self, dz: &Tensor, da: &Tensor) -> Result<Tensor> {
        if Backend::from_operands(&[dz, da]) == Backend::Cuda {
            return cuda::gradient(self, dz, da);
        }
        // Z₀ = Aᵀ / s:  ds = −Σ dZ₀ ⊙ Z₀ / s, passed to the columns whose sum is s.
        let dscale = self.normalisation.total(&(dz * &self.z)?.neg()?)?.div(&self.scale)?;
        let dcolumns = self.shares.broadcast_mul(&dscale)?;
        let da = (da + dz.t()?.broadcast_div(&self.scale)?)?;
        da.broadcast_add(&dcolumns)
    }
}

impl Normalisation {
    /// The start for `a (.., m, m)`, which is detached.
    fn start(self, a: &Tensor) -> Result<Start> {
        if Backend::from_operands(&[a]) == Backend::Cuda {
            return cuda::start(self, a);
        }
        self.in_operations(a)
    }
}
