//! Multi-scale retention (Sun et al. 2023, <https://arxiv.org/abs/2307.08621>).
//!
//! ```text
//! Retention(X) = (Q Kᵀ ⊙ D) V,   D_nm = γ^(n−m) for m ≤ n, else 0                          eq. (5)
//! S_n = γ S_{n−1} + K_nᵀ V_n,   Retention(X_n) = Q_n S_n                                   eq. (6)
//! γ = 1 − 2^(−5−arange(0, h)),   head_i = Retention(X, γ_i)                                eq. (8)
//! MSR(X) = (swish(X W_G) ⊙ GroupNorm_h(Concat(head₁, …, head_h))) W_O
//! ```
//!
//! Attention without softmax: weights decay with the distance and may be negative, and a norm of each head
//! replaces the denominator. The decoding state is S.
//!
//! Cost: O(seq_len·d_model·(d_model + head_dim)) time, O(seq_len·d_model) memory.
//!
//! The field `gamma` is γ itself, a constant of each head. Q is divided by √head_dim; the other normalisations
//! of §2.2 are left out, since GroupNorm cancels them up to its ε. As in the paper GroupNorm subtracts the mean
//! and divides by the deviation of each head at each position, (x − mean x) / √(var x + ε) with ε = 10⁻⁵; it has
//! no learnt scale or shift. (The authors' code, torchscale, uses RMSNorm.)
//!
//! Under `[model.position] kind = "rotary"` queries and keys are rotated as in eq. (4), by the angles n·θᵢ with
//! θᵢ = base^(−2i/head_dim) and the pairs of its `layout`; otherwise they are not rotated. (torchscale always
//! rotates, with θᵢ = 10000^(−i/(head_dim/2 − 1)).)
//!
//! Score biases are refused, as there is no softmax. Dropout acts on the gated context. Padding is moved behind the
//! tokens, so that S does not decay there. S begins anew at each packed document.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::Tokens;
use tealight_ops::activation::Function;
use tealight_ops::gate::gated;
use tealight_ops::gated_delta_rule::{Erase, Operands, gated_delta_rule};
use tealight_ops::norm::layer_norm;
use tealight_ops::retention::{self, retention};

use super::decoding::refuse_score_bias;
use super::onnx::{Layer, Output, heads};
use super::projection::{self, Heads, Projection, merge_heads};
use super::recurrent::constant_decay;
use super::short_convolution::Before;
use super::state::State;
use super::tokens_first::TokensFirst;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    DecodingState, Memory, RowSum,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::onnx_graph::{OnnxResult, Value};

/// ε of GroupNorm.
const EPSILON: f64 = 1e-5;

