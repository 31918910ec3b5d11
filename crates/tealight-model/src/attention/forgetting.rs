//! Forgetting attention, "FoX" (Lin et al. 2025, <https://arxiv.org/abs/2503.02130>).
//!
//! ```text
//! f_t = σ(w_f·x_t + b_f)                                                        of each head
//! F_ij = Π_{l=j+1..i} f_l                                   what is left at query i of key j
//! o_i = Σ_{j≤i} F_ij e^(q_i·k_j/√head_dim) v_j / Σ_{j≤i} F_ij e^(q_i·k_j/√head_dim)
//! ```
//!
//! ln F_ij = c_i − c_j, with c the cumulative sum of ln f, joins the scores ([`tealight_ops::attention`]). With f = 1 it is
//! softmax attention, with a constant f ALiBi. The gates tell positions apart, and the paper uses no others. Scores are
//! divided by √head_dim, gates are not. b_f begins at 0; it is there whatever `model.bias` says.
//!
//! `pro` is the paper's block "Pro": keys and values mixed with those of the token before (Peng et al. 2023), norms, a gate.
//!
//! ```text
//! α_t = σ(w_k·x_t),   k̂_t = α_t k_{t−1} + (1 − α_t) k_t            of each head; v likewise, with w_v
//! q ← g_q ⊙ RMSNorm(q),   k̂ ← g_k ⊙ RMSNorm(k̂)                     ε = 1e-5, a gain of each channel
//! y = (σ(X W_g) ⊙ g_o ⊙ RMSNorm(o)) W^O                             ε = 1e-6
//! ```
//!
//! The mix comes before the norm, and k_{t−1} is the key before its own mix. Norms are of each head. `fla`'s layer has
//! neither the mix nor the norm of the output; the authors' first version shared g_q and g_k between heads by mistake, which
//! they kept as an option; here each head has its own.
//!
//! Padding forgets nothing, and the token before is the one before in the document, padding left out.
//!
//! Cost: that of causal softmax attention: O(T²·d_model) time, O(T·d_model) memory. The cache holds keys, values and ln f,
//! and of `pro` also the last key and value before their mix. The pruning of Lin et al. 2025b
//! (<https://arxiv.org/abs/2504.06949>) is left out.

use candle_core::{Result, Tensor, bail};
use candle_nn::{VarBuilder, init};
use tealight_ops::activation::{Function, sigmoid};
use tealight_ops::attention::{Layout, Options, attention, weights};
use tealight_ops::gate::gated;
use tealight_ops::norm::rms_norm;
use tealight_ops::reshape;
use tealight_ops::softplus::log_sigmoid;

use super::cache::{self, CachedLayer};
use super::previous::previous_tokens;
use super::projection::{self, Heads, Projection, concat_heads};
use super::recurrent::wide;
use super::short_convolution::Before;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    Memory, Reads,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mask::Mask;
use crate::mode::Mode;

const QK_EPSILON: f64 = 1e-5;
const OUTPUT_EPSILON: f64 = 1e-6;

