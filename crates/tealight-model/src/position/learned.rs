//! A learnt vector for each position (Gehring et al. 2017, §3.1, <https://arxiv.org/abs/1705.03122>;
//! BERT, GPT-2).
//!
//! ```text
//! x_t ← x_t + p_t
//! ```

use std::ops::Range;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::{EmbeddingPosition, PositionSpec, positive};
use crate::{BuildResult, Initializer};

/// `[model.position] kind = "learned"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Standard deviation of the initial vectors: .02 in BERT. Short, position-bound tasks learn
    /// faster when positions start far apart (.5).
    pub std: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { std: 0.02 }
    }
}

impl Config {
    pub(super) fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Learned> {
        positive("model.position.std", self.std)?;
        let shape = (spec.max_seq_len, spec.d_model);
        let values = Initializer::learned_position(self.std);
        Ok(Learned { weight: vb.get_with_hints(shape, "weight", values)? })
    }
}

/// The table `(max_seq_len, d_model)`.
#[derive(Debug)]
pub struct Learned {
    weight: Tensor,
}

impl EmbeddingPosition for Learned {
    fn vectors(&self, positions: Range<usize>) -> Result<Tensor> {
        self.weight.narrow(0, positions.start, positions.len())
    }
}
