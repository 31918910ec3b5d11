//! HGRN2 (Qin et al. 2024, <https://arxiv.org/abs/2404.07904>).
//!
//! ```text
//! q = SiLU(W_q x),   v = W_i x,   f_t = b + (1 − b) σ(W_f x_t),   k_t = 1 − f_t                 per feature
//! S_t = Diag(f_t) S_{t−1} + k_t v_tᵀ,   o_t = S_tᵀ q_t
//! y   = W_o RMSNorm(o)                                                           the norm over all heads
//! ```
//!
//! A feature that forgets at the rate f writes with the strength 1 − f, so it is a weighted mean of what it read. The
//! lower bounds b of the forget gates grow with the depth, so that later layers remember longer.
//!
//! Cost: O(T·d_model·(d_model + head_dim)) time, O(T·d_model) memory. The decoding state is S, n_heads·head_dim² numbers.
//!
//! Differences. In the paper one matrix gives all layers their b, as running sums of a softmax over the layers, which
//! begin as l / n_layers in layer l. Here each layer has its own, b = σ(`lower_bound`), which begins there; the first has
//! b = 0. k is computed as (1 − b) σ(−W_f x), and ln f from logarithms: 1 − f would lose its digits where f is near 1. The
//! queries are not scaled, as in the paper (fla divides them by √head_dim); the norm cancels it up to its ε of 10⁻⁵.
//!
//! Padding leaves the state as it is, and it begins anew at a document.

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder, init};
use tealight_ops::activation::{sigmoid, silu};
use tealight_ops::norm::rms_norm;
use tealight_ops::softplus::{log_sigmoid, softplus};

use super::onnx::{Layer as OnnxLayer, Output};
use super::projection::{self, concat_heads};
use super::recurrent::gated_output::{EPSILON, OutputMap};
use super::recurrent::{self, Call, Erase, Inputs, Layer, Recurrent, split_heads, wide};
use super::short_convolution::ShortConvolution;
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention, LayerPlace};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::linear::Linear;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "hgrn2"`
    pub struct Config {
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "hgrn2")?;
        let width = spec.d_heads();
        let map = |name| spec.linear(name, width, vb);
        let bound = (spec.layer.index > 0)
            .then(|| vb.get_with_hints(width, "lower_bound", Init::Const(logit(spec.layer))));
        Ok(Box::new(Layer(Hgrn2 {
            query: map("query")?,
            forget: map("forget")?,
            value: map("value")?,
            convolutions: ShortConvolution::build_all([width; 3], spec, vb)?,
            lower_bound: bound.transpose()?,
            norm: vb.pp("norm").get_with_hints(width, "weight", init::ONE)?,
            output: OutputMap::build(width, spec, vb)?,
            head_dim: spec.head_dim(),
        })))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_heads, len) = (spec.d_heads() as f64, q_len as f64);
        let (n_heads, head_dim) = (spec.n_heads as f64, spec.head_dim() as f64);
        let of_bound = if spec.layer.index > 0 { d_heads } else { 0. };
        let core = AttentionCost {
            parameters: d_heads + of_bound,
            flops: len * (n_heads * recurrent::flops(head_dim, head_dim) + 20. * d_heads),
            activations: 8. * d_heads * len,
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, _layer: &OnnxLayer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        recurrent::no_graph("hgrn2")
    }
}

/// z with σ(z) = l / n_layers.
fn logit(LayerPlace { index, count, .. }: LayerPlace) -> f64 {
    (index as f64 / (count - index) as f64).ln()
}

#[derive(Debug)]
struct Hgrn2 {
    query: Linear,
    forget: Linear,
    value: Linear,
    /// Those of the query and of the forget gate have no activation but their own; that of the gate is called `key`.
    convolutions: Option<[ShortConvolution; 3]>,
    /// The logit of b, `(n_heads·head_dim)`; `None`: b = 0.
    lower_bound: Option<Tensor>,
    /// `(n_heads·head_dim)`
    norm: Tensor,
    output: OutputMap,
    head_dim: usize,
}

impl Hgrn2 {
    /// ln f, `(batch, len, n_heads·head_dim)`
    fn log_forget(&self, logits: &Tensor) -> Result<Tensor> {
        let own = log_sigmoid(&wide(logits)?)?;
        let Some(bound) = &self.lower_bound else { return Ok(own) };
        let bound = wide(bound)?;
        // ln (1 − b) + ln σ(z), and ln b; then the logarithm of the sum, relative to the larger.
        let rest = own.broadcast_add(&log_sigmoid(&bound.neg()?)?)?;
        let bound = log_sigmoid(&bound)?.broadcast_as(rest.shape())?;
        let difference = (rest - &bound)?;
        bound + softplus(&difference)?
    }

    /// 1 − f, `(batch, len, n_heads·head_dim)`
    fn key(&self, logits: &Tensor) -> Result<Tensor> {
        let key = sigmoid(&logits.neg()?)?;
        match &self.lower_bound {
            Some(bound) => key.broadcast_mul(&sigmoid(&bound.neg()?)?),
            None => Ok(key),
        }
    }
}

impl Recurrent for Hgrn2 {
    fn inputs(&self, call: &mut Call<'_>) -> Result<Inputs> {
        let maps = [&self.query, &self.forget, &self.value];
        let [mut query, mut forget, mut value] = Linear::forward_all(maps, call.x)?;
        if let Some([of_query, of_forget, of_value]) = &self.convolutions {
            let mut before = call.before();
            query = of_query.forward(&query, &mut before)?;
            forget = of_forget.forward(&forget, &mut before)?;
            value = ShortConvolution::activated(Some(of_value), &value, &mut before)?;
        }
        let heads = |x: &Tensor| split_heads(x, self.head_dim);
        let log_forget = self.log_forget(&forget)?;
        Ok(Inputs {
            query: heads(&silu(&query)?)?,
            key: heads(&self.key(&forget)?)?,
            value: heads(&value)?,
            strength: None,
            erase: Erase::Nothing,
            log_decay: Some(heads(&log_forget)?),
            steps: 1,
            gate: None,
        })
    }

    fn output(&self, call: &Call<'_>, _inputs: &Inputs, context: &Tensor) -> Result<Tensor> {
        self.output.forward(call, &rms_norm(&concat_heads(context)?, &self.norm, EPSILON)?)
    }
}
