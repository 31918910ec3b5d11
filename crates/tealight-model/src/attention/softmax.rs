//! Multi-head attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
//!
//! ```text
//! MultiHead(Q, K, V) = Concat(head₁, …, head_h) W^O,  headᵢ = Attention(Q Wᵢ^Q, K Wᵢ^K, V Wᵢ^V)
//! Attention(Q, K, V) = softmax(Q Kᵀ / √head_dim) V                                       eq. (1)
//! ```
//!
//! `sink` adds a score that takes weight and has no value, see [`sink`](super::sink); `output_gate` multiplies the heads by
//! gates before W^O, see [`output_gate`](super::output_gate).
//!
//! `score` may replace Q Kᵀ / √head_dim by another score, see [`score`](super::score).
//!
//! Cost: O(T²·d_model) time. Memory is O(T·d_model) for scores that are products of query and key
//! (`scaled_dot`, `dot` and `general`): [`tealight_ops::attention`] computes their weights tile by tile.
//! `additive` and `logistic` keep a matrix of scores for each head, see [`dense`]. A query whose keys
//! are all masked gets zeros. The bias of the key map adds the same number to all products of a row, so
//! it has no effect unless keys are normalised or there is a sink; its gradient is zero up to rounding.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::attention::{Layout, Options, attention, weights};

use super::cache::{self, CachedLayer};
use super::dense::{self, DenseKind};
use super::onnx::{self, Layer, Output};
use super::output_gate::{Gate, OutputGate};
use super::parts::Parts;
use super::projection::{self, Heads, Projection, concat_heads};
use super::qk_norm::{NormOver, QkNorm};
use super::score::{Score, ScoreFunction};
use super::short_convolution::Before;
use super::sink::Sink;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    Memory, Reads, RowSum,
};
use crate::choice::names::Named;
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
        /// Normalise queries and keys.
        pub qk_norm: bool = false,
        /// ε of that normalisation.
        pub qk_norm_epsilon: f64 = 1e-6,
        /// Over which features it normalises.
        pub qk_norm_over: NormOver = NormOver::Head,
        /// What takes weight beside the keys. With scores that are products.
        pub sink: Sink = Sink::None,
        /// What the heads are multiplied by before the output map. With scores that are products.
        pub output_gate: OutputGate = OutputGate::None,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl Config {
    /// The settings of the maps into heads.
    fn heads(&self) -> Heads {
        let Self { n_kv_heads, qk_norm, qk_norm_epsilon: epsilon, qk_norm_over: over, .. } = *self;
        Heads { n_kv_heads, qk_norm: qk_norm.then_some(QkNorm { epsilon, over }) }
    }

    fn parts(&self) -> Parts {
        let Self { score, sink, output_gate, .. } = *self;
        Parts { heads: self.heads(), score, window: None, sink, output_gate }
    }

    /// Refuses what only scores that are products have.
    fn check_dense(&self, spec: &AttentionSpec<'_>) -> BuildResult<()> {
        let (key, score) = (spec.key, self.score.name());
        let rule = format!("needs a score that is a product, not `{key}.score` = \"{score}\"");
        for (setting, is_set) in [
            ("sink", self.sink != Sink::None),
            ("output_gate", self.output_gate != OutputGate::None),
        ] {
            if is_set {
                return Err(spec.invalid(setting, &rule));
            }
        }
        Ok(())
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        if self.qk_norm_over != NormOver::Head && !self.qk_norm {
            let (over, key) = (self.qk_norm_over.name(), spec.key);
            let rule = format!("= \"{over}\" needs `{key}.qk_norm` = true");
            return Err(spec.invalid("qk_norm_over", &rule));
        }
        if self.score.is_product() {
            Ok(Box::new(Softmax::build(spec, vb, self.parts())?))
        } else {
            self.check_dense(spec)?;
            dense::build(spec, vb, self.heads(), &DenseSoftmax { score: self.score })
        }
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        if self.score.is_product() {
            return cost(spec, self.parts(), [q_len, kv_len], kv_len as f64);
        }
        projection::cost_with(spec, self.heads(), [q_len, kv_len])
            + dense::cost(spec, self.score, [q_len, kv_len])
    }

    fn n_kv_heads(&self) -> Option<usize> {
        self.n_kv_heads
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        onnx::dense::softmax(layer, x, self.parts())
    }
}

/// Softmax attention with scores that are products, over all keys or, in [`local`](super::local), over
/// a window of them.
#[derive(Debug)]
pub(super) struct Softmax {
    projection: Projection,
    score: ScoreFunction,
    window: Option<usize>,
    /// z of each head, `(n_heads)`.
    sink: Option<Tensor>,
    row_sum: RowSum,
    dropout: Dropout,
    gate: Option<Gate>,
    output: Linear,
}

