//! PaTH attention (Yang et al. 2025, <https://arxiv.org/abs/2505.16381>): positions by reflections that depend on the data.
//!
//! ```text
//! H_t = I − β_t w_t w_tᵀ,   w = L2(SiLU(conv₃(W₂ W₁ x))),   β = 2 σ(W_β x + b_β)          of each head
//! s_ij = q_iᵀ H_i H_{i−1} ⋯ H_{j+1} k_j / √head_dim,   o_i = Σ_{j≤i} softmax_j(s_ij) v_j
//! ```
//!
//! With β = 0 it is causal softmax attention, with β = 2 every H reflects. conv₃ is causal, a filter of three taps for each
//! channel; L2 divides by √(Σ w² + 1e-6). The paper's variant with a forget gate is left out.
//!
//! Blocks of C positions (§3.3 of the paper has the same, in the form of triangular solves):
//!
//! ```text
//! within a block      k̃_j = H_end ⋯ H_{j+1} k_j,   q̃_i = (q_iᵀ H_i ⋯ H_start)ᵀ,   P = H_end ⋯ H_start
//! across blocks       s_ij = q̃_iᵀ k̃_j,   and from block to block   q̃ᵀ ← q̃ᵀ P
//! ```
//!
//! Padding does not reflect, and the convolution leaves it out; it begins anew in each document.
//!
//! Cost: O(T²·d_model) time like softmax attention, O(T²/C·d_model·head_dim) for P, and O(T·C·d_model) within blocks. Rows of a block are scored at a
//! time and again in the backward pass, so memory is O(T·C) for each head. A decoding step rewrites the cached keys, k_j ←
//! H k_j: O(T·d_model). The cache holds rewritten keys, values, and the last two inputs of the convolution.