settings! {
    /// `[model.attention] kind = "retention"`
    pub struct Config {
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.require_causal("retention", "its state sums over earlier positions")?;
        spec.refuse_score_bias("retention", "it has no softmax")?;
        Ok(Box::new(Retention {
            projection: Projection::build(spec, vb, Heads::default())?,
            gate: spec.linear("gate", spec.d_heads(), vb)?,
            output: projection::output(spec, vb)?,
            gamma: gamma(spec.n_heads),
            scale: 1. / (spec.head_dim() as f64).sqrt(),
            ones: Tensor::ones(spec.head_dim(), vb.dtype(), vb.device())?,
            dropout: Dropout::new(spec.dropout, vb),
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_model, d_heads, len) = (spec.d_model as f64, spec.d_heads() as f64, q_len as f64);
        let bias = if spec.bias == Bias::With { d_heads } else { 0. };
        let core = AttentionCost {
            parameters: d_model * d_heads + bias,
            // The gate's linear map; decay, update and readout of the state.
            flops: (2. * d_model + 5. * spec.head_dim() as f64) * d_heads * len,
            // The gate before and after swish, the normalised context, and their product.
            activations: 4. * d_heads * len,
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    /// In the parallel form, eq. (5).
    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
        let qkv = heads::project(layer, x, Heads::default())?;
        let scale = 1. / (layer.head_dim as f64).sqrt();
        let scores = graph.matmul_transposed(&graph.scale(&qkv.query, scale), &qkv.key);
        let logs: Vec<f64> = gamma(layer.n_heads).iter().map(|gamma| gamma.ln()).collect();
        let logs = Tensor::new(logs, &Device::Cpu)?.reshape((layer.n_heads, 1, 1))?;
        let logs = at.derived(graph, "gamma.ln", &logs)?;
        // γ^(n−m), where n and m count tokens; the future is masked.
        let past = graph.max(&sequence.tokens_between(), &graph.number(0.));
        let decay = graph.exp(&graph.mul(&logs, &past));
        let weights = graph.mul(&scores, &decay);
        let weights = graph.select(&sequence.mask(None).allowed, &weights, &graph.number(0.));
        let context = graph.matmul(&weights, &qkv.value);
        let ones = Tensor::ones(layer.head_dim, DType::F32, &Device::Cpu)?;
        let context = graph.layer_norm(&context, &at.derived(graph, "ones", &ones)?, None, EPSILON);
        let gate = graph.linear(&at.at("gate"), x)?;
        let gate = graph.mul(&gate, &graph.map("Sigmoid", &gate));
        let gated = graph.mul(&gate, &heads::merge(graph, &context));
        let y = graph.linear(&at.at("output"), &gated)?;
        Ok(Some(Output { y, present: qkv.present }))
    }
}

/// γ of each head, eq. (8).
fn gamma(n_heads: usize) -> Vec<f64> {
    (0..n_heads).map(|head| 1. - (-5. - head as f64).exp2()).collect()
}

/// (swish(X W_G) ⊙ GroupNorm(heads)) W_O.
#[derive(Debug)]
struct Retention {
    projection: Projection,
    gate: Linear,
    output: Linear,
    /// γ, `(n_heads)`
    gamma: Vec<f64>,
    scale: f64,
    /// GroupNorm's scale of one, `(head_dim)`
    ones: Tensor,
    dropout: Dropout,
}

impl Attention for Retention {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let tokens = input.mask.tokens()?;
        let qkv = self.rotated(self.projection.project(input)?, 0)?; // (batch, n_heads, len, head_dim)
        let context = if tokens.segments.is_some() {
            self.retained_apart(&qkv, tokens)?
        } else {
            self.retained(&qkv, tokens)?
        };
        let context = self.dropout.forward(&self.gated(input.x, &context)?, input.mode)?;
        self.output.forward(&context)
    }

    /// Q Kᵀ ⊙ D, without GroupNorm.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let tokens = input.mask.tokens()?;
        let [query, key, _value] = self.rotated(self.projection.project(input)?, 0)?;
        let weights = |query: &Tensor, key: &Tensor, padding| {
            retention::reference::weights(query, key, &self.gamma, padding)
        };
        let weights = match TokensFirst::of(tokens)? {
            None => weights(&query, &key, tokens.key_padding_mask)?,
            Some(order) => {
                let [query, key] = [query, key].map(|x| order.apply_to_heads(&x));
                order.undo_in_maps(&weights(&query?, &key?, order.tokens().key_padding_mask)?)?
            }
        };
        let Some(documents) = tokens.numbers()? else { return Ok(weights) };
        let is_other = documents.unsqueeze(2)?.broadcast_ne(&documents.unsqueeze(1)?)?;
        let is_other = is_other.unsqueeze(1)?.broadcast_as(weights.shape())?;
        is_other.where_cond(&weights.zeros_like()?, &weights)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }

    fn decoding_state<'a>(&'a self, _memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        let gamma = Tensor::new(self.gamma.as_slice(), self.ones.device())?;
        let gamma = gamma.to_dtype(self.ones.dtype())?.reshape((1, self.gamma.len(), 1, 1))?;
        let past = State::default();
        Ok(Some(Box::new(Decoding { layer: self, gamma, len: 0, state: None, past })))
    }
}

