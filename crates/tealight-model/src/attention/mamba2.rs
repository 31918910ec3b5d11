//! Mamba-2 (Dao and Gu 2024, <https://arxiv.org/abs/2405.21060>).
//!
//! ```text
//! x, B, C = SiLU(conv(W u) + b),   Δ_t = softplus(W_Δ u_t + dt_bias),   A = −e^(A_log)          one Δ and A per head
//! h_t = e^(Δ_t A) h_{t−1} + Δ_t B_t x_tᵀ,   y_t = h_tᵀ C_t + D x_t                              eq. (1), §7
//! out = W_out (RMSNorm(y ⊙ SiLU(W_z u)))
//! ```
//!
//! A state space model with one decay for each head: B, C and x are keys, queries and values. The layer has
//! `expand`·n_heads heads of `model.head_dim` channels and `d_state` features; heads of a group share B and C.
//!
//! Cost: O(T·d_model·(d_model + d_state)) time, O(T·d_model) memory. The decoding state is h, n_heads·d_state·head_dim
//! numbers with the heads of the layer, and the last conv_size − 1 inputs of the convolutions.
//!
//! Differences. The authors' W_in is one matrix of the rows z, x, B, C and Δ; here each has its map (`gate`, `value`,
//! `key`, `query`, `step`), and each of x, B and C its part of the one convolution, which is the same map. A ~ U(1, 16)
//! as theirs (`transformers`: 1, 2, … n_heads). The gate comes before the norm, which is over all heads of a group, ε =
//! 10⁻⁵. There are no limits of Δ (`dt_limit` of the authors: none by default). `model.bias` adds biases to the maps of z, x,
//! B, C, Δ and the output, which the authors' have not (`bias = false` by default).
//!
//! Padding leaves the state as it is and is skipped by the convolutions; both begin anew at a document.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::Tokens;
use tealight_ops::activation::Function;
use tealight_ops::broadcast::{broadcast_mul, scale_rows};
use tealight_ops::gate::gated;
use tealight_ops::norm::rms_norm;
use tealight_ops::residual::residual;
use tealight_ops::softplus::scaled_softplus;

use super::onnx::{Layer as OnnxLayer, Output};
use super::projection::concat_heads;
use super::recurrent::convolution::ShortProjection;
use super::recurrent::decay::{inverse_softplus, step};
use super::recurrent::gated_output::{EPSILON, OutputMap};
use super::recurrent::{self, Call, Erase, Inputs, Layer, Recurrent, split_heads, wide};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::onnx_graph::{OnnxResult, Value};
use crate::params::get_drawn;

settings! {
    /// `[model.attention] kind = "mamba2"`
    pub struct Config {
        /// Channels of the layer, as a multiple of those of all heads: so many times `model.n_heads` heads.
        pub expand: usize = 2,
        /// Features of a key, which the state holds for each channel.
        pub d_state: usize = 128,
        /// Groups of heads that share B and C, a divisor of the number of heads.
        pub n_groups: usize = 1,
        /// Tokens that a short convolution reads; 0: no convolution.
        pub conv_size: usize = 4,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "mamba2")?;
        for (name, value) in
            [("expand", self.expand), ("d_state", self.d_state), ("n_groups", self.n_groups)]
        {
            spec.positive(name, value)?;
        }
        let n_heads = self.expand.saturating_mul(spec.n_heads);
        if !n_heads.is_multiple_of(self.n_groups) {
            let rule = format!(
                "= {} does not divide the number of heads, `expand`·`model.n_heads` = {n_heads}",
                self.n_groups
            );
            return Err(spec.invalid("n_groups", &rule));
        }
        let channels = n_heads.saturating_mul(spec.head_dim());
        let of_groups = self.n_groups.saturating_mul(self.d_state);
        let convolution = (self.conv_size, Bias::With);
        let projection = |name, width| ShortProjection::build(name, width, convolution, spec, vb);
        let steps = vb.pp("step");
        let weight = spec.init.weight(spec.d_model);
        Ok(Box::new(Layer(Mamba2 {
            query: projection("query", of_groups)?,
            key: projection("key", of_groups)?,
            value: projection("value", channels)?,
            gate: spec.linear("gate", channels, vb)?,
            step: Linear::build([spec.d_model, n_heads], Bias::Without, weight, &steps)?,
            dt_bias: get_drawn(&steps, n_heads, "dt_bias", |stream, i| {
                inverse_softplus(step(stream.uniform(i)))
            })?,
            a_log: get_drawn(vb, n_heads, "a_log", |stream, i| {
                (1. + 15. * stream.uniform(i)).ln()
            })?,
            skip: vb.get_with_hints(n_heads, "skip", init::ONE)?,
            norm: vb.pp("norm").get_with_hints(channels, "weight", init::ONE)?,
            output: OutputMap::build(channels, spec, vb)?,
            n_groups: self.n_groups,
            d_state: self.d_state,
        })))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, _kv_len: usize) -> AttentionCost {
        let n_heads = self.expand as f64 * spec.n_heads as f64;
        let (d_model, len, width) = (spec.d_model as f64, q_len as f64, spec.head_dim() as f64);
        let (channels, d_state) = (n_heads * width, self.d_state as f64);
        let convolved = channels + 2. * self.n_groups as f64 * d_state;
        let size = self.conv_size as f64;
        let bias = f64::from(u8::from(spec.bias == Bias::With));
        let matrices = d_model * (2. * channels + convolved + n_heads);
        let of_convolution = if self.conv_size == 0 { 0. } else { (size + 1.) * convolved };
        let vectors = 3. * n_heads + channels + bias * (channels + convolved + d_model);
        AttentionCost {
            parameters: matrices + of_convolution + vectors,
            flops: len
                * (2. * matrices
                    + 2. * size * convolved
                    + n_heads * recurrent::flops(d_state, width)),
            // Maps, convolutions, gate and norm; the states before chunks.
            activations: len * (4. * convolved + 7. * channels + channels * d_state / 64.),
        }
    }

    fn onnx(&self, _layer: &OnnxLayer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        recurrent::no_graph("mamba2")
    }
}

