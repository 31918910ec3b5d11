//! Log-linear attention (Guo et al. 2025, <https://arxiv.org/abs/2506.04761>) over a decaying linear attention.
//!
//! ```text
//! o_t = Σ_{s≤t} λ_t^(level(t,s)) (Π_{l=s+1..t} α_l) (q_t·k_s / √head_dim) v_s,   y = RMSNorm(o) W^O
//! level(t, s) = 0 for s = t, else 1 + the highest bit in which t and s differ
//! log α_t = −e^A softplus(w_α·x_t + b_α),   λ_t = softplus(L ⊙ W_λ x_t)                     of each head
//! ```
//!
//! The past falls into log₂ T + 1 spans, the nearer the shorter (a Fenwick tree), and a query weighs each span by itself.
//! With λ = 1 it is a linear attention with a scalar decay. A decoding state is one matrix for each level: before token t, the
//! levels up to the lowest set bit b of t merge into level b + 1.
//!
//! The decay is that of Mamba-2 with other initial values: A and b_α are uniform in the logarithms of [1, 16] and of
//! [0.001, 0.1]. L (n_heads, levels) begins at 1. The paper's layers have a short convolution and a gate; here neither is
//! there. Its code has 15 levels at most; here as many as `model.max_seq_len` needs.
//!
//! t counts the tokens of a document from 0, padding left out, so padding changes nothing and documents are apart.
//!
//! Cost: O(T²·d_model) time here; the paper's chunks take O(T·log T). Memory is O(T·128) for each head, as in
//! [`dense`](super::dense). The decoding state has (log₂ T + 1)·head_dim² numbers for each head.

use candle_core::{D, DType, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder, init};
use tealight_ops::matmul::{matmul, matmul_transposed};
use tealight_ops::norm::rms_norm;
use tealight_ops::recompute::checkpoint;
use tealight_ops::softplus::softplus;
use tealight_ops::swap_axes::swap_axes;

use super::decoding::refuse_score_bias;
use super::projection::{self, Heads, Projection, merge_heads};
use super::recurrent::wide;
use super::short_convolution::Before;
use super::state::State;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    DecodingState, Memory, Reads, RowSum,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mask::Mask;

/// Queries that are scored at a time.
const ROWS: usize = 128;
const EPSILON: f64 = 1e-5;