impl Retention {
    /// Q / √head_dim and K, rotated if positions are rotary, and V: `(batch, n_heads, len, head_dim)`. `start`
    /// is the first position.
    fn rotated(&self, [query, key, value]: [Tensor; 3], start: usize) -> Result<[Tensor; 3]> {
        let query = (query * self.scale)?;
        Ok([self.projection.rotated(&query, start)?, self.projection.rotated(&key, start)?, value])
    }

    /// Retention of Q, K, V, `(batch, n_heads, len, head_dim)`.
    fn retained(&self, qkv: &[Tensor; 3], tokens: Tokens<'_>) -> Result<Tensor> {
        let retained = |[query, key, value]: &[Tensor; 3], Tokens { key_padding_mask, .. }| {
            retention(query, key, value, &self.gamma, key_padding_mask)
        };
        match TokensFirst::of(tokens)? {
            None => retained(qkv, tokens),
            Some(order) => {
                let [query, key, value] = qkv.each_ref().map(|x| order.apply_to_heads(x));
                order.undo_in_heads(&retained(&[query?, key?, value?], order.tokens())?)
            }
        }
    }

    /// The same of each document of a packed sequence, as the gated delta rule that erases nothing.
    fn retained_apart(&self, qkv: &[Tensor; 3], tokens: Tokens<'_>) -> Result<Tensor> {
        let [query, key, value] = qkv.each_ref().map(|x| x.transpose(1, 2)?.contiguous());
        let (query, key, value) = (query?, key?, value?);
        let (batch, len, _n_heads, _head_dim) = query.dims4()?;
        let log_decay: Vec<f64> = self.gamma.iter().map(|gamma| gamma.ln()).collect();
        let log_decay = constant_decay(&log_decay, [batch, len], &query)?;
        let operands = Operands {
            query: &query,
            key: &key,
            value: &value,
            strength: None,
            erase: Erase::Nothing,
            log_decay: Some(&log_decay),
            state: None,
        };
        let [context, _state] = gated_delta_rule(&operands, tokens)?;
        context.transpose(1, 2)?.contiguous()
    }

    /// swish(X W_G) ⊙ GroupNorm(context): `x (batch, len, d_model)` and `context (batch, n_heads,
    /// len, head_dim)` → `(batch, len, n_heads·head_dim)`
    fn gated(&self, x: &Tensor, context: &Tensor) -> Result<Tensor> {
        let context = layer_norm(context, &self.ones, None, EPSILON)?;
        gated(Function::Silu, &self.gate.forward(x)?, &merge_heads(&context)?)
    }
}

/// The decoding state.
#[derive(Debug)]
struct Decoding<'a> {
    layer: &'a Retention,
    /// γ, `(1, n_heads, 1, 1)`
    gamma: Tensor,
    /// Positions so far.
    len: usize,
    /// S, `(batch, n_heads, head_dim, head_dim)`
    state: Option<Tensor>,
    /// What the convolutions behind the maps still read.
    past: State,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let qkv = self.layer.projection.project_after(x, &mut Before::after(&mut self.past))?;
        let [query, key, value] = self.layer.rotated(qkv, self.len)?;
        let (_batch, n_new, _d_model) = x.dims3()?;
        let contexts = (0..n_new).map(|i| {
            let at = |x: &Tensor| x.narrow(2, i, 1)?.contiguous();
            at(&query)?.matmul(&self.update(&at(&key)?, &at(&value)?)?)
        });
        let context = Tensor::cat(&contexts.collect::<Result<Vec<_>>>()?, 2)?;
        self.len += n_new;
        self.layer.output.forward(&self.layer.gated(x, &context)?)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        self.state.iter_mut().chain(self.past.tensors_mut()).collect()
    }
}

impl Decoding<'_> {
    /// Eq. (6): S after one more key and value, `(batch, n_heads, 1, head_dim)` each.
    fn update(&mut self, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let new = key.t()?.contiguous()?.matmul(value)?;
        let state = match &self.state {
            None => new,
            Some(state) => (state.broadcast_mul(&self.gamma)? + new)?,
        };
        self.state = Some(state.clone());
        Ok(state)
    }
}
