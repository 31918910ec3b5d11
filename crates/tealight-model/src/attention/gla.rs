//! Gated linear attention (Yang et al. 2023, <https://arxiv.org/abs/2312.06635>).
//!
//! ```text
//! q = W_q x / √n_features,   k = W_k x,   v = W_v x
//! ln α_t = ln σ(W₂ W₁ x_t + b) / 16                                                            per feature
//! S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ,   o_t = S_tᵀ q_t
//! y   = W_o (RMSNorm(o) ⊙ SiLU(W_g x))
//! ```
//!
//! Cost: O(T·d_model·(d_model + n_features)) time, O(T·d_model) memory. The decoding state is S, n_heads·n_features·width
//! numbers.
//!
//! Differences. W_q, W_k, W₁ and W₂ begin as the authors' do, Xavier-uniform with a gain of 2^(−5/2), under `fan_in`; the
//! division by 16 keeps α near 1. The norm is fla's RMSNorm with a weight, after the rule and before the gate (authors'
//! first code: LayerNorm without a weight, and a bias of W_g). Neither paper nor code has a convolution or an activation
//! of q, k and v.
//!
//! Padding leaves the state as it is, and it begins anew at a document.

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder, init};
use tealight_ops::activation::Function;
use tealight_ops::softplus::scaled_softplus;

use super::onnx::{Layer as OnnxLayer, Output};
use super::recurrent::gated_output::GatedOutput;
use super::recurrent::{self, Call, Erase, Inputs, Layer, Recurrent, split_heads, wide};
use super::short_convolution::{self, ShortConvolution};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::onnx_graph::{OnnxResult, Value};

/// What ln σ is divided by.
const NORMALISER: f64 = 16.;

settings! {
    /// `[model.attention] kind = "gla"`
    pub struct Config {
        /// Features of a key, as a multiple of a head's width.
        pub expand_k: f64 = 0.5,
        /// Features of a value, as a multiple of a head's width.
        pub expand_v: f64 = 1.,
        /// The rank of the map of the decays.
        pub rank: usize = 16,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "gla")?;
        recurrent::check_rank(spec, Some(self.rank))?;
        let n_features = recurrent::width(spec, "expand_k", self.expand_k)?;
        let width = recurrent::width(spec, "expand_v", self.expand_v)?;
        let (keys, values) = (spec.n_heads * n_features, spec.n_heads * width);
        let map = |name: &str, [n_in, n_out]: [usize; 2], bias| {
            let weight = spec.init.weight_or(n_in, xavier(n_in, n_out));
            Linear::build([n_in, n_out], bias, weight, &vb.pp(name))
        };
        Ok(Box::new(Layer(Gla {
            query: map("query", [spec.d_model, keys], spec.bias)?,
            key: map("key", [spec.d_model, keys], spec.bias)?,
            value: spec.linear("value", values, vb)?,
            convolutions: ShortConvolution::build_all([keys, keys, values], spec, vb)?,
            gate: spec.linear("gate", values, vb)?,
            down: map("decay.down", [spec.d_model, self.rank], Bias::Without)?,
            up: map("decay.up", [self.rank, keys], Bias::Without)?,
            bias: vb.pp("decay.up").get_with_hints(keys, "bias", init::ZERO)?,
            output: GatedOutput::build([spec.n_heads, width], Some(Function::Silu), spec, vb)?,
            n_features,
            width,
        })))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, _kv_len: usize) -> AttentionCost {
        let [n_features, width] = [self.expand_k, self.expand_v]
            .map(|factor| recurrent::width_of_cost(spec, factor) as f64);
        let (d_model, n_heads, rank) = (spec.d_model as f64, spec.n_heads as f64, self.rank as f64);
        let (keys, values, len) = (n_heads * n_features, n_heads * width, q_len as f64);
        let bias = f64::from(u8::from(spec.bias == Bias::With));
        let matrices = d_model * (2. * keys + 3. * values + rank) + rank * keys;
        let channels = (2. * keys + values) as usize;
        short_convolution::cost(spec, channels, q_len)
            + AttentionCost {
                parameters: matrices + keys + width + bias * (2. * keys + 2. * values + d_model),
                flops: len * (2. * matrices + n_heads * recurrent::flops(n_features, width)),
                activations: len * (4. * keys + 5. * values + rank),
            }
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, _layer: &OnnxLayer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        recurrent::no_graph("gla")
    }
}

/// Glorot and Bengio's uniform distribution with a gain of 2^(−5/2).
fn xavier(n_in: usize, n_out: usize) -> Init {
    let bound = (-2.5_f64).exp2() * (6. / (n_in + n_out) as f64).sqrt();
    Init::Uniform { lo: -bound, up: bound }
}

#[derive(Debug)]
struct Gla {
    query: Linear,
    key: Linear,
    value: Linear,
    convolutions: Option<[ShortConvolution; 3]>,
    gate: Linear,
    down: Linear,
    up: Linear,
    /// `(n_heads·n_features)`
    bias: Tensor,
    output: GatedOutput,
    n_features: usize,
    width: usize,
}

impl Recurrent for Gla {
    fn inputs(&self, call: &mut Call<'_>) -> Result<Inputs> {
        let maps = [&self.query, &self.key, &self.value, &self.gate, &self.down];
        let [query, key, value, gate, down] = Linear::forward_all(maps, call.x)?;
        let [query, key, value] = ShortConvolution::activated_all(
            self.convolutions.as_ref(),
            [query, key, value],
            &mut call.before(),
        )?;
        // ln σ(z) = −softplus(−z)
        let bias = wide(&self.bias)?;
        let scale = bias.ones_like()?.affine(-1. / NORMALISER, 0.)?;
        let logits = wide(&self.up.forward(&down)?)?;
        let log_decay = scaled_softplus(&logits.neg()?, &bias.neg()?, &scale)?;
        Ok(Inputs {
            query: (split_heads(&query, self.n_features)? * (self.n_features as f64).powf(-0.5))?,
            key: split_heads(&key, self.n_features)?,
            value: split_heads(&value, self.width)?,
            strength: None,
            erase: Erase::Nothing,
            log_decay: Some(split_heads(&log_decay, self.n_features)?),
            steps: 1,
            gate: Some(gate),
        })
    }

    fn output(&self, call: &Call<'_>, inputs: &Inputs, context: &Tensor) -> Result<Tensor> {
        self.output.forward(call, context, inputs.gate.as_ref())
    }
}