#[derive(Debug)]
struct Mamba2 {
    /// C.
    query: ShortProjection,
    /// B.
    key: ShortProjection,
    /// x.
    value: ShortProjection,
    /// z.
    gate: Linear,
    /// Δ, before its bias.
    step: Linear,
    /// `(n_heads)`, as the next two.
    dt_bias: Tensor,
    a_log: Tensor,
    /// D.
    skip: Tensor,
    /// `(n_heads·head_dim)`
    norm: Tensor,
    output: OutputMap,
    n_groups: usize,
    d_state: usize,
}

impl Mamba2 {
    /// RMSNorm over the channels of each group.
    fn normalised(&self, x: &Tensor) -> Result<Tensor> {
        if self.n_groups == 1 {
            return rms_norm(x, &self.norm, EPSILON);
        }
        let width = self.norm.elem_count() / self.n_groups;
        let ones = Tensor::ones(width, x.dtype(), x.device())?;
        let normalised = rms_norm(&split_heads(x, width)?, &ones, EPSILON)?;
        broadcast_mul(&concat_heads(&normalised)?, &self.norm)
    }
}

impl Recurrent for Mamba2 {
    fn inputs(&self, call: &mut Call<'_>) -> Result<Inputs> {
        let maps = [&self.query, &self.key, &self.value];
        let [query, key, value] = ShortProjection::forward_all(maps, call)?;
        let [gate, step] = Linear::forward_all([&self.gate, &self.step], call.x)?;
        let (bias, a) = (wide(&self.dt_bias)?, wide(&self.a_log)?.exp()?.neg()?);
        let step = scaled_softplus(&wide(&step)?, &bias, &bias.ones_like()?)?;
        let head_dim = self.norm.elem_count() / self.a_log.elem_count();
        Ok(Inputs {
            query: split_heads(&query, self.d_state)?,
            key: split_heads(&key, self.d_state)?,
            value: split_heads(&value, head_dim)?,
            log_decay: Some(step.broadcast_mul(&a)?),
            strength: Some(step),
            erase: Erase::Nothing,
            steps: 1,
            gate: Some(gate),
        })
    }

    fn output(&self, call: &Call<'_>, inputs: &Inputs, context: &Tensor) -> Result<Tensor> {
        let skipped = scale_rows(&inputs.value, &self.skip)?;
        let y = concat_heads(&residual(context, &skipped, None)?)?;
        let gate = inputs.gate.as_ref().expect("invariant: `inputs` computes a gate");
        let y = self.normalised(&gated(Function::Silu, gate, &y)?)?;
        self.output.forward(call, &y)
    }

    /// With D on the diagonal, but for padding.
    fn weights(&self, of_rule: Tensor, tokens: Tokens<'_>) -> Result<Tensor> {
        let (batch, n_heads, len, _len) = of_rule.dims4()?;
        let identity = Tensor::eye(len, of_rule.dtype(), of_rule.device())?;
        let skip = self.skip.to_dtype(of_rule.dtype())?.reshape((1, n_heads, 1, 1))?;
        let mut skip = skip.broadcast_mul(&identity)?;
        if let Some(padding) = tokens.key_padding_mask {
            let is_real =
                padding.eq(0_u8)?.to_dtype(of_rule.dtype())?.reshape((batch, 1, 1, len))?;
            skip = skip.broadcast_mul(&is_real)?;
        }
        of_rule.broadcast_add(&skip)
    }
}
