//! Sinusoidal positions (Vaswani et al. 2017, §3.5, <https://arxiv.org/abs/1706.03762>).
//!
//! ```text
//! PE(t, 2i) = sin(t / base^(2i/d_model)),   PE(t, 2i+1) = cos(t / base^(2i/d_model)),   t = 0, 1, …
//! ```
//!
//! `layout = "interleaved"` is the paper's; `layout = "half"` puts all sines before all cosines, the
//! order of tensor2tensor and fairseq. (Their exponent is i/(half − 1) instead of i/half, with half =
//! d_model/2, so their longest wavelength is 2π·base and ours is one step shorter: the values differ.)
//! The two layouts differ by a permutation of the features. For short sequences, a `base` near their
//! length separates positions further than the paper's 10000.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use candle_nn::VarBuilder;

use super::{
    EmbeddingPosition, MAX_TABLE, MAX_TABLE_LEN, Position, PositionKind, PositionSpec,
    TokenPositions,
};
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};

settings! {
    /// `[model.position] kind = "sinusoidal"`
    pub struct Config {
        /// The wavelengths grow from 2π to nearly 2π·base.
        pub base: f64 = 10_000.,
        /// The order of sines and cosines.
        pub layout: Layout = Layout::Interleaved,
    }
}

names! {
    /// The order of sines and cosines.
    pub enum Layout {
        /// sin, cos, sin, cos, …
        "interleaved" => Interleaved,
        /// All sines, then all cosines.
        "half" => Half,
    }
}

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        positive("model.position.base", self.base)?;
        let PositionSpec { d_model, .. } = *spec;
        if d_model % 2 != 0 {
            return Err(BuildError::config(
                ["model.d_model", "model.position.kind"],
                format!(
                    "`model.d_model` = {d_model} must be even, because sines and cosines come in pairs"
                ),
            ));
        }
        let n_rows = spec.max_seq_len.min(MAX_TABLE_LEN).min(MAX_TABLE / d_model.max(1));
        let table = self.table(0..n_rows, d_model, vb.device())?.to_dtype(vb.dtype())?;
        Ok(Position::from_embedding(Sinusoidal { config: self.clone(), table }))
    }
}

impl Config {
    /// The encodings of `positions`: `(positions, d_model)`, in f64.
    pub(super) fn table(
        &self,
        positions: Range<usize>,
        d_model: usize,
        device: &Device,
    ) -> Result<Tensor> {
        let (shape, half) = ((positions.len(), d_model), d_model / 2);
        let angle = |t: usize, i: usize| t as f64 / self.base.powf(i as f64 / half as f64);
        let value = |t: usize, column: usize| match self.layout {
            Layout::Interleaved if column.is_multiple_of(2) => angle(t, column / 2).sin(),
            Layout::Interleaved => angle(t, column / 2).cos(),
            Layout::Half if column < half => angle(t, column).sin(),
            Layout::Half => angle(t, column - half).cos(),
        };
        let values: Vec<f64> =
            positions.flat_map(|t| (0..d_model).map(move |column| value(t, column))).collect();
        Tensor::from_vec(values, shape, device)
    }
}

/// The sinusoids.
#[derive(Debug)]
pub struct Sinusoidal {
    config: Config,
    /// The encodings of the first positions, `(positions, d_model)`.
    table: Tensor,
}

impl EmbeddingPosition for Sinusoidal {
    fn vectors(&self, places: &TokenPositions<'_>) -> Result<Tensor> {
        let Range { start, end } = places.positions;
        let (n_rows, d_model) = self.table.dims2()?;
        if end <= n_rows {
            return self.table.narrow(0, start, end - start);
        }
        self.config.table(start..end, d_model, self.table.device())?.to_dtype(self.table.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(base: f64, layout: Layout) -> Result<Vec<Vec<f64>>> {
        Config { base, layout }.table(0..3, 4, &Device::Cpu)?.to_vec2()
    }

    #[test]
    fn the_paper_s_formula() -> Result<()> {
        let rows = table(10_000., Layout::Interleaved)?;
        assert_eq!(rows[0], [0., 1., 0., 1.]);
        let (near, far) = (2_f64, 2_f64 / 100.);
        assert_eq!(rows[2], [near.sin(), near.cos(), far.sin(), far.cos()]);
        Ok(())
    }

    #[test]
    fn the_half_layout_is_a_permutation() -> Result<()> {
        let (paired, halves) = (table(20., Layout::Interleaved)?, table(20., Layout::Half)?);
        for (paired, halves) in paired.iter().zip(&halves) {
            assert_eq!([paired[0], paired[2], paired[1], paired[3]], halves[..]);
        }
        Ok(())
    }
}
