//! Sinusoidal positions of patches (He et al. 2022, <https://arxiv.org/abs/2111.06377>, in the authors' code).
//!
//! ```text
//! PE(row, column) = (PE(row); PE(column)),   each of d_model/2 numbers as in `sinusoidal`
//! ```
//!
//! `[CLS]` has none: zeros. (The authors' code puts the column first, a permutation of the features.)

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

use super::sinusoidal::{self, Layout};
use super::{EmbeddingPosition, Position, PositionKind, PositionSpec, TokenPositions};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};
use crate::patches::Grid;

settings! {
    /// `[model.position] kind = "sinusoidal_2d"`
    pub struct Config {
        /// The wavelengths grow from 2π to nearly 2π·base patches.
        pub base: f64 = 10_000.,
        /// The order of sines and cosines in each half.
        pub layout: Layout = Layout::Interleaved,
    }
}

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        let grid = spec.grid_of("sinusoidal_2d", spec.d_model)?;
        positive("model.position.base", self.base)?;
        let d_model = spec.d_model;
        if !d_model.is_multiple_of(4) {
            return Err(BuildError::config(
                ["model.d_model", "model.position.kind"],
                format!(
                    "`model.d_model` = {d_model} must be a multiple of 4: rows and columns have half each, in pairs of \
                     sine and cosine"
                ),
            ));
        }
        let table = self.table(grid, d_model)?.to_dtype(vb.dtype())?.to_device(vb.device())?;
        Ok(Position::from_embedding(Sinusoidal2d { table }))
    }

    fn needs_pictures(&self) -> bool {
        true
    }
}

impl Config {
    /// `(n_tokens, d_model)` in f64.
    fn table(&self, grid: Grid, d_model: usize) -> Result<Tensor> {
        let Grid { n_prefix, rows, columns } = grid;
        let axis = sinusoidal::Config { base: self.base, layout: self.layout };
        let half = d_model / 2;
        let of_rows = axis.table(0..rows, half, &Device::Cpu)?.unsqueeze(1)?;
        let of_columns = axis.table(0..columns, half, &Device::Cpu)?.unsqueeze(0)?;
        let shape = (rows, columns, half);
        let both = [of_rows.broadcast_as(shape)?, of_columns.broadcast_as(shape)?];
        let patches = Tensor::cat(&both, 2)?.reshape((grid.n_patches(), d_model))?;
        let prefix = Tensor::zeros((n_prefix, d_model), DType::F64, &Device::Cpu)?;
        if n_prefix == 0 { Ok(patches) } else { Tensor::cat(&[prefix, patches], 0) }
    }
}

/// The sinusoids, `(n_tokens, d_model)`.
#[derive(Debug)]
pub struct Sinusoidal2d {
    table: Tensor,
}

impl EmbeddingPosition for Sinusoidal2d {
    fn vectors(&self, places: &TokenPositions<'_>) -> Result<Tensor> {
        self.table.narrow(0, places.positions.start, places.positions.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_half_is_of_the_row_and_the_second_of_the_column() -> Result<()> {
        let grid = Grid { n_prefix: 1, rows: 2, columns: 3 };
        let table: Vec<Vec<f64>> = Config::default().table(grid, 8)?.to_vec2()?;
        assert_eq!(table[0], [0.; 8]);
        let of = |t: f64| [t.sin(), t.cos(), (t / 100.).sin(), (t / 100.).cos()];
        for row in 0..2 {
            for column in 0..3 {
                let token = grid.token(row, column).expect("a patch");
                let expected = [of(row as f64), of(column as f64)].concat();
                assert_eq!(table[token], expected, "{row}, {column}");
            }
        }
        Ok(())
    }
}