impl Softmax {
    pub(super) fn build(
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
        parts: Parts,
    ) -> BuildResult<Self> {
        let Parts { heads, score, window, sink, output_gate } = parts;
        Ok(Self {
            projection: Projection::build(spec, vb, heads)?,
            score: score.build(spec, vb)?,
            window,
            sink: sink.build(spec, vb)?,
            row_sum: sink.row_sum(),
            dropout: Dropout::new(spec.dropout, vb),
            gate: output_gate.build(spec, vb)?,
            output: projection::output(spec, vb)?,
        })
    }
}

impl Attention for Softmax {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        // Q Wᵢ^Q, K Wᵢ^K and V Wᵢ^V of all heads, the first two rotated: (batch, len, heads, head_dim)
        let [query, key, value] = self.projection.project_rotated(input)?;
        // Concat(head₁, …, head_h): (batch, q_len, n_heads·head_dim)
        let heads = self.attend(&query, &[key, value], input.mask, input.mode)?;
        self.output(input.x, &heads) // (batch, q_len, d_model)
    }

    fn heads(&self, input: &AttentionInput<'_>) -> Result<Option<[Tensor; 3]>> {
        let [query, key, value] = self.projection.project_rotated(input)?;
        Ok(Some([self.score.as_product(&query)?.0, key, value]))
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value] = self.projection.project_rotated(input)?;
        let (query, scale) = self.score.as_product(&query)?;
        weights(&query, &key, &self.options(scale, input.mask, Mode::Eval))
    }

    fn row_sum(&self) -> RowSum {
        self.row_sum
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl Softmax {
    fn options<'a>(&'a self, scale: f64, mask: &'a Mask, mode: Mode) -> Options<'a> {
        Options {
            scale: Some(scale),
            causal: self.projection.reads() == Reads::Past,
            window: self.window,
            dropout: self.dropout.draw(mode),
            key_padding_mask: mask.key_padding_mask(),
            segments: mask.segments(),
            attn_mask: mask.attn_mask(),
            sink: self.sink.as_ref(),
            log_forget: None,
            layout: Layout::HeadsLast,
        }
    }
}

impl CachedLayer for Softmax {
    fn reads(&self) -> Reads {
        self.projection.reads()
    }

    fn window(&self) -> Option<usize> {
        self.window
    }

    fn queries(&self, x: &Tensor, start: usize, before: &mut Before<'_>) -> Result<Tensor> {
        self.projection.queries(x, start, before)
    }

    fn cached(
        &self,
        source: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<Vec<Tensor>> {
        let (key, value) = self.projection.keys_and_values(source, start, before)?;
        Ok(vec![key, value])
    }

    /// headᵢ = softmax(Q Kᵀ / √head_dim + mask) V
    fn attend(&self, query: &Tensor, cached: &[Tensor], mask: &Mask, mode: Mode) -> Result<Tensor> {
        let [key, value] = cached else { bail!("a cache of {} tensors", cached.len()) };
        let (query, scale) = self.score.as_product(query)?;
        // softmax(scale · Q Kᵀ + mask) V, tile by tile: (batch, q_len, n_heads, head_dim)
        let heads = attention(&query, key, value, &self.options(scale, mask, mode))?;
        concat_heads(&heads)
    }

    fn output(&self, x: &Tensor, heads: &Tensor) -> Result<Tensor> {
        match &self.gate {
            Some(gate) => self.output.forward(&gate.forward(x, heads)?),
            None => self.output.forward(heads),
        }
    }
}

/// The cost of a layer, where each query reads `n_keys` keys. For the backward pass it keeps the maximum and the sum of
/// each row, and nothing for each pair.
pub(super) fn cost(
    spec: &AttentionSpec<'_>,
    parts: Parts,
    [q_len, kv_len]: [usize; 2],
    n_keys: f64,
) -> AttentionCost {
    let Parts { heads, score, window: _, sink, output_gate } = parts;
    let pairs = AttentionCost {
        parameters: sink.n_parameters(spec),
        // Q Kᵀ and the weighted sum of V.
        flops: 2. * 2. * q_len as f64 * n_keys * spec.d_heads() as f64,
        activations: 2. * spec.n_heads as f64 * q_len as f64,
    };
    projection::cost_with(spec, heads, [q_len, kv_len])
        + pairs
        + score.parameters_cost(spec, q_len)
        + output_gate.cost(spec, q_len)
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