settings! {
    /// `[model.attention] kind = "log_linear"`
    pub struct Config {
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

/// The levels of positions below `len`.
fn n_levels(len: usize) -> usize {
    1 + (usize::BITS - len.saturating_sub(1).leading_zeros()) as usize
}

/// level(t, s)
fn level(t: u32, s: u32) -> u32 {
    u32::BITS - (t ^ s).leading_zeros()
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.require_causal("log_linear", "its spans lie in the past")?;
        spec.refuse_rotary("log_linear", "its decays tell positions apart")?;
        spec.refuse_score_bias("log_linear", "its products are no scores of a softmax")?;
        let (n_heads, n_levels) = (spec.n_heads, n_levels(spec.max_q_len));
        let uniform = |name: &str, [lo, up]: [f64; 2]| {
            vb.get_with_hints(n_heads, name, Init::Uniform { lo: lo.ln(), up: up.ln() })
        };
        let map = |name: &str, width| {
            let weight = spec.init.weight(spec.d_model);
            Linear::build([spec.d_model, width], Bias::Without, weight, &vb.pp(name))
        };
        Ok(Box::new(LogLinear {
            projection: Projection::build(spec, vb, Heads::default())?,
            decay: map("decay", n_heads)?,
            decay_bias: uniform("decay_bias", [0.001, 0.1])?,
            decay_log: uniform("decay_log", [1., 16.])?,
            levels: map("levels", n_heads * n_levels)?,
            level_scale: vb.get_with_hints((n_heads, n_levels), "level_scale", init::ONE)?,
            norm: vb.pp("norm").get_with_hints(spec.head_dim(), "weight", init::ONE)?,
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let levels = n_levels(spec.max_q_len) as f64;
        let [d_model, d_heads, n_heads, head_dim, len] =
            [spec.d_model, spec.d_heads(), spec.n_heads, spec.head_dim(), kv_len].map(|n| n as f64);
        let core = AttentionCost {
            parameters: (d_model + 2.) * n_heads + (d_model + 1.) * n_heads * levels + head_dim,
            flops: 4. * len * len * d_heads + 2. * d_model * n_heads * (levels + 1.) * len,
            activations: n_heads * len * (ROWS.min(q_len) as f64 + 3. * levels),
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}

#[derive(Debug)]
struct LogLinear {
    projection: Projection,
    decay: Linear,
    /// b_α
    decay_bias: Tensor,
    /// A
    decay_log: Tensor,
    levels: Linear,
    /// L
    level_scale: Tensor,
    /// The gain of the norm of each head, `(head_dim)`.
    norm: Tensor,
    dropout: Dropout,
    output: Linear,
}

/// Operands of log-linear attention, `(batch, n_heads, len, ..)` each.
#[derive(Clone, Debug)]
pub struct Operands {
    /// q, divided by √head_dim.
    pub query: Tensor,
    /// k
    pub key: Tensor,
    /// v
    pub value: Tensor,
    /// log α, `(batch, n_heads, len)`.
    pub log_decay: Tensor,
    /// λ, `(batch, n_heads, len, levels)`.
    pub levels: Tensor,
}

impl LogLinear {
    fn operands(&self, x: &Tensor, before: &mut Before<'_>) -> Result<Operands> {
        let (key, value) = self.projection.keys_and_values(x, 0, before)?;
        let query = self.projection.queries(x, 0, before)?;
        let (batch, len, n_heads, head_dim) = query.dims4()?;
        let (bias, speed) = (wide(&self.decay_bias)?, wide(&self.decay_log)?.exp()?);
        let decay = softplus(&wide(&self.decay.forward(x)?)?.broadcast_add(&bias)?)?;
        let decay = decay.broadcast_mul(&speed)?.neg()?;
        let levels = self.levels.forward(x)?.reshape((batch, len, n_heads, ()))?;
        let levels = softplus(&levels.broadcast_mul(&self.level_scale)?)?;
        Ok(Operands {
            query: (wide(&swap_axes(&query)?)? / (head_dim as f64).sqrt())?,
            key: wide(&swap_axes(&key)?)?,
            value: wide(&swap_axes(&value)?)?,
            log_decay: decay.transpose(1, 2)?.contiguous()?,
            levels: wide(&swap_axes(&levels)?)?,
        })
    }

    /// The output of `heads (batch, n_heads, len, head_dim)`.
    fn finish(&self, heads: &Tensor) -> Result<Tensor> {
        self.output.forward(&merge_heads(&rms_norm(heads, &self.norm, EPSILON)?)?)
    }
}

/// For each example the document and the number of every token in it, counted from 0; `None` for padding. One example for
/// all without a mask.
type Places = Vec<Vec<Option<(u32, u32)>>>;

fn places(len: usize, mask: &Mask) -> Result<Places> {
    let padding = mask.key_padding_mask().map(Tensor::to_vec2::<u8>).transpose()?;
    let segments = mask.segments().map(Tensor::to_vec2::<u32>).transpose()?;
    let n_examples = padding.as_ref().map(Vec::len).or(segments.as_ref().map(Vec::len));
    let of_example = |example: usize| {
        let (mut document, mut number) = (0, 0);
        let place = |at: usize| {
            if at > 0 && segments.as_ref().is_some_and(|x| x[example][at] != x[example][at - 1]) {
                (document, number) = (document + 1, 0);
            }
            let is_token = padding.as_ref().is_none_or(|padding| padding[example][at] == 0);
            number += u32::from(is_token);
            is_token.then(|| (document, number - 1))
        };
        (0..len).map(place).collect()
    };
    Ok((0..n_examples.unwrap_or(1)).map(of_example).collect())
}

/// The weights of the queries `first..first + rows` for the keys up to the last of them, `(batch, n_heads, rows, keys)`.
fn row_weights(x: &Operands, c: &Tensor, places: &Places, first: usize) -> Result<Tensor> {
    let (batch, n_heads, len, _head_dim) = x.query.dims4()?;
    let rows = ROWS.min(len - first);
    let n_keys = first + rows;
    let (mut levels, mut open) = (Vec::new(), Vec::new());
    for places in places {
        for i in first..n_keys {
            for j in 0..n_keys {
                let read = match (places[i], places[j]) {
                    (Some((a, t)), Some((b, s))) if a == b && j <= i => Some(level(t, s)),
                    _ => None,
                };
                levels.push(read.unwrap_or(0));
                open.push(u8::from(read.is_some()));
            }
        }
    }
    let shape = (batch, n_heads, rows, n_keys);
    let of_pairs = |x: Tensor| x.broadcast_as(shape)?.contiguous();
    let device = x.query.device();
    let own = (places.len(), 1, rows, n_keys);
    let levels = of_pairs(Tensor::from_vec(levels, own, device)?)?;
    let open = of_pairs(Tensor::from_vec(open, own, device)?)?;
    let part = |x: &Tensor| x.narrow(2, first, rows)?.contiguous();
    let decay = part(c)?.unsqueeze(3)?.broadcast_sub(&c.narrow(2, 0, n_keys)?.unsqueeze(2)?)?;
    let decay = open.where_cond(&decay, &decay.zeros_like()?)?.to_dtype(x.query.dtype())?.exp()?;
    let lambda = part(&x.levels)?.gather(&levels, D::Minus1)?;
    let products = matmul_transposed(&part(&x.query)?, &x.key.narrow(2, 0, n_keys)?.contiguous()?)?;
    ((products * decay)? * lambda)? * open.to_dtype(x.query.dtype())?
}

/// c, the cumulative sum of log α without padding in f64, `(batch, n_heads, len)`.
fn cumulative(log_decay: &Tensor, mask: &Mask) -> Result<Tensor> {
    /// Positions of a block: sums within blocks and over blocks are products with small triangles.
    const BLOCK: usize = 64;
    let (batch, n_heads, len) = log_decay.dims3()?;
    let mut x = log_decay.to_dtype(DType::F64)?;
    if let Some(padding) = mask.key_padding_mask() {
        let padding = padding.unsqueeze(1)?.broadcast_as(x.shape())?;
        x = padding.where_cond(&x.zeros_like()?, &x)?;
    }
    let n_blocks = len.div_ceil(BLOCK);
    let x = x.pad_with_zeros(2, 0, n_blocks * BLOCK - len)?;
    let x = x.reshape((batch, n_heads, n_blocks, BLOCK))?.cumsum(3)?;
    let sums = x.narrow(3, BLOCK - 1, 1)?.squeeze(3)?.contiguous()?;
    let before = (sums.cumsum(2)? - &sums)?;
    let c = x.broadcast_add(&before.unsqueeze(3)?)?;
    c.reshape((batch, n_heads, n_blocks * BLOCK))?.narrow(2, 0, len)?.contiguous()
}

/// Log-linear attention: `(batch, n_heads, len, head_dim)`.
///
/// # Errors
/// If shapes do not match, or if there are too few levels.
pub fn attend(operands: &Operands, mask: &Mask) -> Result<Tensor> {
    let (_batch, _n_heads, len, _head_dim) = operands.query.dims4()?;
    let c = cumulative(&operands.log_decay, mask)?;
    let places = std::sync::Arc::new(places(len, mask)?);
    let heads = (0..len).step_by(ROWS).map(|first| {
        let (x, c, places) = (operands.clone(), c.clone(), places.clone());
        checkpoint(move || {
            let weights = row_weights(&x, &c, &places, first)?;
            let n_keys = weights.dim(3)?;
            matmul(&weights, &x.value.narrow(2, 0, n_keys)?.contiguous()?)
        })
    });
    Tensor::cat(&heads.collect::<Result<Vec<_>>>()?, 2)
}

impl Attention for LogLinear {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(Reads::Past)?;
        let operands = self.operands(x, &mut Before::whole(input.mask))?;
        let heads = attend(&operands, input.mask)?.to_dtype(x.dtype())?;
        let normed = merge_heads(&rms_norm(&heads, &self.norm, EPSILON)?)?;
        self.output.forward(&self.dropout.forward(&normed, input.mode)?)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let mut before = Before::whole(input.mask);
        let x = self.operands(input.source(Reads::Past)?, &mut before)?;
        let (_batch, _n_heads, len, _head_dim) = x.query.dims4()?;
        let (c, places) = (cumulative(&x.log_decay, input.mask)?, places(len, input.mask)?);
        let rows = (0..len).step_by(ROWS).map(|first| {
            let rows = row_weights(&x, &c, &places, first)?;
            let n_keys = rows.dim(3)?;
            rows.pad_with_zeros(3, 0, len - n_keys)
        });
        Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 2)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        Ok(memory.is_none().then(|| {
            let (states, past) = (Vec::new(), State::default());
            let state = Decoding { layer: self, n_read: 0, states, past };
            Box::new(state) as BoxState<'a>
        }))
    }
}

/// A state of each level, `(batch, n_heads, head_dim, head_dim)`: Σ (Π α) k vᵀ over its span.
#[derive(Debug)]
struct Decoding<'a> {
    layer: &'a LogLinear,
    n_read: u32,
    states: Vec<Option<Tensor>>,
    /// What the convolutions behind the maps still read.
    past: State,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let mut before = Before::after(&mut self.past);
        let Operands { query, key, value, log_decay, levels } =
            self.layer.operands(x, &mut before)?;
        let (_batch, _n_heads, n_new, _head_dim) = query.dims4()?;
        let n_levels = levels.dim(3)?;
        self.states.resize(n_levels, None);
        let mut heads = Vec::with_capacity(n_new);
        for t in 0..n_new {
            let of = |x: &Tensor| x.narrow(2, t, 1)?.contiguous();
            if self.n_read > 0 {
                let merged = self.n_read.trailing_zeros() as usize + 1;
                if merged >= n_levels {
                    bail!("position {} is beyond the {n_levels} levels of the layer", self.n_read)
                }
                let mut sum: Option<Tensor> = None;
                for state in self.states[..merged].iter_mut().filter_map(Option::take) {
                    sum = Some(sum.map_or(Ok(state.clone()), |sum| sum + state)?);
                }
                self.states[merged] = sum;
            }
            let decay = log_decay.narrow(2, t, 1)?.unsqueeze(3)?.exp()?;
            for state in self.states.iter_mut().flatten() {
                *state = state.broadcast_mul(&decay)?;
            }
            self.states[0] = Some(matmul(&of(&key)?.transpose(2, 3)?.contiguous()?, &of(&value)?)?);
            let mut read: Option<Tensor> = None;
            for (level, state) in self.states.iter().enumerate() {
                let Some(state) = state else { continue };
                let lambda = of(&levels)?.narrow(3, level, 1)?;
                let term = matmul(&of(&query)?, state)?.broadcast_mul(&lambda)?;
                read = Some(read.map_or(Ok(term.clone()), |read| read + term)?);
            }
            heads.push(read.expect("invariant: level 0 holds the token itself"));
            self.n_read += 1;
        }
        self.layer.finish(&Tensor::cat(&heads, 2)?.to_dtype(x.dtype())?)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        self.states.iter_mut().flatten().chain(self.past.tensors_mut()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_one_and_the_highest_differing_bit() {
        let of_7: Vec<_> = (0..=7).map(|s| level(7, s)).collect();
        assert_eq!(of_7, [3, 3, 3, 3, 2, 2, 1, 0]);
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(n_levels), [1, 2, 3, 3, 4, 4, 5]);
    }
}
