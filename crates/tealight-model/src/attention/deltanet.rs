//! DeltaNet (Schlag et al. 2021, <https://arxiv.org/abs/2102.11174>; Yang et al. 2024,
//! <https://arxiv.org/abs/2406.06484>).
//!
//! ```text
//! q, k = L2(SiLU(conv(W x))) per head, q also / √n_features,   v = SiLU(conv(W x)),   β_t = σ(W_b x_t) per head
//! S_t = (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t
//! y   = W_o RMSNorm(o)
//! ```
//!
//! The state maps keys to values: a token moves what it holds for k by β towards v. Nothing else is forgotten. A step has
//! the eigenvalues 1 and 1 − β, which are not negative, so the state cannot count modulo two; under
//! `negative_eigenvalues` β reaches 2 and it can (Grazzi et al. 2024, <https://arxiv.org/abs/2411.12537>).
//!
//! Cost: O(T·d_model·(d_model + n_features)) time, O(T·d_model) memory. The decoding state is S, n_heads·n_features·width
//! numbers, and the last conv_size − 1 inputs of the convolutions.
//!
//! Differences. The layer is that of the second paper's code and of fla. The first normalises φ(k) to a sum of 1 and
//! divides nothing. The scale of q is in the code alone; the norm cancels it up to its ε of 10⁻⁵.
//!
//! Padding leaves the state as it is and is skipped by the convolutions; both begin anew at a document.

use candle_nn::VarBuilder;

use super::onnx::{Layer as OnnxLayer, Output};
use super::recurrent::delta::{DecayKind, DeltaRule, GateKind, Settings, StrengthKind};
use super::recurrent::{self, Layer};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "deltanet"`
    pub struct Config {
        /// Features of a key, as a multiple of a head's width.
        pub expand_k: f64 = 1.,
        /// Features of a value, as a multiple of a head's width.
        pub expand_v: f64 = 1.,
        /// Tokens that a short convolution reads; 0: no convolution.
        pub conv_size: usize = 4,
        /// Let β reach 2, so that the eigenvalues of a step reach −1.
        pub negative_eigenvalues: bool = false,
    }
}

impl Config {
    fn settings(&self, n_heads: usize, [n_features, width]: [usize; 2]) -> Settings {
        Settings {
            n_heads,
            n_key_heads: n_heads,
            n_features,
            width,
            conv_size: self.conv_size,
            steps: 1,
            decay: DecayKind::None,
            strength: StrengthKind::of_heads(self.negative_eigenvalues),
            gate: GateKind::None,
        }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "deltanet")?;
        let n_features = recurrent::width(spec, "expand_k", self.expand_k)?;
        let width = recurrent::width(spec, "expand_v", self.expand_v)?;
        let settings = self.settings(spec.n_heads, [n_features, width]);
        Ok(Box::new(Layer(DeltaRule::build(settings, spec, vb)?)))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, _kv_len: usize) -> AttentionCost {
        let widths =
            [self.expand_k, self.expand_v].map(|factor| recurrent::width_of_cost(spec, factor));
        self.settings(spec.n_heads, widths).cost(spec, q_len)
    }

    fn onnx(&self, _layer: &OnnxLayer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        recurrent::no_graph("deltanet")
    }
}
