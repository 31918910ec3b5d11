//! Sliding-window attention (Beltagy et al. 2020, "Longformer", §3.1,
//! <https://arxiv.org/abs/2004.05150>; Child et al. 2019, <https://arxiv.org/abs/1904.10509>).
//!
//! ```text
//! O_i = Σ_j softmax_j(q_i·k_j / √head_dim) v_j        over |i − j| < window, and j ≤ i if causal
//! ```
//!
//! It is exact for the keys in the window. Positions further away are reached through several layers, as
//! in a convolution: n layers reach n·(window − 1) positions in each direction. With a window of at
//! least T it is softmax attention.
//!
//! Longformer's window of size w reads w/2 keys on each side of the query, ours window − 1 of them: w =
//! 2·(window − 1). Longformer's global positions and dilation are left out.
//!
//! Cost: O(T·window·d_model) time, O(T·d_model) memory; decoding keeps window − 1 keys and values.

use candle_nn::VarBuilder;

use super::onnx::{self, Layer, Output};
use super::output_gate::OutputGate;
use super::parts::Parts;
use super::projection::Heads;
use super::qk_norm::{NormOver, QkNorm};
use super::reduces_to::ReducesTo;
use super::score::Score;
use super::sink::Sink;
use super::softmax::{self, Softmax};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention, Reads};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "local"`
    pub struct Config {
        /// Query i reads keys j with |i − j| < window.
        pub window: usize = 64,
        /// Heads of keys and values, a divisor of `model.n_heads`; as many as of queries when absent.
        pub n_kv_heads: Option<usize> = None,
        /// Normalise queries and keys within each head.
        pub qk_norm: bool = false,
        /// ε of that normalisation.
        pub qk_norm_epsilon: f64 = 1e-6,
        /// What takes weight beside the keys.
        pub sink: Sink = Sink::None,
        /// What the heads are multiplied by before the output map.
        pub output_gate: OutputGate = OutputGate::None,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl Config {
    fn parts(&self) -> Parts {
        let Self { window, n_kv_heads, qk_norm, qk_norm_epsilon, sink, output_gate, .. } = *self;
        let norm = QkNorm { epsilon: qk_norm_epsilon, over: NormOver::Head };
        let heads = Heads { n_kv_heads, qk_norm: qk_norm.then_some(norm) };
        Parts { heads, score: Score::ScaledDot, window: Some(window), sink, output_gate }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        let why = "a position of one sequence has no neighbourhood in another";
        spec.refuse_memory("local", why)?;
        spec.positive("window", self.window)?;
        Ok(Box::new(Softmax::build(spec, vb, self.parts())?))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let sides = if spec.reads == Reads::Past { 1. } else { 2. };
        let n_keys = (sides * (self.window.max(1) - 1) as f64 + 1.).min(kv_len as f64);
        softmax::cost(spec, self.parts(), [q_len, kv_len], n_keys)
    }

    fn n_kv_heads(&self) -> Option<usize> {
        self.n_kv_heads
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        let effect = format!("reaches all {len} positions of a sequence");
        (self.window >= len).then(|| ReducesTo::softmax("window", &self.window, &effect))
    }

    fn reach(&self) -> Option<usize> {
        Some(self.window.saturating_sub(1))
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        onnx::dense::softmax(layer, x, self.parts())
    }
}
