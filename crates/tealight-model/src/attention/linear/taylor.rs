//! Features of the second-order Taylor polynomial of e^s (Based, Arora et al. 2024, <https://arxiv.org/abs/2402.18668>).
//!
//! ```text
//! φ(x) = [1, x / D^¼, (x ⊗ x) / √(2D)],   φ(q)·φ(k) = 1 + s + s²/2 ≥ ½,   s = q·k / √D           D = feature_dim
//! O_i = Σ_j (φ(q_i)·φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j)                             causal: over j ≤ i
//! ```
//!
//! Queries and keys have D features in each head, values head_dim. Features may be negative, so they are kept as they are,
//! not as logarithms, in f32 at least; each key adds at least ½ to the denominator, so there is no ε (`fla` adds 1e-6).
//!
//! A causal layer reads in chunks: pairs within a chunk by s, earlier chunks by the state Σ φ(k) [v; 1]ᵀ, which has
//! (1 + D + D²)·(head_dim + 1) numbers for each head, at any length.
//!
//! Cost: O(T·(chunk + D²)·d_model) time, O(T·d_model + T/chunk·D²·d_model) memory.

use candle_core::{D, DType, Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::matmul::{matmul, matmul_transposed};
use tealight_ops::recompute::checkpoint;
use tealight_ops::swap_axes::swap_axes;

use crate::attention::decoding::refuse_score_bias;
use crate::attention::projection::{self, Maps, merge_heads};
use crate::attention::recurrent::wide;
use crate::attention::short_convolution::{self, Before};
use crate::attention::state::State;
use crate::attention::{
    Attention, AttentionCost, AttentionInput, AttentionSpec, BoxState, DecodingState, Memory, Reads,
};
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};

/// Positions of a chunk.
const CHUNK: usize = 128;

/// D unless it is set.
pub(super) const FEATURE_DIM: usize = 16;

/// The layer with `feature_dim` features of queries and keys in each head.
pub(super) fn build(
    feature_dim: usize,
    spec: &AttentionSpec<'_>,
    vb: &VarBuilder<'_>,
) -> BuildResult<Taylor> {
    spec.positive("feature_dim", feature_dim)?;
    let width = spec.n_heads.saturating_mul(feature_dim);
    Ok(Taylor {
        maps: Maps::build(spec, [width, width, spec.d_heads()], vb)?,
        n_heads: spec.n_heads,
        dropout: Dropout::new(spec.dropout, vb),
        output: projection::output(spec, vb)?,
    })
}

/// The cost of a layer.
pub(super) fn cost(
    feature_dim: usize,
    spec: &AttentionSpec<'_>,
    lens: [usize; 2],
) -> AttentionCost {
    let [q_len, kv_len] = lens.map(|len| len as f64);
    let [width, d_heads, d_model, head_dim, n_heads] = [
        feature_dim.saturating_mul(spec.n_heads),
        spec.d_heads(),
        spec.d_model,
        spec.head_dim(),
        spec.n_heads,
    ]
    .map(|n| n as f64);
    let bias = f64::from(u8::from(spec.bias == Bias::With));
    let d = feature_dim as f64;
    let features = n_heads * (1. + d + d * d);
    let channels = 2 * width as usize + d_heads as usize;
    let convolutions = short_convolution::cost(spec, channels, kv_len as usize);
    convolutions
        + AttentionCost {
            parameters: 2. * d_model * (width + d_heads) + bias * (2. * width + d_heads + d_model),
            flops: 2. * d_model * (width + d_heads) * (q_len + kv_len)
                + 2. * features * (head_dim + 1.) * (q_len + kv_len)
                + 2. * CHUNK as f64 * (width + d_heads) * q_len,
            activations: (2. * width + 3. * d_heads) * (q_len + kv_len)
                + features * (head_dim + 1.) * kv_len / CHUNK as f64,
        }
}

/// Linear attention with signed features.
#[derive(Debug)]
pub(super) struct Taylor {
    maps: Maps,
    n_heads: usize,
    dropout: Dropout,
    output: Linear,
}

/// 1 + s + s²/2
fn polynomial(s: &Tensor) -> Result<Tensor> {
    ((s.sqr()? * 0.5)? + s)? + 1.
}

