//! Gated DeltaNet (Yang et al. 2024, <https://arxiv.org/abs/2412.06464>).
//!
//! ```text
//! q, k = L2(SiLU(conv(W x))) per head, q also / √n_features,   v = SiLU(conv(W x))
//! β_t = σ(W_b x_t),   ln α_t = −e^(A_log) softplus(W_a x_t + dt_bias)                    one of each per head
//! S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t                                eq. (10)
//! y   = W_o (RMSNorm(o) ⊙ SiLU(W_g x))
//! ```
//!
//! The state maps keys to values. A token first lets it fade, then moves what it holds for k by β towards v. Under
//! `n_householder` = n > 1 (DeltaProduct, Siems et al. 2025, <https://arxiv.org/abs/2502.10297>) a token writes n keys
//! one after the other, fades once, and is read after the last; the paper also sets `negative_eigenvalues`. With those,
//! β ∈ (0, 2), and the state can count modulo two (Grazzi et al. 2024, <https://arxiv.org/abs/2411.12537>).
//!
//! Cost: O(T·d_model·(d_model + n_features)) time, O(T·d_model) memory. The decoding state is S, n_heads·n_features·width
//! numbers, and the last conv_size − 1 inputs of the convolutions.
//!
//! Differences. The scale of q is not in the paper, but in the code of its authors, in fla and in `transformers`; the norm
//! cancels it up to its ε of 10⁻⁵ (Qwen3-Next: 10⁻⁶). e^(A_log) ~ U(0.01, 16) as in `transformers` (authors: from 0,
//! whose logarithm is −∞). The authors' W_b has a bias; here all maps but W_a have one under `model.bias`. The paper's
//! models have `expand_k` = 0.75 and `expand_v` = 1.5; the default is fla's ratio of 2.
//!
//! Padding leaves the state as it is and is skipped by the convolutions; both begin anew at a document.

use candle_nn::VarBuilder;

use super::onnx::{Layer as OnnxLayer, Output};
use super::recurrent::delta::{DecayKind, DeltaRule, GateKind, Settings, StrengthKind};
use super::recurrent::gated_output::Gate;
use super::recurrent::{self, Layer};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "gated_deltanet"`
    pub struct Config {
        /// Features of a key, as a multiple of a head's width.
        pub expand_k: f64 = 1.,
        /// Features of a value, as a multiple of a head's width.
        pub expand_v: f64 = 2.,
        /// Tokens that a short convolution reads; 0: no convolution.
        pub conv_size: usize = 4,
        /// Heads of queries and keys, a divisor of `model.n_heads`; as many as of values when absent.
        pub n_key_heads: Option<usize> = None,
        /// Keys that a token writes one after the other (DeltaProduct).
        pub n_householder: usize = 1,
        /// Let β reach 2, so that the eigenvalues of a step reach −1.
        pub negative_eigenvalues: bool = false,
        /// The function of the output's gate.
        pub output_gate: Gate = Gate::Silu,
    }
}

impl Config {
    fn settings(&self, n_heads: usize, [n_features, width]: [usize; 2]) -> Settings {
        Settings {
            n_heads,
            n_key_heads: self.n_key_heads.unwrap_or(n_heads),
            n_features,
            width,
            conv_size: self.conv_size,
            steps: self.n_householder,
            decay: DecayKind::OfHeads,
            strength: StrengthKind::of_heads(self.negative_eigenvalues),
            gate: self.output_gate.function().map_or(GateKind::None, GateKind::Full),
        }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "gated_deltanet")?;
        spec.positive("n_householder", self.n_householder)?;
        let n_key_heads = self.n_key_heads.unwrap_or(spec.n_heads);
        spec.positive("n_key_heads", n_key_heads)?;
        if !spec.n_heads.is_multiple_of(n_key_heads) {
            let rule =
                format!("= {n_key_heads} does not divide `model.n_heads` = {}", spec.n_heads);
            return Err(spec.invalid("n_key_heads", &rule));
        }
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
        recurrent::no_graph("gated_deltanet")
    }
}
