//! Lightning attention (Qin et al. 2023, <https://arxiv.org/abs/2307.14995>), as in MiniMax-01
//! (<https://arxiv.org/abs/2501.08313>).
//!
//! ```text
//! q, k, v = SiLU(W x)
//! S_t = e^(−s) S_{t−1} + k_t v_tᵀ,   o_t = S_tᵀ q_t                                            one s per head
//! s = 2^(−8 (h + 1) / n_heads) (1 − l / (n_layers − 1 + 10⁻⁵) + 10⁻⁵)                   of head h in layer l
//! y = W_o (RMSNorm(o) ⊙ σ(W_g x))                                                the norm over all heads
//! ```
//!
//! Retention without rotation, whose constant decays differ by the layer: the later, the longer the memory.
//!
//! Cost: O(T·d_model·(d_model + head_dim)) time, O(T·d_model) memory. The decoding state is S, n_heads·head_dim² numbers.
//!
//! Differences. The slopes s are those of `transformers`' MiniMax; TransNormerLLM and fla have 8 h / n_heads (1 − l /
//! n_layers), whose first head never forgets. The queries are not scaled, as there, and the norm cancels it up to its ε,
//! which is 10⁻⁵ here and 10⁻⁶ there.
//!
//! Padding leaves the state as it is, and it begins anew at a document.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::activation::{Function, silu};
use tealight_ops::gate::gated;
use tealight_ops::norm::rms_norm;

use super::onnx::{Layer as OnnxLayer, Output};
use super::projection::{self, concat_heads};
use super::recurrent::gated_output::{EPSILON, OutputMap};
use super::recurrent::{self, Call, Erase, Inputs, Layer, Recurrent, constant_decay, split_heads};
use super::short_convolution::ShortConvolution;
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention, LayerPlace};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "lightning"`
    pub struct Config {
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "lightning")?;
        let width = spec.d_heads();
        let map = |name| spec.linear(name, width, vb);
        Ok(Box::new(Layer(Lightning {
            query: map("query")?,
            key: map("key")?,
            value: map("value")?,
            convolutions: ShortConvolution::build_all([width; 3], spec, vb)?,
            gate: map("gate")?,
            log_decay: slopes(spec.n_heads, spec.layer).into_iter().map(|slope| -slope).collect(),
            norm: vb.pp("norm").get_with_hints(width, "weight", init::ONE)?,
            output: OutputMap::build(width, spec, vb)?,
            head_dim: spec.head_dim(),
        })))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_model, d_heads, len) = (spec.d_model as f64, spec.d_heads() as f64, q_len as f64);
        let (n_heads, head_dim) = (spec.n_heads as f64, spec.head_dim() as f64);
        let bias = if spec.bias == Bias::With { d_heads } else { 0. };
        let core = AttentionCost {
            parameters: d_model * d_heads + bias + d_heads,
            flops: len * (2. * d_model * d_heads + n_heads * recurrent::flops(head_dim, head_dim)),
            activations: 6. * d_heads * len,
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, _layer: &OnnxLayer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        recurrent::no_graph("lightning")
    }
}

/// s of each head.
fn slopes(n_heads: usize, LayerPlace { index, count, .. }: LayerPlace) -> Vec<f64> {
    let depth = index as f64 / (count as f64 - 1. + 1e-5);
    let slope = |head: usize| (-8. * (head + 1) as f64 / n_heads as f64).exp2();
    (0..n_heads).map(|head| slope(head) * (1. - depth + 1e-5)).collect()
}

#[derive(Debug)]
struct Lightning {
    query: Linear,
    key: Linear,
    value: Linear,
    convolutions: Option<[ShortConvolution; 3]>,
    gate: Linear,
    /// −s, `(n_heads)`
    log_decay: Vec<f64>,
    /// `(n_heads·head_dim)`
    norm: Tensor,
    output: OutputMap,
    head_dim: usize,
}

impl Recurrent for Lightning {
    fn inputs(&self, call: &mut Call<'_>) -> Result<Inputs> {
        let maps = [&self.query, &self.key, &self.value, &self.gate];
        let [query, key, value, gate] = Linear::forward_all(maps, call.x)?;
        let qkv = ShortConvolution::plain_all(
            self.convolutions.as_ref(),
            [query, key, value],
            &mut call.before(),
        )?;
        let [query, key, value] = qkv;
        let heads = |x: &Tensor| split_heads(&silu(x)?, self.head_dim);
        let (batch, len, _d_model) = call.x.dims3()?;
        let log_decay = constant_decay(&self.log_decay, [batch, len], call.x)?;
        Ok(Inputs {
            query: heads(&query)?,
            key: heads(&key)?,
            value: heads(&value)?,
            strength: None,
            erase: Erase::Nothing,
            log_decay: Some(log_decay),
            steps: 1,
            gate: Some(gate),
        })
    }

    fn output(&self, call: &Call<'_>, inputs: &Inputs, context: &Tensor) -> Result<Tensor> {
        let gate = inputs.gate.as_ref().expect("invariant: `inputs` computes a gate");
        let context = rms_norm(&concat_heads(context)?, &self.norm, EPSILON)?;
        self.output.forward(call, &gated(Function::Sigmoid, gate, &context)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_layers_and_later_heads_forget_more_slowly() {
        let of = |index| slopes(2, LayerPlace { index, count: 3, is_first: true });
        let expected = [[1. / 16., 1. / 256.], [1. / 32., 1. / 512.], [0., 0.]];
        for (index, expected) in expected.into_iter().enumerate() {
            for (slope, expected) in of(index).into_iter().zip(expected) {
                assert!((slope - expected).abs() < 1e-6, "layer {index}: {slope}");
            }
        }
        assert!(slopes(3, LayerPlace::ONLY).iter().all(|slope| slope.is_finite()));
    }
}
