//! Rotary positions of patches, axis by axis (Heo et al. 2024, §3.2, <https://arxiv.org/abs/2403.13298>).
//!
//! ```text
//! pair i of the first half of the pairs is rotated by row·θᵢ, of the second half by column·θᵢ
//! θᵢ = base^(−4i/head_dim),   i = 0, …, head_dim/4 − 1
//! ```
//!
//! A score depends on the difference of the rows and on that of the columns. `[CLS]` is not rotated. (The paper
//! alternates columns and rows, a permutation of the pairs.)

use candle_core::{Device, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::rotary::frequencies;

use super::rotary::{Layout, Rotary};
use super::{Position, PositionKind, PositionSpec, constant_dtype};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};
use crate::patches::Grid;

settings! {
    /// `[model.position] kind = "rotary_2d"`
    pub struct Config {
        /// The longest wavelength is 2π·base patches. The paper's 100 suits the few rows and columns of a picture.
        pub base: f64 = 100.,
        /// Which features form a pair.
        pub layout: Layout = Layout::Interleaved,
    }
}

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        let grid = spec.grid_of("rotary_2d", spec.head_dim)?;
        positive("model.position.base", self.base)?;
        let head_dim = spec.head_dim;
        if !head_dim.is_multiple_of(4) {
            let keys = ["model.position.kind", "model.head_dim", "model.n_heads", "model.d_model"];
            let message = format!(
                "head_dim = {head_dim} must be a multiple of 4 for `model.position.kind` = \"rotary_2d\": rows and \
                 columns rotate half of the pairs each"
            );
            return Err(BuildError::config(keys, message));
        }
        let table = |values: Vec<f64>| -> Result<Tensor> {
            let table = Tensor::from_vec(values, (grid.n_tokens(), head_dim / 2), &Device::Cpu)?;
            table.to_dtype(constant_dtype(vb.dtype()))?.to_device(vb.device())
        };
        let (sin, cos) = self.angles(grid, head_dim)?.into_iter().map(f64::sin_cos).unzip();
        Ok(Position::from_rotary(Rotary::of_tables(table(cos)?, table(sin)?, self.layout)))
    }

    fn needs_pictures(&self) -> bool {
        true
    }
}

impl Config {
    /// The angle of each pair of each position.
    fn angles(&self, grid: Grid, head_dim: usize) -> Result<Vec<f64>> {
        let theta = frequencies(head_dim / 2, self.base)?;
        let mut angles = Vec::with_capacity(grid.n_tokens() * head_dim / 2);
        for token in 0..grid.n_tokens() {
            let (row, column) = grid.place(token).unwrap_or((0, 0));
            for place in [row, column] {
                angles.extend(theta.iter().map(|theta| place as f64 * theta));
            }
        }
        Ok(angles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_turn_the_first_half_of_the_pairs_and_columns_the_second() -> Result<()> {
        let grid = Grid { n_prefix: 1, rows: 2, columns: 3 };
        let angles = Config::default().angles(grid, 8)?;
        let of = |token: usize| &angles[token * 4..][..4];
        assert_eq!(of(0), [0.; 4]);
        assert_eq!(of(1), [0.; 4]);
        assert_eq!(of(3), [0., 0., 2., 0.2]);
        assert_eq!(of(6), [1., 0.1, 2., 0.2]);
        Ok(())
    }
}