/// φ of x / D^¼, `(.., D)` → `(.., 1 + D + D²)`
fn features(x: &Tensor) -> Result<Tensor> {
    let one = x.narrow(D::Minus1, 0, 1)?.ones_like()?;
    let squares = x.unsqueeze(D::Minus1)?.broadcast_mul(&x.unsqueeze(D::Minus2)?)?;
    let squares = (squares.flatten_from(x.rank() - 1)? * 0.5_f64.sqrt())?;
    Tensor::cat(&[&one, x, &squares], D::Minus1)
}

/// Σ φ(k) [v; 1]ᵀ: keys `(batch, n_heads, len, D)`, values `(batch, n_heads, len, head_dim + 1)`.
fn sums(key: &Tensor, value: &Tensor) -> Result<Tensor> {
    matmul(&features(key)?.transpose(2, 3)?.contiguous()?, &value.contiguous()?)
}

/// Numerator by denominator, zeros where nothing is read.
fn divided(sums: &Tensor) -> Result<Tensor> {
    let width = sums.dim(D::Minus1)? - 1;
    let total = sums.narrow(D::Minus1, width, 1)?;
    let total = (&total + total.eq(0.)?.to_dtype(total.dtype())?)?;
    sums.narrow(D::Minus1, 0, width)?.broadcast_div(&total)
}

/// 1 where row i reads key j ≤ i, else 0: `(len, len)`
fn past(len: usize, like: &Tensor) -> Result<Tensor> {
    Tensor::tril2(len, DType::F32, like.device())?.to_dtype(like.dtype())
}

/// `query` and `key (batch, n_heads, len, D)`, both divided by D^¼, and `value (batch, n_heads, kv_len, head_dim + 1)`, whose
/// last column is 1, or all zeros at padding → `(batch, n_heads, q_len, head_dim)`
///
/// # Errors
/// If shapes do not match.
pub fn attend(query: &Tensor, key: &Tensor, value: &Tensor, reads: Reads) -> Result<Tensor> {
    if reads != Reads::Past {
        return read_all(query, key, value);
    }
    let len = query.dim(2)?;
    let (mut state, mut parts): (Option<Tensor>, Vec<Tensor>) = (None, Vec::new());
    for first in (0..len).step_by(CHUNK) {
        let n = CHUNK.min(len - first);
        let of = |x: &Tensor| x.narrow(2, first, n)?.contiguous();
        let (query, key, value) = (of(query)?, of(key)?, of(value)?);
        let new = {
            let (key, value) = (key.clone(), value.clone());
            checkpoint(move || sums(&key, &value))?
        };
        let before = state.take();
        let read = before.clone();
        parts.push(checkpoint(move || {
            let weights = polynomial(&matmul_transposed(&query, &key)?)?;
            let near = matmul(&weights.broadcast_mul(&past(n, &query)?)?, &value)?;
            match &read {
                Some(state) => near + matmul(&features(&query)?, state)?,
                None => Ok(near),
            }
        })?);
        state = Some(match before {
            Some(before) => (before + new)?,
            None => new,
        });
    }
    divided(&Tensor::cat(&parts, 2)?)
}

/// Each query reads all keys: the sums over all keys first.
fn read_all(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let chunks =
        |len: usize| (0..len).step_by(CHUNK).map(move |first| (first, CHUNK.min(len - first)));
    let of = |x: &Tensor, (first, n)| x.narrow(2, first, n)?.contiguous();
    let mut all: Option<Tensor> = None;
    for chunk in chunks(key.dim(2)?) {
        let (key, value) = (of(key, chunk)?, of(value, chunk)?);
        let new = checkpoint(move || sums(&key, &value))?;
        all = Some(all.map_or(Ok(new.clone()), |all| all + new)?);
    }
    let Some(all) = all else { bail!("there are no keys") };
    let read = |chunk| {
        let (query, all) = (of(query, chunk)?, all.clone());
        checkpoint(move || matmul(&features(&query)?, &all))
    };
    let parts: Vec<Tensor> = chunks(query.dim(2)?).map(read).collect::<Result<_>>()?;
    divided(&Tensor::cat(&parts, 2)?)
}

