//! Muon: steps along an orthogonalised momentum (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>).
//!
//! ```text
//! M ← μ M + G,   N = M, or G + μ M under Nesterov's variant
//! O = NewtonSchulz(N) ≈ U Vᵀ, where N = U S Vᵀ
//! θ ← θ − lr (scale · O + λ θ)
//!
//! NewtonSchulz:   X ← N / ‖N‖, then n times   A = X Xᵀ,   X ← a X + (b A + c A²) X
//! (a, b, c) = (3.4445, −4.7750, 2.0315)
//! ```
//!
//! The polynomial drives singular values towards 1 fast rather than exactly: after five steps they are between
//! about 0.7 and 1.2, except those that were tiny.
//!
//! Cost: three matrix products in each of the n steps, which take 4 s²l + 2 s³ operations for a matrix with a
//! shorter side s and a longer side l. There is no fused loop, as the products take nearly all of the time. The
//! matrices of one shape are a batch.

mod cuda;

use candle_core::{DType, Result, Tensor, Var, bail};

use crate::backend::product_precision::{ProductPrecision, with_product_precision};
use crate::backend::reference_ops;
use crate::ops::matmul::{matmul, matmul_transposed};
use crate::ops::swap_axes::swap_axes;
use crate::optimizers::update::{check_shapes, store, wide};

/// a, b and c.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// Added to ‖N‖, to keep the division finite.
const EPSILON: f64 = 1e-7;

/// Hyper-parameters of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// The step size, schedule included.
    pub lr: f64,
    /// μ: the decay of the momentum.
    pub momentum: f64,
    /// Whether to use Nesterov's variant, N = G + μ M.
    pub nesterov: bool,
    /// n: the number of Newton-Schulz steps.
    pub n_iterations: usize,
    /// The factor of O.
    pub scale: f64,
    /// λ: multiplied by `lr`.
    pub weight_decay: f64,
    /// The factor of every gradient, applied while it is read.
    pub gradient_scale: f64,
}

/// A matrix, its gradient and its momentum, which starts as zeros. All have one shape. A parameter of more axes, such
/// as the kernels `(outputs, rows, columns, inputs)` of a convolution, is read as the matrix `(outputs, all others)`.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// θ.
    pub parameter: &'a Var,
    /// G, which may have half the precision of the parameter.
    pub gradient: &'a Tensor,
    /// M.
    pub momentum: &'a Var,
    /// The hyper-parameters of this matrix.
    pub hyper: Hyper,
}

impl Slot<'_> {
    fn check(&self) -> Result<()> {
        let parameter = self.parameter;
        if parameter.rank() < 2 {
            bail!("muon of a parameter {:?}: expected a matrix", parameter.shape())
        }
        check_shapes("muon", parameter, &[self.gradient, self.momentum])
    }

    /// Rows and columns of the matrix.
    fn shape(&self) -> (usize, usize) {
        let (rows, columns) = self.parameter.dims().split_at(1);
        (rows[0], columns.iter().product())
    }

    /// Whether both can be in one batch.
    fn can_batch_with(&self, other: &Self) -> bool {
        let of = |slot: &Self| {
            let Hyper { momentum, nesterov, n_iterations, gradient_scale, .. } = slot.hyper;
            let dtypes = (slot.parameter.dtype(), slot.gradient.dtype());
            (dtypes, momentum, nesterov, n_iterations, gradient_scale)
        };
        self.parameter.dims() == other.parameter.dims() && of(self) == of(other)
    }
}

