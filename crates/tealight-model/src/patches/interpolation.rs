//! Learned positions for pictures of another size (Dosovitskiy et al. 2021, §3.2,
//! <https://arxiv.org/abs/2010.11929>): the vectors are a picture of d_model channels, which is resized.
//!
//! ```text
//! p'(r, c) = Σ_{i,j} w(u − i) w(v − j) p(i, j),   u = (r + ½)·rows/rows' − ½,   v alike for columns
//!
//! w(t) = (a + 2)|t|³ − (a + 3)t² + 1           for |t| ≤ 1
//!        a|t|³ − 5a t² + 8a|t| − 4a            for |t| < 2,     a = −0.75
//! ```
//!
//! That is Keys' cubic convolution (1981, <https://doi.org/10.1109/TASSP.1981.1163711>) as PyTorch has it
//! (`align_corners` false, no antialiasing, places outside read the edge), which `interpolate_pos_encoding` of
//! `transformers` calls.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::Grid;

/// a of Keys' kernel; PyTorch's.
const A: f64 = -0.75;

/// The vectors of a `table (rows, d_model)`, learned for the positions of `from`, at those of `to`. Rows before
/// the patches (`[CLS]`, unused ones) are kept.
///
/// # Errors
/// If the table has fewer rows than `from` has positions, or if `to` has a `[CLS]` and `from` has none, or the reverse.
pub fn interpolated(table: &Tensor, from: Grid, to: Grid) -> Result<Tensor> {
    let (n_rows, d_model) = table.dims2()?;
    let Some(n_before) = n_rows.checked_sub(from.n_patches()) else {
        bail!(
            "a table of {n_rows} positions for a grid of {} × {} patches",
            from.rows,
            from.columns
        )
    };
    if n_before < from.n_prefix || from.n_prefix != to.n_prefix {
        bail!(
            "positions of a model with {} vectors before the patches cannot be those of one with {}",
            from.n_prefix,
            to.n_prefix
        )
    }
    if (from.rows, from.columns) == (to.rows, to.columns) {
        return Ok(table.clone());
    }
    let patches = table.narrow(0, n_before, from.n_patches())?.to_dtype(DType::F32)?;
    let patches = patches.reshape((from.rows, from.columns * d_model))?;
    let rows = weights(from.rows, to.rows)?.to_device(table.device())?; // (rows', rows)
    let columns = weights(from.columns, to.columns)?.to_device(table.device())?; // (columns', columns)
    let patches = rows.matmul(&patches)?.reshape((to.rows, from.columns, d_model))?;
    let patches = columns.unsqueeze(0)?.broadcast_matmul(&patches)?; // (rows', columns', d_model)
    let patches = patches.reshape((to.n_patches(), d_model))?.to_dtype(table.dtype())?;
    if n_before == 0 {
        return Ok(patches);
    }
    Tensor::cat(&[&table.narrow(0, 0, n_before)?, &patches], 0)
}

/// The weight of each of `from` places in each of `to` places: `(to, from)`.
fn weights(from: usize, to: usize) -> Result<Tensor> {
    let mut weights = vec![0_f32; to * from];
    for (place, weights) in weights.chunks_exact_mut(from.max(1)).enumerate() {
        let u = (place as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        let first = u.floor();
        for neighbour in -1..3 {
            let at = first + f64::from(neighbour);
            let index = at.clamp(0., from as f64 - 1.) as usize;
            weights[index] += kernel(u - at) as f32;
        }
    }
    Tensor::from_vec(weights, (to, from), &Device::Cpu)
}

/// w(t)
fn kernel(t: f64) -> f64 {
    let t = t.abs();
    match t {
        _ if t <= 1. => ((A + 2.) * t - (A + 3.)) * t * t + 1.,
        _ if t < 2. => ((A * t - 5. * A) * t + 8. * A) * t - 4. * A,
        _ => 0.,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 × 3 vectors of two numbers, after a row that is kept.
    const TABLE: [f32; 14] =
        [9., 8., 1.54, 0.4, -0.29, 0.84, -2.18, -0.72, 0.57, -0.4, -1.08, -0.6, -1.4, 0.18];

    /// `torch.nn.functional.interpolate(x, size, mode="bicubic", align_corners=False)` of PyTorch 2.15.0.
    const RECORDED: [([usize; 2], &[f32]); 3] = [
        (
            [3, 5],
            &[
                1.801_382, 0.421_871, 1.053_99, 0.788_665, -0.221_424, 0.965, -1.594_395,
                -0.078_353, -2.442_233, -0.967_385, 1.222_04, -0.011_52, 0.459_439, 0.074_64,
                -0.685, 0.12, -1.486_54, -0.110_04, -1.896_08, -0.307_44, 0.642_699, -0.444_911,
                -0.135_112, -0.639_385, -1.148_576, -0.725, -1.378_685, -0.141_727, -1.349_929,
                0.352_505,
            ],
        ),
        (
            [4, 2],
            &[
                1.295_661, 0.662_876, -1.861_55, -0.387_728, 0.968_805, 0.321_791, -1.718_569,
                -0.272_399, 0.430_453, -0.239_995, -1.483_071, -0.082_445, 0.103_597, -0.581_079,
                -1.340_09, 0.032_884,
            ],
        ),
        ([1, 1], &[-0.685, 0.12]),
    ];

    #[test]
    fn vectors_are_those_that_pytorch_computes() -> Result<()> {
        let from = Grid { n_prefix: 1, rows: 2, columns: 3 };
        let table = Tensor::from_slice(&TABLE, (7, 2), &Device::Cpu)?;
        for ([rows, columns], expected) in RECORDED {
            let to = Grid { n_prefix: 1, rows, columns };
            let found = interpolated(&table, from, to)?.flatten_all()?.to_vec1::<f32>()?;
            assert_eq!(found[..2], [9., 8.], "the first row is kept");
            assert_eq!(found.len(), 2 + expected.len());
            for (found, expected) in found[2..].iter().zip(expected) {
                assert!((found - expected).abs() < 2e-6, "{found} is not {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn the_same_grid_keeps_all_bits_and_other_tables_are_refused() -> Result<()> {
        let (grid, table) = (
            Grid { n_prefix: 1, rows: 2, columns: 3 },
            Tensor::from_slice(&TABLE, (7, 2), &Device::Cpu)?,
        );
        assert_eq!(interpolated(&table, grid, grid)?.to_vec2::<f32>()?, table.to_vec2::<f32>()?);
        assert!(interpolated(&table, grid, Grid { n_prefix: 0, ..grid }).is_err());
        let more = Grid { rows: 3, ..grid };
        assert!(interpolated(&table, more, grid).is_err());
        Ok(())
    }

    #[test]
    fn the_kernel_interpolates_and_its_weights_sum_to_one() -> Result<()> {
        assert_eq!([0., 1., -1., 2., 3.].map(kernel), [1., 0., 0., 0., 0.]);
        for (from, to) in [(1, 5), (2, 3), (3, 7), (7, 3), (5, 5)] {
            for row in weights(from, to)?.to_vec2::<f32>()? {
                assert!((row.iter().sum::<f32>() - 1.).abs() < 1e-6, "{from} to {to}: {row:?}");
            }
        }
        Ok(())
    }
}
