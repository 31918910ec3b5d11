//! Multi-head attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
//!
//! ```text
//! MultiHead(Q, K, V) = Concat(head₁, …, head_h) W^O,  headᵢ = Attention(Q Wᵢ^Q, K Wᵢ^K, V Wᵢ^V)
//! Attention(Q, K, V) = softmax(Q Kᵀ / √head_dim) V                                       eq. (1)
//! ```
//!
//! `score` may replace Q Kᵀ / √head_dim by another score, see [`score`](super::score).
//!
//! Cost: O(T²·d_model) time. Memory is O(T·d_model) for scores that are products of query and key
//! (`scaled_dot`, `dot` and `general`): [`tealight_ops::attention`] computes their weights tile by tile.
//! `additive` and `logistic` keep a matrix of scores for each head, see [`dense`]. A query whose keys
//! are all masked gets zeros. The bias of the key map adds the same number to all products of a row, so
//! it has no effect unless keys are normalised; its gradient is zero up to rounding.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::attention::{Layout, Options, attention, weights};

use super::cache::{self, KeyValueLayer, LinearMaps};
use super::dense::{self, DenseKind};
use super::onnx::{self, Layer, Output};
use super::projection::{self, Heads, Projection, concat_heads};
use super::score::{Score, ScoreFunction};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    Memory, Reads,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "softmax"`
    pub struct Config {
        /// How similar a query is to a key. The paper's is `scaled_dot` (§3.2.1).
        pub score: Score = Score::ScaledDot,
        /// Heads of keys and values, a divisor of `model.n_heads`; as many as of queries when absent.
        pub n_kv_heads: Option<usize> = None,
        /// Normalise queries and keys within each head.
        pub qk_norm: bool = false,
        /// ε of that normalisation.
        pub qk_norm_epsilon: f64 = 1e-6,
    }
}

impl Config {
    /// The settings of the maps into heads.
    pub(crate) fn heads(&self) -> Heads {
        let Self { score: _, n_kv_heads, qk_norm, qk_norm_epsilon } = *self;
        Heads { n_kv_heads, qk_norm: qk_norm.then_some(qk_norm_epsilon) }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        if self.score.is_product() {
            Ok(Box::new(Softmax::build(spec, vb, self.heads(), self.score, None)?))
        } else {
            dense::build(spec, vb, self.heads(), &DenseSoftmax { score: self.score })
        }
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let maps = projection::cost_with(spec, self.heads(), [q_len, kv_len]);
        let core = if self.score.is_product() {
            cost(spec, self.score, q_len, kv_len as f64)
        } else {
            dense::cost(spec, self.score, [q_len, kv_len])
        };
        maps + core
    }

    fn n_kv_heads(&self) -> Option<usize> {
        self.n_kv_heads
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        onnx::dense::softmax(layer, x, self.heads(), self.score, None)
    }
}

/// Softmax attention with scores that are products, over all keys or, in [`local`](super::local), over
/// a window of them.
#[derive(Debug)]
pub(super) struct Softmax {
    projection: Projection,
    score: ScoreFunction,
    window: Option<usize>,
    dropout: Dropout,
    output: Linear,
}

impl Softmax {
    /// With a `window`, query i reads only keys j with |i − j| < window.
    pub(super) fn build(
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
        heads: Heads,
        score: Score,
        window: Option<usize>,
    ) -> BuildResult<Self> {
        Ok(Self {
            projection: Projection::build(spec, vb, heads)?,
            score: score.build(spec, vb)?,
            window,
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        })
    }
}

impl Attention for Softmax {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        // Q Wᵢ^Q, K Wᵢ^K and V Wᵢ^V of all heads, the first two rotated: (batch, len, heads, head_dim)
        let qkv = self.projection.project_rotated(input)?;
        // Concat(head₁, …, head_h): (batch, q_len, n_heads·head_dim)
        let heads = self.attend(&qkv, input.mask, input.mode)?;
        self.output.forward(&heads) // (batch, q_len, d_model)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value] = self.projection.project_rotated(input)?;
        let (query, scale) = self.score.as_product(&query)?;
        weights(&query, &key, &self.options(scale, input.mask, Mode::Eval))
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl Softmax {
    fn options<'a>(&self, scale: f64, mask: &'a Mask, mode: Mode) -> Options<'a> {
        Options {
            scale: Some(scale),
            causal: self.projection.reads() == Reads::Past,
            window: self.window,
            dropout: self.dropout.draw(mode),
            key_padding_mask: mask.key_padding_mask(),
            segments: mask.segments(),
            attn_mask: mask.attn_mask(),
            layout: Layout::HeadsLast,
        }
    }
}

impl KeyValueLayer for Softmax {
    fn maps(&self) -> LinearMaps<'_> {
        LinearMaps { projection: &self.projection, output: &self.output, window: self.window }
    }

    /// headᵢ = softmax(Q Kᵀ / √head_dim + mask) V
    fn attend(&self, [query, key, value]: &[Tensor; 3], mask: &Mask, mode: Mode) -> Result<Tensor> {
        let (query, scale) = self.score.as_product(query)?;
        // softmax(scale · Q Kᵀ + mask) V, tile by tile: (batch, q_len, n_heads, head_dim)
        let heads = attention(&query, key, value, &self.options(scale, mask, mode))?;
        concat_heads(&heads)
    }
}

/// The cost of a layer without its maps, where each query reads `n_keys` keys. For the backward pass it keeps
/// the maximum and the sum of each row, and nothing for each pair.
pub(super) fn cost(
    spec: &AttentionSpec<'_>,
    score: Score,
    q_len: usize,
    n_keys: f64,
) -> AttentionCost {
    let pairs = AttentionCost {
        parameters: 0.,
        // Q Kᵀ and the weighted sum of V.
        flops: 2. * 2. * q_len as f64 * n_keys * spec.d_heads() as f64,
        activations: 2. * spec.n_heads as f64 * q_len as f64,
    };
    pairs + score.parameters_cost(spec, q_len)
}

/// Softmax over the rows of a matrix of scores, for scores that are not products.
#[derive(Clone, Debug)]
struct DenseSoftmax {
    score: Score,
}

impl DenseKind for DenseSoftmax {
    fn score(&self) -> Score {
        self.score
    }

    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        tealight_ops::softmax::softmax(scores)
    }
}