impl Taylor {
    /// `(batch, len, n_heads·width)` → `(batch, n_heads, len, width)`
    fn heads(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, len, width) = x.dims3()?;
        swap_axes(&x.reshape((batch, len, self.n_heads, width / self.n_heads))?)
    }

    /// Queries or keys divided by D^¼.
    fn scaled(&self, x: &Tensor) -> Result<Tensor> {
        let x = wide(&self.heads(x)?)?;
        let d = x.dim(D::Minus1)? as f64;
        x / d.powf(0.25)
    }

    /// Keys, and values with a column of ones; zeros at padding.
    fn keys_and_values(&self, source: &Tensor, before: &mut Before<'_>) -> Result<[Tensor; 2]> {
        let [key, value] = self.maps.keys_and_values(source, before)?;
        let padding = before.tokens.key_padding_mask;
        let value = wide(&self.heads(&value)?)?;
        let value = Tensor::cat(&[&value, &value.narrow(3, 0, 1)?.ones_like()?], 3)?;
        let value = match padding {
            Some(padding) => {
                let padding = padding.unsqueeze(1)?.unsqueeze(3)?.broadcast_as(value.shape())?;
                padding.where_cond(&value.zeros_like()?, &value)?
            }
            None => value,
        };
        Ok([self.scaled(&key)?, value])
    }
}

impl Attention for Taylor {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let source = input.source(self.maps.reads)?;
        input.mask.padding_only()?;
        let mut before = Before::whole(input.mask);
        let [key, value] = self.keys_and_values(source, &mut before)?;
        let query = self.scaled(&self.maps.queries(input.x, &mut before)?)?;
        let heads = merge_heads(&attend(&query, &key, &value, self.maps.reads)?)?;
        let heads = heads.to_dtype(input.x.dtype())?;
        self.output.forward(&self.dropout.forward(&heads, input.mode)?)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let source = input.source(self.maps.reads)?;
        input.mask.padding_only()?;
        let mut before = Before::whole(input.mask);
        let [key, value] = self.keys_and_values(source, &mut before)?;
        let query = self.scaled(&self.maps.queries(input.x, &mut before)?)?;
        let mut weights = polynomial(&matmul_transposed(&query, &key)?)?;
        // The last column of the values is 0 at padding.
        let is_read = value.narrow(3, value.dim(3)? - 1, 1)?.transpose(2, 3)?;
        weights = weights.broadcast_mul(&is_read)?;
        if self.maps.reads == Reads::Past {
            weights = weights.broadcast_mul(&past(query.dim(2)?, &query)?)?;
        }
        let total = weights.sum_keepdim(D::Minus1)?;
        divided(&Tensor::cat(&[&weights, &total], D::Minus1)?)
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        let sums = match (self.maps.reads, memory) {
            (Reads::Past, None) => None,
            (Reads::Memory, Some(Memory { states, mask })) => {
                mask.padding_only()?;
                let [key, value] = self.keys_and_values(states, &mut Before::whole(mask))?;
                Some(sums(&key, &value)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(Box::new(Decoding { layer: self, sums, past: State::default() })))
    }
}

/// The sums over the past, or over the memory.
#[derive(Debug)]
struct Decoding<'a> {
    layer: &'a Taylor,
    sums: Option<Tensor>,
    /// What the convolutions behind the maps still read.
    past: State,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let mut before = Before::after(&mut self.past);
        let query = self.layer.scaled(&self.layer.maps.queries(x, &mut before)?)?;
        let heads = if let (Reads::Memory, Some(sums)) = (self.layer.maps.reads, &self.sums) {
            matmul(&features(&query)?, sums)?
        } else {
            let [key, value] = self.layer.keys_and_values(x, &mut before)?;
            let mut heads = Vec::new();
            for t in 0..query.dim(2)? {
                let of = |x: &Tensor| x.narrow(2, t, 1)?.contiguous();
                let new = sums(&of(&key)?, &of(&value)?)?;
                let sums = match self.sums.take() {
                    Some(past) => (past + new)?,
                    None => new,
                };
                heads.push(matmul(&features(&of(&query)?)?, &sums)?);
                self.sums = Some(sums);
            }
            Tensor::cat(&heads, 2)?
        };
        self.layer.output.forward(&merge_heads(&divided(&heads)?)?.to_dtype(x.dtype())?)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        self.sums.iter_mut().chain(self.past.tensors_mut()).collect()
    }
}
