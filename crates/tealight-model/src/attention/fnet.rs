//! FNet (Lee-Thorp et al. 2021, <https://arxiv.org/abs/2105.03824>): a Fourier transform in place of attention.
//!
//! ```text
//! y = Re(F_T F_D x) = C_T x C_D − S_T x S_D           C_n = cos(2π jk / n), S_n = sin(2π jk / n)
//! ```
//!
//! It has no parameters and no heads. Nothing is normalised, as in the paper. Padded positions are zeros; their number
//! is part of T, so padding changes the result, and each position is mixed into all others: causality, packed documents
//! and positions inside of the attention are refused. Dropout acts on the result.
//!
//! Cost: two products of matrices, O(T²·d_model + T·d_model²) time, and the O(T²) matrices of one transform in memory. The
//! paper's fast transform takes O(T·d_model·(log T + log d_model)).

use std::f64::consts::TAU;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, Reads,
    RowSum,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;

settings! {
    /// `[model.attention] kind = "fnet"`
    pub struct Config {}
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        let why = "a Fourier transform mixes all positions of one sequence";
        spec.refuse_memory("fnet", why)?;
        spec.refuse_causal("fnet", why)?;
        spec.refuse_rotary("fnet", "it has no queries and keys")?;
        spec.refuse_score_bias("fnet", "it forms no scores")?;
        spec.refuse_segments("fnet", why)?;
        spec.refuse_head_dim("fnet", "it has no heads: its channels are those of the stream")?;
        Ok(Box::new(Fourier { dropout: Dropout::new(spec.dropout, vb) }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, _kv_len: usize) -> AttentionCost {
        let (d_model, q_len) = (spec.d_model as f64, q_len as f64);
        AttentionCost {
            parameters: 0.,
            flops: 4. * d_model * q_len * (d_model + q_len),
            activations: 2. * q_len * q_len + 4. * d_model * q_len,
        }
    }

    fn ignores_padding(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Fourier {
    dropout: Dropout,
}

/// cos(2π jk / n) and sin(2π jk / n), `(n, n)` each, of the dtype and on the device of `x`.
fn transform(n: usize, x: &Tensor) -> Result<[Tensor; 2]> {
    let table = |f: fn(f64) -> f64| {
        // jk counts modulo n: there are n different angles.
        let values: Vec<f64> = (0..n).map(|jk| f(TAU * jk as f64 / n as f64)).collect();
        let pairs = (0..n).flat_map(|j| (0..n).map(move |k| j * k % n));
        let table = Tensor::from_vec(pairs.map(|jk| values[jk]).collect(), (n, n), x.device())?;
        table.to_dtype(x.dtype())
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}

/// Zeros at padding: `x (batch, len, width)` → the same shape
pub(super) fn without_padding(x: &Tensor, padding: Option<&Tensor>) -> Result<Tensor> {
    let Some(padding) = padding else { return Ok(x.clone()) };
    let padding = padding.unsqueeze(2)?.broadcast_as(x.shape())?;
    padding.where_cond(&x.zeros_like()?, x)
}

impl Attention for Fourier {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = without_padding(input.source(Reads::Everything)?, input.mask.padding_only()?)?;
        let (_batch, len, d_model) = x.dims3()?;
        let [cos, sin] = transform(len, &x)?;
        let [of_channels_cos, of_channels_sin] = transform(d_model, &x)?;
        let real = cos.broadcast_matmul(&x.broadcast_matmul(&of_channels_cos)?)?;
        let y = (real - sin.broadcast_matmul(&x.broadcast_matmul(&of_channels_sin)?)?)?;
        self.dropout.forward(&y, input.mode)
    }

    /// The transform of positions: its real and its imaginary part.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(Reads::Everything)?;
        let (batch, len, _d_model) = x.dims3()?;
        let [cos, sin] = transform(len, x)?;
        let maps = Tensor::stack(&[&cos, &sin.neg()?], 0)?.unsqueeze(0)?;
        let maps = maps.broadcast_as((batch, 2, len, len))?;
        let Some(padding) = input.mask.padding_only()? else { return maps.contiguous() };
        let padding = padding.reshape((batch, 1, 1, len))?.broadcast_as(maps.shape())?;
        padding.where_cond(&maps.zeros_like()?, &maps)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }
}