settings! {
    /// `[model.attention] kind = "forgetting"`
    pub struct Config {
        /// Mix keys and values with those of the token before, normalise queries, keys and heads, and gate the heads.
        pub pro: bool = false,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.require_causal("forgetting", "a gate forgets what came before it")?;
        spec.refuse_rotary("forgetting", "its gates tell positions apart")?;
        let gates = spec.init.weight(spec.d_model);
        let pro = self.pro.then(|| Pro::build(spec, vb)).transpose()?;
        Ok(Box::new(Forgetting {
            projection: Projection::build(spec, vb, Heads::default())?,
            forget: Linear::build(
                [spec.d_model, spec.n_heads],
                Bias::With,
                gates,
                &vb.pp("forget"),
            )?,
            pro,
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let [d_model, d_heads, n_heads] =
            [spec.d_model, spec.d_heads(), spec.n_heads].map(|n| n as f64);
        let (q_len, kv_len) = (q_len as f64, kv_len as f64);
        let core = AttentionCost {
            parameters: (d_model + 1.) * n_heads,
            flops: 4. * q_len * kv_len * d_heads + 2. * d_model * n_heads * kv_len,
            activations: (2. * q_len + 4. * kv_len) * n_heads,
        };
        let cost = projection::cost(spec, [q_len as usize, kv_len as usize]) + core;
        if !self.pro {
            return cost;
        }
        let biases = if spec.bias == Bias::With { 2. * n_heads + d_heads } else { 0. };
        cost + AttentionCost {
            parameters: (2. * n_heads + d_heads) * d_model + 3. * d_heads + biases,
            flops: (2. * (2. * n_heads + d_heads) * d_model + 20. * d_heads) * q_len,
            activations: 10. * d_heads * q_len,
        }
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}

#[derive(Debug)]
struct Forgetting {
    projection: Projection,
    forget: Linear,
    pro: Option<Pro>,
    dropout: Dropout,
    output: Linear,
}

/// What the block "Pro" adds.
#[derive(Debug)]
struct Pro {
    key_shift: Linear,
    value_shift: Linear,
    query_norm: Tensor,
    key_norm: Tensor,
    output_norm: Tensor,
    gate: Linear,
}

impl Pro {
    fn build(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        let norm =
            |name| vb.pp(name).get_with_hints((spec.n_heads, spec.head_dim()), "weight", init::ONE);
        Ok(Self {
            key_shift: spec.linear("key_shift", spec.n_heads, vb)?,
            value_shift: spec.linear("value_shift", spec.n_heads, vb)?,
            query_norm: norm("query_norm")?,
            key_norm: norm("key_norm")?,
            output_norm: norm("output_norm")?,
            gate: spec.linear("gate", spec.d_heads(), vb)?,
        })
    }
}

/// gain ⊙ x / √(mean(x²) + ε) within each head: `x (batch, len, n_heads, head_dim)`, `gain (n_heads, head_dim)`
fn normalised(x: &Tensor, gain: &Tensor, epsilon: f64) -> Result<Tensor> {
    let (_n_heads, head_dim) = gain.dims2()?;
    let ones = Tensor::ones(head_dim, x.dtype(), x.device())?;
    rms_norm(x, &ones, epsilon)?.broadcast_mul(gain)
}

/// α ⊙ previous + (1 − α) ⊙ x, with α = σ(`logits (batch, len, n_heads)`) of each head.
fn mixed(x: &Tensor, previous: &Tensor, logits: &Tensor) -> Result<Tensor> {
    let alpha = sigmoid(logits)?.unsqueeze(3)?;
    (previous - x)?.broadcast_mul(&alpha)? + x
}

impl Forgetting {
    /// Keys, values and ln f, `(batch, len, n_heads, ..)`.
    fn keys_values_gates(
        &self,
        x: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<[Tensor; 3]> {
        let (mut key, mut value) = self.projection.keys_and_values(x, start, before)?;
        if let Some(pro) = &self.pro {
            let [before_key, before_value] = [("last_key", &key), ("last_value", &value)]
                .map(|(name, x)| previous_tokens(name, x, before));
            key = mixed(&key, &before_key?, &pro.key_shift.forward(x)?)?;
            value = mixed(&value, &before_value?, &pro.value_shift.forward(x)?)?;
            key = normalised(&key, &pro.key_norm, QK_EPSILON)?;
        }
        Ok([key, value, log_sigmoid(&wide(&self.forget.forward(x)?)?)?])
    }

    fn options<'a>(&self, log_forget: &'a Tensor, mask: &'a Mask, mode: Mode) -> Options<'a> {
        Options {
            causal: true,
            dropout: self.dropout.draw(mode),
            key_padding_mask: mask.key_padding_mask(),
            segments: mask.segments(),
            attn_mask: mask.attn_mask(),
            log_forget: Some(log_forget),
            layout: Layout::HeadsLast,
            ..Options::default()
        }
    }
}

/// `(batch, len, n_heads)` → `(batch, n_heads, len)`
fn heads_first(gates: &Tensor) -> Result<Tensor> {
    gates.transpose(1, 2)?.contiguous()
}

impl Attention for Forgetting {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(Reads::Past)?;
        let mut before = Before::whole(input.mask);
        let cached = self.keys_values_gates(x, 0, &mut before)?;
        let query = self.queries(x, 0, &mut before)?;
        let heads = self.attend(&query, &cached, input.mask, input.mode)?;
        CachedLayer::output(self, x, &heads)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(Reads::Past)?;
        let mut before = Before::whole(input.mask);
        let [key, _value, gates] = self.keys_values_gates(x, 0, &mut before)?;
        let gates = heads_first(&gates)?;
        let query = self.queries(x, 0, &mut before)?;
        weights(&query, &key, &self.options(&gates, input.mask, Mode::Eval))
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl CachedLayer for Forgetting {
    fn reads(&self) -> Reads {
        Reads::Past
    }

    fn queries(&self, x: &Tensor, start: usize, before: &mut Before<'_>) -> Result<Tensor> {
        let query = self.projection.queries(x, start, before)?;
        match &self.pro {
            Some(pro) => normalised(&query, &pro.query_norm, QK_EPSILON),
            None => Ok(query),
        }
    }

    fn cached(
        &self,
        source: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<Vec<Tensor>> {
        Ok(self.keys_values_gates(source, start, before)?.to_vec())
    }

    fn attend(&self, query: &Tensor, cached: &[Tensor], mask: &Mask, mode: Mode) -> Result<Tensor> {
        let [key, value, gates] = cached else { bail!("a cache of {} tensors", cached.len()) };
        let gates = heads_first(gates)?;
        concat_heads(&attention(query, key, value, &self.options(&gates, mask, mode))?)
    }

    fn output(&self, x: &Tensor, heads: &Tensor) -> Result<Tensor> {
        let Some(pro) = &self.pro else { return self.output.forward(heads) };
        let (batch, len, width) = heads.dims3()?;
        let (n_heads, head_dim) = pro.output_norm.dims2()?;
        let by_head = reshape(heads, (batch, len, n_heads, head_dim))?;
        let normed = concat_heads(&normalised(&by_head, &pro.output_norm, OUTPUT_EPSILON)?)?;
        debug_assert_eq!(width, n_heads * head_dim);
        self.output.forward(&gated(Function::Sigmoid, &pro.gate.forward(x)?, &normed)?)
    }
}