use candle_core::{D, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use tealight_ops::Tokens;
use tealight_ops::activation::{sigmoid, silu};
use tealight_ops::dropout::{Draw, dropout};
use tealight_ops::matmul::{matmul, matmul_transposed};
use tealight_ops::recompute::checkpoint;
use tealight_ops::short_convolution::{short_convolution, short_convolution_after};
use tealight_ops::softmax::softmax;
use tealight_ops::swap_axes::swap_axes;

use super::projection::{self, Heads, Projection, merge_heads};
use super::short_convolution::Before;
use super::state::State;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    DecodingState, Memory, Reads,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mask::{Mask, causal_mask};

/// C
const BLOCK: usize = 32;
/// Blocks whose reflections are computed at a time.
const BLOCKS: usize = 64;
/// Taps of the convolution.
const TAPS: usize = 3;
/// ε of the norm of w.
const EPSILON: f64 = 1e-6;

settings! {
    /// `[model.attention] kind = "path"`
    pub struct Config {
        /// The rank of W₂ W₁.
        pub rank: usize = 32,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.require_causal("path", "a query passes the reflections back to its keys")?;
        spec.refuse_rotary("path", "its reflections take the place of rotations")?;
        spec.positive("rank", self.rank)?;
        let d_heads = spec.d_heads();
        let map = |name: &str, [n_in, n_out]: [usize; 2], bias| {
            Linear::build([n_in, n_out], bias, spec.init.weight(n_in), &vb.pp(name))
        };
        let bound = 1. / (TAPS as f64).sqrt();
        let filters = Init::Uniform { lo: -bound, up: bound };
        Ok(Box::new(Path {
            projection: Projection::build(spec, vb, Heads::default())?,
            down: map("down", [spec.d_model, self.rank], Bias::Without)?,
            up: map("up", [self.rank, d_heads], Bias::Without)?,
            filters: vb.pp("convolution").get_with_hints((d_heads, TAPS), "weight", filters)?,
            beta: map("beta", [spec.d_model, spec.n_heads], Bias::With)?,
            n_heads: spec.n_heads,
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let [rank, d_model, d_heads, n_heads, len] =
            [self.rank, spec.d_model, spec.d_heads(), spec.n_heads, kv_len].map(|n| n as f64);
        let block = BLOCK as f64;
        let maps = rank * (d_model + d_heads) + d_model * n_heads;
        let core = AttentionCost {
            parameters: maps + n_heads + TAPS as f64 * d_heads,
            flops: 2. * maps * len
                + len * len * d_heads * (4. + spec.head_dim() as f64 / block)
                + 12. * len * block * d_heads,
            activations: len * (4. * d_heads + n_heads * (2. * block + spec.head_dim() as f64)),
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}

#[derive(Debug)]
struct Path {
    projection: Projection,
    down: Linear,
    up: Linear,
    /// `(n_heads·head_dim, 3)`, the last tap for the position itself.
    filters: Tensor,
    beta: Linear,
    n_heads: usize,
    dropout: Dropout,
    output: Linear,
}

impl Path {
    /// w `(batch, n_heads, len, head_dim)` from the output of the convolution, `(batch, len, n_heads·head_dim)`.
    fn directions(&self, convolved: &Tensor) -> Result<Tensor> {
        let w = silu(convolved)?;
        let (batch, len, width) = w.dims3()?;
        let w = w.reshape((batch, len, self.n_heads, width / self.n_heads))?;
        let length = (w.sqr()?.sum_keepdim(D::Minus1)? + EPSILON)?.sqrt()?;
        swap_axes(&w.broadcast_div(&length)?)
    }

    /// β `(batch, n_heads, len)`
    fn strengths(&self, x: &Tensor) -> Result<Tensor> {
        (sigmoid(&self.beta.forward(x)?)?.transpose(1, 2)?.contiguous()? * 2.)?.contiguous()
    }

    /// Queries divided by √head_dim, keys, values `(batch, n_heads, len, head_dim)`, w and β.
    fn operands(&self, input: &AttentionInput<'_>) -> Result<Operands> {
        let x = input.source(Reads::Past)?;
        let [query, key, value] = self.projection.project(input)?;
        let mapped = self.up.forward(&self.down.forward(x)?)?;
        let (key_padding_mask, segments) = (input.mask.key_padding_mask(), input.mask.segments());
        let tokens = Tokens { key_padding_mask, segments };
        let w = self.directions(&short_convolution(&mapped, &self.filters, tokens)?)?;
        let mut beta = self.strengths(x)?;
        if let Some(padding) = input.mask.key_padding_mask() {
            let padding = padding.unsqueeze(1)?.broadcast_as(beta.shape())?;
            beta = padding.where_cond(&beta.zeros_like()?, &beta)?;
        }
        Ok(Operands { query, key, value, w, beta })
    }
}

/// Operands of PaTH attention, `(batch, n_heads, len, head_dim)` each, and `beta (batch, n_heads, len)`.
#[derive(Clone, Debug)]
pub struct Operands {
    /// q
    pub query: Tensor,
    /// k
    pub key: Tensor,
    /// v
    pub value: Tensor,
    /// w, of length 1.
    pub w: Tensor,
    /// β, 0 at padding.
    pub beta: Tensor,
}

/// Blocks of positions after the reflections within them. N is batch·n_heads.
#[derive(Clone, Debug)]
struct Blocks {
    batch: usize,
    n_heads: usize,
    len: usize,
    /// k̃, `(N, n_blocks, C, head_dim)`
    keys: Tensor,
    /// q̃, of the same shape.
    queries: Tensor,
    /// s_ij within each block, `(N, n_blocks, C, C)`
    inside: Tensor,
    /// P, `(N, n_blocks, head_dim, head_dim)`
    passes: Tensor,
}

impl Blocks {
    fn new(operands: &Operands) -> Result<Self> {
        let Operands { query, key, w, beta, .. } = operands;
        let (batch, n_heads, len, head_dim) = query.dims4()?;
        let n_blocks = len.div_ceil(BLOCK);
        let all = batch * n_heads;
        // (batch, n_heads, len, width) → (N·n_blocks, C, width), with zeros at the end
        let blocks = |x: &Tensor| {
            let width = x.dim(3)?;
            let padded = x.pad_with_zeros(2, 0, n_blocks * BLOCK - len)?;
            padded.reshape((all * n_blocks, BLOCK, width))
        };
        let query = blocks(&(query / (head_dim as f64).sqrt())?)?;
        let (key, w, beta) = (blocks(key)?, blocks(w)?, blocks(&beta.unsqueeze(3)?)?);
        // Some blocks at a time, because the steps within a block keep as many tensors as it has positions.
        let (mut all_within, mut all_passes) = (Vec::new(), Vec::new());
        for first in (0..all * n_blocks).step_by(BLOCKS) {
            let some = |x: &Tensor| x.narrow(0, first, BLOCKS.min(all * n_blocks - first));
            let [query, key, w, beta] = [some(&query)?, some(&key)?, some(&w)?, some(&beta)?];
            let (of_passes, strengths) = (w.clone(), beta.clone());
            all_passes.push(checkpoint(move || passes(&of_passes, &strengths))?);
            all_within.push(checkpoint(move || within(&query, &key, &w, &beta))?);
        }
        let (within, passes) = (Tensor::cat(&all_within, 0)?, Tensor::cat(&all_passes, 0)?);
        let part =
            |first, width| within.narrow(2, first, width)?.reshape((all, n_blocks, BLOCK, width));
        Ok(Self {
            batch,
            n_heads,
            len,
            keys: part(0, head_dim)?,
            queries: part(head_dim, head_dim)?,
            inside: part(2 * head_dim, BLOCK)?,
            passes: passes.reshape((all, n_blocks, head_dim, head_dim))?,
        })
    }

    /// The weights of the queries of block `i`, `(batch, n_heads, rows, keys)`: all keys up to its last query.
    fn weights(&self, i: usize, mask: &Mask) -> Result<Tensor> {
        let n_rows = BLOCK.min(self.len - i * BLOCK);
        let of = |x: &Tensor, j| x.narrow(1, j, 1)?.squeeze(1)?.contiguous();
        let mut query = of(&self.queries, i)?;
        let mut scores = vec![of(&self.inside, i)?];
        for j in (0..i).rev() {
            scores.push(matmul_transposed(&query, &of(&self.keys, j)?)?);
            query = matmul(&query, &of(&self.passes, j)?)?;
        }
        scores.reverse();
        let n_keys = i * BLOCK + n_rows;
        let scores = Tensor::cat(&scores, 2)?.narrow(1, 0, n_rows)?.narrow(2, 0, n_keys)?;
        let scores = scores.reshape((self.batch, self.n_heads, n_rows, n_keys))?;
        let scores = mask.apply_to_rows(&scores, i * BLOCK)?;
        let future = causal_mask(n_rows, n_keys, scores.device())?.to_dtype(scores.dtype())?;
        softmax(&scores.broadcast_add(&future)?)
    }
}

/// P of each block: `w (blocks, C, head_dim)`, `beta (blocks, C, 1)` → `(blocks, head_dim, head_dim)`
fn passes(w: &Tensor, beta: &Tensor) -> Result<Tensor> {
    let (n_blocks, _block, head_dim) = w.dims3()?;
    let eye = Tensor::eye(head_dim, w.dtype(), w.device())?;
    let mut product = eye.broadcast_as((n_blocks, head_dim, head_dim))?.contiguous()?;
    for i in 0..BLOCK {
        let w = w.narrow(1, i, 1)?.contiguous()?; // (blocks, 1, head_dim)
        let part = matmul(&w, &product)?.broadcast_mul(&beta.narrow(1, i, 1)?)?;
        product = (&product - w.transpose(1, 2)?.contiguous()?.broadcast_mul(&part)?)?;
    }
    Ok(product)
}

/// k̃, q̃ and the scores within each block side by side: `(blocks, C, 2·head_dim + C)`. Operands `(blocks, C, head_dim)`,
/// `beta (blocks, C, 1)`.
fn within(query: &Tensor, key: &Tensor, w: &Tensor, beta: &Tensor) -> Result<Tensor> {
    // 1 for the rows that are reflected at i.
    let rows = |is: &dyn Fn(usize) -> bool| {
        let flags: Vec<f32> = (0..BLOCK).map(|row| f32::from(u8::from(is(row)))).collect();
        Tensor::from_vec(flags, (BLOCK, 1), w.device())?.to_dtype(w.dtype())
    };
    // x − β_i (x·w_i) w_iᵀ in the chosen rows
    let reflected = |x: &Tensor, i: usize, rows: Tensor| {
        let w = w.narrow(1, i, 1)?.contiguous()?;
        let strength = beta.narrow(1, i, 1)?.broadcast_mul(&rows)?; // (blocks, C, 1)
        x - matmul_transposed(x, &w)?.mul(&strength)?.broadcast_mul(&w)?
    };
    let (mut keys, mut scores) = (key.clone(), Vec::with_capacity(BLOCK));
    for i in 0..BLOCK {
        keys = reflected(&keys, i, rows(&|row| row < i)?)?;
        scores.push(matmul_transposed(&query.narrow(1, i, 1)?.contiguous()?, &keys)?);
    }
    let mut queries = query.clone();
    for i in (0..BLOCK).rev() {
        queries = reflected(&queries, i, rows(&|row| row >= i)?)?;
    }
    Tensor::cat(&[&keys, &queries, &Tensor::cat(&scores, 1)?], 2)
}

/// PaTH attention: the heads `(batch, len, n_heads·head_dim)`.
///
/// # Errors
/// If shapes do not match.
pub fn attend(operands: &Operands, mask: &Mask, draw: Option<Draw>) -> Result<Tensor> {
    let blocks = Blocks::new(operands)?;
    mask.check_lens(blocks.len, blocks.len)?;
    let mut heads = Vec::new();
    for i in 0..blocks.len.div_ceil(BLOCK) {
        let (blocks, mask) = (blocks.clone(), mask.clone());
        let n_keys = ((i + 1) * BLOCK).min(blocks.len);
        let value = operands.value.narrow(2, 0, n_keys)?;
        heads.push(checkpoint(move || {
            let weights = blocks.weights(i, &mask)?;
            let weights = match draw {
                Some(Draw { rate, stream }) => dropout(&weights, rate, stream.fork(i as u64))?,
                None => weights,
            };
            merge_heads(&matmul(&weights, &value.contiguous()?)?)
        })?);
    }
    Tensor::cat(&heads, 1)
}

/// The weights `(batch, n_heads, len, len)`.
///
/// # Errors
/// As [`attend`].
pub fn weights(operands: &Operands, mask: &Mask) -> Result<Tensor> {
    let blocks = Blocks::new(operands)?;
    mask.check_lens(blocks.len, blocks.len)?;
    let rows = (0..blocks.len.div_ceil(BLOCK)).map(|i| {
        let rows = blocks.weights(i, mask)?;
        let n_keys = rows.dim(3)?;
        rows.pad_with_zeros(3, 0, blocks.len - n_keys)
    });
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 2)
}

impl Attention for Path {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let heads = attend(&self.operands(input)?, input.mask, self.dropout.draw(input.mode))?;
        self.output.forward(&heads)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        weights(&self.operands(input)?, input.mask)
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        Ok(memory.is_none().then(|| {
            let (keys, values, taps, past) = (None, None, None, State::default());
            let state = Decoding { path: self, keys, values, taps, past };
            Box::new(state) as BoxState<'a>
        }))
    }
}

#[derive(Debug)]
struct Decoding<'a> {
    path: &'a Path,
    /// H_t ⋯ H_{j+1} k_j of each position j so far, `(batch, n_heads, t, head_dim)`.
    keys: Option<Tensor>,
    values: Option<Tensor>,
    /// The last two inputs of the convolution, `(batch, 2, n_heads·head_dim)`.
    taps: Option<Tensor>,
    /// What the convolutions behind the maps still read.
    past: State,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        let path = self.path;
        let (_batch, n_new, _d_model) = x.dims3()?;
        let mut before = Before::after(&mut self.past);
        let (key, value) = path.projection.keys_and_values(x, 0, &mut before)?;
        let query = swap_axes(&path.projection.queries(x, 0, &mut before)?)?;
        let (key, value) = (swap_axes(&key)?, swap_axes(&value)?);
        let mapped = path.up.forward(&path.down.forward(x)?)?;
        let (past, tokens) = (self.taps.take(), Tokens::default());
        let [convolved, next] =
            short_convolution_after(past.as_ref(), &mapped, &path.filters, tokens)?;
        self.taps = Some(next);
        let w = path.directions(&convolved)?;
        let beta = path.strengths(x)?;
        let scale = 1. / (query.dim(3)? as f64).sqrt();
        let mut heads = Vec::with_capacity(n_new);
        for t in 0..n_new {
            let of = |x: &Tensor| x.narrow(2, t, 1)?.contiguous(); // (batch, n_heads, 1, head_dim)
            let extended = |past: Option<Tensor>, new: Tensor| match past {
                Some(past) => Tensor::cat(&[&past, &new], 2),
                None => Ok(new),
            };
            let past = match self.keys.take() {
                Some(keys) => {
                    let strength = beta.narrow(2, t, 1)?.unsqueeze(3)?;
                    let part = matmul_transposed(&keys, &of(&w)?)?.broadcast_mul(&strength)?;
                    Some((&keys - part.broadcast_mul(&of(&w)?)?)?)
                }
                None => None,
            };
            let keys = extended(past, of(&key)?)?;
            let values = extended(self.values.take(), of(&value)?)?;
            let mut scores = matmul_transposed(&(of(&query)? * scale)?, &keys)?;
            if let Some(bias) = score_bias {
                let so_far = keys.dim(2)?;
                scores = scores.broadcast_add(&bias.narrow(1, t, 1)?.narrow(2, 0, so_far)?)?;
            }
            heads.push(matmul(&softmax(&scores)?, &values)?);
            (self.keys, self.values) = (Some(keys), Some(values));
        }
        path.output.forward(&merge_heads(&Tensor::cat(&heads, 2)?)?)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        let own = [&mut self.keys, &mut self.values, &mut self.taps].into_iter().flatten();
        own.chain(self.past.tensors_mut()).collect()
    }
}
