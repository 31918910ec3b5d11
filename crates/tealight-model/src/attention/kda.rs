//! Kimi Delta Attention (Kimi Team 2025, <https://arxiv.org/abs/2510.26692>).
//!
//! ```text
//! q, k = L2(SiLU(conv(W x))) per head, q also / √n_features,   v = SiLU(conv(W x)),   β_t = σ(W_b x_t) per head
//! ln α_t = −e^(A_log) softplus(W↑ W↓ x_t + dt_bias)                                            per feature
//! S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t                    eq. (1)
//! y   = W_o (RMSNorm(o) ⊙ σ(W_g↑ W_g↓ x + b))                                                   eq. (10)
//! ```
//!
//! Gated DeltaNet with a decay for each feature of a key; with equal decays it is that. The maps of decay and gate are
//! products of two, of the rank of a head's width. Under `lower_bound` b < 0, ln α = b σ(e^(A_log) (W↑ W↓ x + dt_bias)) lies
//! between b and 0, as in fla's safe gate (−5); the numbers need no such bound here.
//!
//! Cost: O(T·d_model·(d_model + n_features)) time, O(T·d_model) memory. The decoding state is S, n_heads·n_features·width
//! numbers, and the last conv_size − 1 inputs of the convolutions.
//!
//! Differences. The gate's map has a bias as in fla; paper and `transformers` have none. e^(A_log) ~ U(1, 16). The scale of
//! q is in the code alone; the norm cancels it up to its ε of 10⁻⁵.
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
    /// `[model.attention] kind = "kda"`
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
        /// Let β reach 2, so that the eigenvalues of a step reach −1.
        pub negative_eigenvalues: bool = false,
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
            strength: StrengthKind::of_heads(self.negative_eigenvalues),
            gate: GateKind::LowRank(Function::Sigmoid, rank),
        }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "kda")?;
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
        recurrent::no_graph("kda")
    }
}
