//! Muon: a momentum, made orthogonal (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>).
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
//! The polynomial drives singular values towards 1 fast rather than exactly: after five steps they lie
//! between about 0.7 and 1.2, but for those that were tiny.
//!
//! Cost: for each of the n steps, three products of matrices; of `(rows, columns)` with the
//! shorter side s and the longer one l, 4 s²l + 2 s³ operations. There is no fused loop: the products
//! are all of it.

use candle_core::{D, DType, Result, Tensor, Var, bail};

/// a, b and c.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// Keeps the first division finite.
const EPSILON: f64 = 1e-7;

/// Hyper-parameters of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// The step size, schedule included.
    pub lr: f64,
    /// μ: how much of the momentum is kept.
    pub momentum: f64,
    /// Nesterov's variant: the gradient counts as if the momentum's step had been taken already.
    pub nesterov: bool,
    /// n: steps of Newton and Schulz.
    pub n_iterations: usize,
    /// What the orthogonal matrix is multiplied by.
    pub scale: f64,
    /// λ: multiplied by `lr`.
    pub weight_decay: f64,
}

/// One update of a matrix and its momentum, in place.
///
/// All three tensors are `(rows, columns)`, and the momentum starts as zeros.
///
/// # Errors
/// If a shape differs, or the parameter is no matrix.
pub fn step(parameter: &Var, gradient: &Tensor, momentum: &Var, hyper: &Hyper) -> Result<()> {
    for operand in [gradient, momentum] {
        if operand.dims() != parameter.dims() || parameter.rank() != 2 {
            bail!("muon of a parameter {:?} with {:?}", parameter.shape(), operand.shape())
        }
    }
    let Hyper { lr, momentum: mu, nesterov, n_iterations, scale, weight_decay } = *hyper;
    let gradient = wide(gradient)?;
    let buffer = ((wide(momentum)? * mu)? + &gradient)?;
    let direction = if nesterov { (gradient + (&buffer * mu)?)? } else { buffer.clone() };
    let update = orthogonalized(&direction, n_iterations)?;
    let theta = ((wide(parameter)? * (1. - lr * weight_decay))? - (update * (lr * scale))?)?;
    momentum.set(&buffer.to_dtype(momentum.dtype())?)?;
    parameter.set(&theta.to_dtype(parameter.dtype())?)
}

/// The nearest matrix whose singular values are 1, roughly: `(rows, columns)` → the same.
///
/// # Errors
/// If `x` is no matrix of floats.
pub fn orthogonalized(x: &Tensor, n_iterations: usize) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    let [a, b, c] = COEFFICIENTS;
    // A is as small as it can be.
    let x = if rows > columns { x.t()? } else { x.clone() }.contiguous()?;
    let norm = (x.to_dtype(DType::F64)?.sqr()?.sum_all()?.sqrt()? + EPSILON)?;
    let mut x = x.broadcast_div(&norm.to_dtype(x.dtype())?)?;
    for _ in 0..n_iterations {
        let gram = x.matmul(&x.t()?)?; // A
        let polynomial = ((&gram * b)? + (gram.matmul(&gram)? * c)?)?;
        x = ((&x * a)? + polynomial.matmul(&x)?)?;
    }
    if rows > columns { x.transpose(D::Minus2, D::Minus1)?.contiguous() } else { Ok(x) }
}

fn wide(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::F64 { Ok(x.detach()) } else { x.detach().to_dtype(DType::F32) }
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
                let o = orthogonalized(&(&x * scale)?, 5)?;
                assert_eq!(o.dims(), [rows, columns]);
                let gram = if rows < columns { o.matmul(&o.t()?)? } else { o.t()?.matmul(&o)? };
                for (i, row) in gram.to_vec2::<f64>()?.iter().enumerate() {
                    assert!((0.4..1.5).contains(&row[i]), "{}", row[i]);
                }
            }
        }
        Ok(())
    }

    /// With one row there is one singular value, and the polynomial is one of a number.
    #[test]
    fn of_a_row_the_length_follows_the_polynomial() -> Result<()> {
        let row = Tensor::new(&[[3_f64, 0., -4.]], &Device::Cpu)?;
        let mut length = 5. / (5. + EPSILON);
        for n_iterations in 0..7 {
            let o = orthogonalized(&row, n_iterations)?.to_vec2::<f64>()?;
            for (actual, direction) in o[0].iter().zip([0.6, 0., -0.8]) {
                assert!((actual - direction * length).abs() < 1e-12, "{actual}, {length}");
            }
            length = 3.4445 * length - 4.775 * length.powi(3) + 2.0315 * length.powi(5);
        }
        Ok(())
    }

    #[test]
    fn a_gradient_of_zero_moves_nothing_and_a_vector_is_refused() -> Result<()> {
        let hyper = Hyper {
            lr: 0.1,
            momentum: 0.95,
            nesterov: true,
            n_iterations: 5,
            scale: 1.,
            weight_decay: 0.,
        };
        let parameter = Var::from_tensor(&normal(3, 5)?)?;
        let before = parameter.copy()?;
        let zeros = Var::from_tensor(&parameter.zeros_like()?)?;
        step(&parameter, &zeros.copy()?, &zeros, &hyper)?;
        assert_eq!(parameter.to_vec2::<f64>()?, before.to_vec2::<f64>()?);
        let vector = Var::zeros(3, DType::F64, &Device::Cpu)?;
        assert!(step(&vector, &vector.copy()?, &vector, &hyper).is_err());
        Ok(())
    }
}
