//! The orthogonalisation of Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>).
//!
//! ```text
//! X ← N / ‖N‖, then n times   A = X Xᵀ,   X ← a X + (b A + c A²) X
//! or, with more rows than columns,   A = Xᵀ X,   X ← a X + X (b A + c A²)
//! (a, b, c) = (3.4445, −4.7750, 2.0315)
//! ```
//!
//! The polynomial drives singular values towards 1 fast rather than exactly: after five steps they are between about
//! 0.7 and 1.2, except values that were tiny.
//!
//! Cost: in each of the n steps 4 s²l + 2 s³ operations for a matrix with a shorter side s and a longer side l. On a
//! CPU about 3 s²l + s³: A and A² are symmetric, so one half is computed and copied to the other.
//!
//! On a CPU, the operands of products in f32 are rounded to bf16 if
//! [`with_product_precision`](crate::backend::product_precision::with_product_precision) asks for it. The authors' code
//! has all of X in bf16.

pub(super) mod cpu;
mod reference;

use candle_core::{Result, Tensor};

use crate::backend::buffer::{View, tensor};
use crate::backend::choice::dispatch;

/// a, b and c.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// Added to ‖N‖, to keep the division finite.
const EPSILON: f64 = 1e-7;

/// Approximately the nearest matrices whose singular values are all 1: `(n, rows, columns)` → the same shape.
///
/// # Errors
/// If `x` is not a batch of matrices in f32 or f64.
pub fn orthogonalised(x: &Tensor, n_iterations: usize) -> Result<Tensor> {
    let (_n, rows, columns) = x.dims3()?;
    dispatch!(match [x] {
        Cpu(T) => {
            let x = x.contiguous()?;
            let y = cpu::orthogonalised::<T>(
                View::from_tensor(&x)?.to_vec(),
                (rows, columns),
                n_iterations,
            );
            tensor(y, x.shape())
        }
        Cuda | Reference => reference::orthogonalised(x, n_iterations),
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::backend::product_precision::{ProductPrecision, with_product_precision};
    use crate::backend::reference_ops::with_reference_ops;
    use crate::bf16_instructions;
    use crate::optimizers::muon::tests::normal;

    /// The diagonal of O Oᵀ holds means of the squared singular values.
    #[test]
    fn singular_values_come_near_one() -> Result<()> {
        for (rows, columns) in [(7, 23), (23, 7)] {
            let x = normal(rows, columns)?;
            for scale in [1e-3, 1., 1e6] {
                let o = orthogonalised(&(&x * scale)?.unsqueeze(0)?, 5)?.squeeze(0)?;
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
            let o = orthogonalised(&row, n_iterations)?.to_vec3::<f64>()?;
            for (actual, direction) in o[0][0].iter().zip([0.6, 0., -0.8]) {
                assert!((actual - direction * length).abs() < 1e-12, "{actual}, {length}");
            }
            length = 3.4445 * length - 4.775 * length.powi(3) + 2.0315 * length.powi(5);
        }
        Ok(())
    }

    /// The result of a matrix does not depend on the other matrices of its batch.
    #[test]
    fn matrices_do_not_know_of_each_other() -> Result<()> {
        let (a, b) = (normal(4, 6)?, (normal(4, 6)? * -3.)?);
        let both = orthogonalised(&Tensor::stack(&[&a, &b], 0)?, 5)?;
        for (i, x) in [a, b].into_iter().enumerate() {
            let alone = orthogonalised(&x.unsqueeze(0)?, 5)?.squeeze(0)?;
            assert_eq!(alone.to_vec2::<f64>()?, both.get(i)?.to_vec2::<f64>()?);
        }
        Ok(())
    }

    /// Sides below, at and above the width of a block of columns.
    #[test]
    fn the_fused_loops_agree_with_separate_operations() -> Result<()> {
        for (rows, columns) in [(1, 1), (5, 9), (64, 64), (65, 70), (70, 65), (150, 161), (3, 400)]
        {
            let x = Tensor::stack(&[normal(rows, columns)?, (normal(rows, columns)? * 7.)?], 0)?;
            let of = |dtype| orthogonalised(&x.to_dtype(dtype)?, 5)?.to_dtype(DType::F64);
            let expected = with_reference_ops(|| of(DType::F64))?;
            for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 1e-3)] {
                let error = (of(dtype)? - &expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                assert!(error < tolerance, "({rows}, {columns}) in {dtype:?}: {error:e}");
            }
        }
        Ok(())
    }

    /// Where the processor has instructions for bf16, the products are rounded; elsewhere they are not.
    #[test]
    fn rounded_products_give_nearly_the_same_matrix() -> Result<()> {
        let x = normal(96, 160)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let of = |precision| {
            with_product_precision(precision, || cpu::orthogonalised(x.clone(), (96, 160), 5))
        };
        let (rounded, exact) = (of(ProductPrecision::Bf16), of(ProductPrecision::F32));
        let differences = rounded.iter().zip(&exact).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0., f32::max);
        assert_eq!(largest > 0., bf16_instructions().is_some());
        assert!(largest < 0.01, "{largest}");
        Ok(())
    }
}
