//! Sigmoid attention (Ramapuram et al. 2025, <https://arxiv.org/abs/2409.04431>): keys do not compete for weight.
//!
//! ```text
//! O_i = Σ_j σ(s_ij + b) v_j,   b = −ln n                                          s = q_i·k_j / √head_dim
//! ```
//!
//! n is the length that the model is trained on: with it, the weights of n scores of 0 sum to about 1, as under softmax. b is
//! the same in each row, also of causal attention, and at all lengths. The paper needs LayerScale or a norm behind the
//! attention for stable training, which a block with post-norm has; here neither is part of the layer.
//!
//! Cost: O(T²·d_model) time; memory as in [`super::dense`].

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::sigmoid;

use super::dense::{self, DenseKind};
use super::onnx::dense::Scores;
use super::onnx::{Layer, Output};
use super::projection::{self, Heads};
use super::score::Score;
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention, RowSum};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "sigmoid"`
    pub struct Config {
        /// How similar a query is to a key.
        pub score: Score = Score::ScaledDot,
        /// n of the bias −ln n. It stays the same whatever the length of a sequence; 1 is no bias.
        pub length: usize = 1024,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl Config {
    fn weights(&self) -> Sigmoid {
        Sigmoid { score: self.score, bias: -(self.length as f64).ln() }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.positive("length", self.length)?;
        dense::build(spec, vb, Heads::default(), &self.weights())
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        projection::cost(spec, [q_len, kv_len]) + dense::cost(spec, self.score, [q_len, kv_len])
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        AttentionKind::onnx(&self.weights(), layer, x)
    }
}

/// σ(s + b) of scores of any shape; 0 where they are −∞.
pub fn weights(scores: &Tensor, bias: f64) -> Result<Tensor> {
    sigmoid(&(scores + bias)?)
}

#[derive(Clone, Debug)]
struct Sigmoid {
    score: Score,
    /// b
    bias: f64,
}

impl DenseKind for Sigmoid {
    fn score(&self) -> Score {
        self.score
    }

    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        weights(scores, self.bias)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }

    fn onnx_weights(&self, Scores { graph, matrix, .. }: &Scores<'_>) -> Option<Value> {
        Some(graph.map("Sigmoid", &graph.add(matrix, &graph.number(self.bias))))
    }
}