/// One update of all `slots`, in place.
///
/// # Errors
/// If shapes differ, or a parameter has fewer than two axes.
pub fn step_all(slots: &[Slot<'_>]) -> Result<()> {
    slots.iter().try_for_each(Slot::check)?;
    let mut remaining = slots.to_vec();
    while let Some(first) = remaining.first().copied() {
        let (batch, others) =
            remaining.into_iter().partition::<Vec<_>, _>(|slot| slot.can_batch_with(&first));
        if !reference_ops::are_forced() && batch.iter().all(cuda::takes) {
            cuda::step(&batch)?;
        } else {
            step_of_one_shape(&batch)?;
        }
        remaining = others;
    }
    Ok(())
}

/// Updates matrices of one shape with the same hyper-parameters, except learning rate, scale and weight decay. A few
/// are orthogonalised at once, so that the threads share their products.
fn step_of_one_shape(slots: &[Slot<'_>]) -> Result<()> {
    /// Elements of matrices that are orthogonalised at once: 16 MiB in f32.
    const AT_ONCE: usize = 1 << 22;
    let Some(first) = slots.first() else { return Ok(()) };
    let (parameter, hyper, shape) = (first.parameter, first.hyper, first.shape());
    let per_batch = (AT_ONCE / parameter.elem_count().max(1)).max(1);
    for slots in slots.chunks(per_batch) {
        let directions = slots.iter().map(|slot| direction(slot)?.reshape(shape));
        let directions = directions.collect::<Result<Vec<_>>>()?;
        let updates = orthogonalized(&Tensor::stack(&directions, 0)?, hyper.n_iterations)?;
        for (i, Slot { parameter, hyper, .. }) in slots.iter().enumerate() {
            let Hyper { lr, scale, weight_decay, .. } = *hyper;
            let step = (updates.get(i)?.reshape(parameter.dims())? * (lr * scale))?;
            store(parameter, &((wide(parameter)? * (1. - lr * weight_decay))? - step)?)?;
        }
    }
    Ok(())
}

/// Updates the momentum M. Returns the direction N.
fn direction(slot: &Slot<'_>) -> Result<Tensor> {
    let Slot { gradient, momentum, hyper, .. } = slot;
    let Hyper { momentum: mu, nesterov, gradient_scale, .. } = *hyper;
    let gradient = (wide(gradient)? * gradient_scale)?;
    let buffer = ((wide(momentum)? * mu)? + &gradient)?;
    store(momentum, &buffer)?;
    if nesterov { gradient + (&buffer * mu)? } else { Ok(buffer) }
}

/// Approximately the nearest matrices whose singular values are all 1: `(n, rows, columns)` → the same shape.
///
/// # Errors
/// If `x` is not a batch of matrices in f32 or f64.
pub fn orthogonalized(x: &Tensor, n_iterations: usize) -> Result<Tensor> {
    let (_n, rows, columns) = x.dims3()?;
    let [a, b, c] = COEFFICIENTS;
    // With rows ≤ columns, A = X Xᵀ has the shorter side.
    let x = if rows > columns { transposed(x)? } else { x.contiguous()? };
    let squares = x.to_dtype(DType::F64)?.sqr()?.flatten_from(1)?.sum_keepdim(1)?; // (n, 1)
    let norm = (squares.sqrt()? + EPSILON)?.to_dtype(x.dtype())?.unsqueeze(1)?;
    let mut x = x.broadcast_div(&norm)?;
    with_product_precision(ProductPrecision::F32, || -> Result<()> {
        for _ in 0..n_iterations {
            let gram = matmul_transposed(&x, &x)?; // A
            let polynomial = ((&gram * b)? + (matmul(&gram, &gram)? * c)?)?;
            x = ((&x * a)? + matmul(&polynomial, &x)?)?;
        }
        Ok(())
    })?;
    if rows > columns { transposed(&x) } else { Ok(x) }
}

/// `(n, rows, columns)` → `(n, columns, rows)`, contiguous
fn transposed(x: &Tensor) -> Result<Tensor> {
    swap_axes(&x.contiguous()?.unsqueeze(3)?)?.squeeze(3)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::rng::{Purpose, Stream};

    fn normal(rows: usize, columns: usize) -> Result<Tensor> {
        let stream = Stream::new(17, Purpose::Task);
        let values = (0..(rows * columns) as u64).map(|i| stream.normal(i)).collect::<Vec<_>>();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu)
    }

    /// The diagonal of O Oᵀ holds means of the squared singular values.
    #[test]
    fn singular_values_come_near_one() -> Result<()> {
        for (rows, columns) in [(7, 23), (23, 7)] {
            let x = normal(rows, columns)?;
            for scale in [1e-3, 1., 1e6] {
                let o = orthogonalized(&(&x * scale)?.unsqueeze(0)?, 5)?.squeeze(0)?;
                assert_eq!(o.dims(), [rows, columns]);
                let gram = if rows < columns { o.matmul(&o.t()?)? } else { o.t()?.matmul(&o)? };
                for (i, row) in gram.to_vec2::<f64>()?.iter().enumerate() {
                    assert!((0.4..1.5).contains(&row[i]), "{}", row[i]);
                }
            }
        }
        Ok(())
    }

    /// A matrix of one row has one singular value, which the polynomial is applied to.
    #[test]
    fn of_a_row_the_length_follows_the_polynomial() -> Result<()> {
        let row = Tensor::new(&[[[3_f64, 0., -4.]]], &Device::Cpu)?;
        let mut length = 5. / (5. + EPSILON);
        for n_iterations in 0..7 {
            let o = orthogonalized(&row, n_iterations)?.to_vec3::<f64>()?;
            for (actual, direction) in o[0][0].iter().zip([0.6, 0., -0.8]) {
                assert!((actual - direction * length).abs() < 1e-12, "{actual}, {length}");
            }
            length = 3.4445 * length - 4.775 * length.powi(3) + 2.0315 * length.powi(5);
        }
        Ok(())
    }

    /// The result of a matrix does not depend on the others of its batch.
    #[test]
    fn matrices_do_not_know_of_each_other() -> Result<()> {
        let (a, b) = (normal(4, 6)?, (normal(4, 6)? * -3.)?);
        let both = orthogonalized(&Tensor::stack(&[&a, &b], 0)?, 5)?;
        for (i, x) in [a, b].into_iter().enumerate() {
            let alone = orthogonalized(&x.unsqueeze(0)?, 5)?.squeeze(0)?;
            assert_eq!(alone.to_vec2::<f64>()?, both.get(i)?.to_vec2::<f64>()?);
        }
        Ok(())
    }

    const HYPER: Hyper = Hyper {
        lr: 0.1,
        momentum: 0.95,
        nesterov: true,
        n_iterations: 5,
        scale: 1.,
        weight_decay: 0.2,
        gradient_scale: 1.,
    };

    /// Kernels `(5, 2, 2, 3)` take the update of the matrix `(5, 12)`.
    #[test]
    fn kernels_of_a_convolution_are_a_matrix() -> Result<()> {
        let (matrix, gradient) = (normal(5, 12)?, (normal(5, 12)? * 0.3)?);
        let updated = |dims: &[usize]| -> Result<Vec<f64>> {
            let parameter = Var::from_tensor(&matrix.reshape(dims)?)?;
            let momentum = Var::zeros(dims, DType::F64, &Device::Cpu)?;
            let gradient = &gradient.reshape(dims)?;
            let slot = Slot { parameter: &parameter, gradient, momentum: &momentum, hyper: HYPER };
            step_all(&[slot, slot])?;
            assert_eq!(parameter.dims(), dims);
            parameter.flatten_all()?.to_vec1()
        };
        assert_eq!(updated(&[5, 2, 2, 3])?, updated(&[5, 12])?);
        Ok(())
    }

    #[test]
    fn a_gradient_of_zero_moves_nothing_and_a_vector_is_refused() -> Result<()> {
        let hyper = Hyper { weight_decay: 0., ..HYPER };
        let parameter = Var::from_tensor(&normal(3, 5)?)?;
        let before = parameter.copy()?;
        let zeros = Var::from_tensor(&parameter.zeros_like()?)?;
        let step = |parameter: &Var, momentum: &Var| {
            let gradient = &parameter.zeros_like()?;
            step_all(&[Slot { parameter, gradient, momentum, hyper }])
        };
        step(&parameter, &zeros)?;
        assert_eq!(parameter.to_vec2::<f64>()?, before.to_vec2::<f64>()?);
        let vector = Var::zeros(3, DType::F64, &Device::Cpu)?;
        assert!(step(&vector, &vector).is_err());
        Ok(())
    }
}
