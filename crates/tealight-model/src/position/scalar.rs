//! The position as one number.
//!
//! ```text
//! x_t ← x_t + (t / length)·w,   t = 1, 2, …
//! ```
//!
//! Equivalent to an input feature t/length followed by a linear map. Every score is then linear in t,
//! so attention is monotone in the position and cannot select, for example, days 1, 4 and 8 out of
//! ten. This kind exists to demonstrate that limit.

use std::ops::Range;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::{
    EmbeddingPosition, MAX_TABLE_LEN, Position, PositionKind, PositionSpec, TokenPositions,
};
use crate::choice::settings::settings;
use crate::error::{BuildResult, positive};
use crate::params::init::Initializer;

settings! {
    /// `[model.position] kind = "scalar"`
    pub struct Config {
        /// The divisor L of t/L.
        pub length: f64 = 20.,
    }
}

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        positive("model.position.length", self.length)?;
        let values = Initializer::scaled_position(spec.d_model);
        let weight = vb.get_with_hints((1, spec.d_model), "weight", values)?;
        let fractions = fractions(0..spec.max_seq_len.min(MAX_TABLE_LEN), self.length, &weight)?;
        Ok(Position::from_embedding(Scalar { weight, length: self.length, fractions }))
    }

    fn n_parameters(&self, d_model: usize, _n_heads: usize, _max_seq_len: usize) -> f64 {
        d_model as f64
    }
}

/// (t / length)·w.
#[derive(Debug)]
pub struct Scalar {
    weight: Tensor,
    length: f64,
    /// t / length of the first positions, `(positions, 1)`.
    fractions: Tensor,
}

/// t / length, with t counted from 1: `(positions, 1)`, in the dtype and on the device of `weight`.
fn fractions(positions: Range<usize>, length: f64, weight: &Tensor) -> Result<Tensor> {
    let shape = (positions.len(), 1);
    let fractions = positions.map(|t| (t + 1) as f64 / length).collect();
    Tensor::from_vec::<_, f64>(fractions, shape, weight.device())?.to_dtype(weight.dtype())
}

impl EmbeddingPosition for Scalar {
    fn vectors(&self, places: &TokenPositions<'_>) -> Result<Tensor> {
        let Range { start, end } = places.positions;
        if end <= self.fractions.dim(0)? {
            return self.fractions.narrow(0, start, end - start)?.matmul(&self.weight);
        }
        fractions(start..end, self.length, &self.weight)?.matmul(&self.weight)
    }
}
