//! AFT-local (Zhai et al. 2021, <https://arxiv.org/abs/2105.14103>).
//!
//! ```text
//! Y_t = σ(Q_t) ⊙ Σ_t' exp(K_t' + w_t,t') ⊙ V_t' / Σ_t' exp(K_t' + w_t,t')
//! w_t,t' = 0 where |t − t'| ≥ window
//! ```
//!
//! Every position reads all others; only pairs within the window have a learnt bias. The parameter is the band `w
//! (max_seq_len, 2 window − 1)`, where `w[t, window − 1 + t' − t]` is w_t,t'. With a window as long as the longest
//! sequence it is AFT-full with a full w; a longer window is shortened to it.
//!
//! Cost: O(seq_len·window·d_model) time, O(seq_len·(d_model + window)) memory.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::Reach;
use tealight_ops::aft;

use super::aft_full::NEAR_ZERO;
use super::gate::{self, Aft, Gate, PairBiases};
use super::onnx::gate::{Taps, of_pairs};
use super::onnx::{Layer, Output};
use super::reduces_to::ReducesTo;
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "aft_local"`
    pub struct Config {
        /// s in the paper: pairs of positions with |t − t'| < window have a learnt bias.
        pub window: usize = 32,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl Config {
    /// Columns of the band: 2 window − 1, with the window shortened to the longest sequence.
    fn n_taps(&self, spec: &AttentionSpec<'_>) -> usize {
        (2 * self.window.min(spec.max_kv_len)).saturating_sub(1)
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.positive("window", self.window)?;
        let why = "a window around a position needs keys at the same positions";
        spec.refuse_memory("aft_local", why)?;
        let shape = (spec.max_q_len, self.n_taps(spec));
        let gate = Gate::build("aft_local", spec.d_model, spec, vb)?;
        let biases = Band { w: vb.get_with_hints(shape, "w", NEAR_ZERO)? };
        Ok(Box::new(Aft { gate, biases }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (n_taps, len) = (self.n_taps(spec) as f64, q_len as f64);
        let d_model = spec.d_model as f64;
        let core = AttentionCost {
            parameters: spec.max_q_len as f64 * n_taps,
            // The argument of the exponential for each pair in the window; numerator and denominator; two scans over
            // the positions outside the window, counted as two pairs.
            flops: 5. * (n_taps + 2.) * len * d_model,
            // The denominator of each row and channel, with its maximum.
            activations: 2. * d_model * len,
        };
        gate::cost(spec, spec.d_model, [q_len, kv_len]) + core
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        let effect = format!("= {} gives each pair of all {len} positions a bias", self.window);
        let full = ReducesTo { setting: "window", effect, instead: "AFT-full with a full w" };
        (self.window >= len).then_some(full)
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let (graph, sequence) = (layer.graph(), layer.sequence);
        let (_max_seq_len, n_taps) = layer.at.tensor("w")?.dims2()?;
        let band = graph.gather(&layer.at.constant(graph, "w")?, &sequence.queries, 0);
        let Taps { tap, inside } = Taps::new(layer, n_taps, n_taps / 2);
        of_pairs(layer, x, &graph.mul(&graph.gather_last(&band, &tap), &inside))
    }
}

/// The band of w.
#[derive(Debug)]
struct Band {
    /// `(max_seq_len, 2 window − 1)`
    w: Tensor,
}

impl PairBiases for Band {
    fn mean(
        &self,
        [_query, key, value]: &[Tensor; 3],
        padding: Option<&Tensor>,
        reach: Reach,
    ) -> Result<Tensor> {
        let (_batch, seq_len, _d_model) = key.dims3()?;
        aft::aft_local(key, value, &self.w.narrow(0, 0, seq_len)?, padding, reach)
    }

    fn dense(&self, seq_len: usize, _kv_len: usize) -> Result<Tensor> {
        aft::reference::dense_of_local(&self.w.narrow(0, 0, seq_len)?)?.unsqueeze(0)
    }
}
