//! Gated DeltaNet 2 (<https://arxiv.org/abs/2605.22791>): it erases and writes with a gate for each feature.
//!
//! ```text
//! q, k = L2(SiLU(conv(W x))) per head, q also / √n_features,   v = SiLU(conv(W x))
//! b_t = σ(W_b x_t) per feature of k,   w_t = σ(W_w x_t) per feature of v
//! ln α_t = −e^(A_log) softplus(W↑ W↓ x_t + dt_bias)                                            per feature
//! S_t = (I − k_t (b_t ⊙ k_t)ᵀ) Diag(α_t) S_{t−1} + k_t (w_t ⊙ v_t)ᵀ,   o_t = S_tᵀ q_t
//! y   = W_o (RMSNorm(o) ⊙ σ(W_g↑ W_g↓ x + c))
//! ```
//!
//! Where b and w are one number for a head, it is `kda` with that number as β.
//!
//! Cost: O(T·d_model·(d_model + n_features)) time, O(T·d_model) memory. The decoding state is S, n_heads·n_features·width
//! numbers, and the last conv_size − 1 inputs of the convolutions.
//!
//! Differences. The recurrence is that of fla's reference; everything around it is the layer of `kda`. b ⊙ k is not
//! along k, so a step may lengthen the state. A gate is below 1, so there is no counterpart of `negative_eigenvalues`.
//!
//! Padding leaves the state as it is and is skipped by the convolutions; both begin anew at a document.

use candle_nn::VarBuilder;
use tealight_ops::activation::Function;

use super::onnx::{Layer as OnnxLayer, Output};
use super::recurrent::delta::{DecayKind, DeltaRule, GateKind, Settings, StrengthKind};
use super::recurrent::{self, Layer};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "gdn2"`
    pub struct Config {
        /// Features of a key, as a multiple of a head's width.
        pub expand_k: f64 = 1.,
        /// Features of a value, as a multiple of a head's width.
        pub expand_v: f64 = 1.,
        /// Tokens that a short convolution reads; 0: no convolution.
        pub conv_size: usize = 4,
        /// The rank of the maps of decay and gate; a head's width when absent.
        pub rank: Option<usize> = None,
        /// The lowest ln α, a negative number; none when absent.
        pub lower_bound: Option<f64> = None,
    }
}

impl Config {
    fn settings(&self, spec: &AttentionSpec<'_>, [n_features, width]: [usize; 2]) -> Settings {
        let rank = self.rank.unwrap_or(spec.head_dim());
        Settings {
            n_heads: spec.n_heads,
            n_key_heads: spec.n_heads,
            n_features,
            width,
            conv_size: self.conv_size,
            steps: 1,
            decay: DecayKind::OfFeatures { rank, lower_bound: self.lower_bound },
            strength: StrengthKind::OfFeatures,
            gate: GateKind::LowRank(Function::Sigmoid, rank),
        }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "gdn2")?;
        recurrent::check_rank(spec, self.rank)?;
        recurrent::check_lower_bound(spec, self.lower_bound)?;
        let n_features = recurrent::width(spec, "expand_k", self.expand_k)?;
        let width = recurrent::width(spec, "expand_v", self.expand_v)?;
        let settings = self.settings(spec, [n_features, width]);
        Ok(Box::new(Layer(DeltaRule::build(settings, spec, vb)?)))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, _kv_len: usize) -> AttentionCost {
        let widths =
            [self.expand_k, self.expand_v].map(|factor| recurrent::width_of_cost(spec, factor));
        self.settings(spec, widths).cost(spec, q_len)
    }

    fn onnx(&self, _layer: &OnnxLayer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        recurrent::no_graph("gdn2")
    }
}
