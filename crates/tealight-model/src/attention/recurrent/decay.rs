//! Decays that depend on the input (Dao and Gu 2024, <https://arxiv.org/abs/2405.21060>).
//!
//! ```text
//! ln α_t = −e^(A_log) softplus(f_t + dt_bias)                f = W x, or W↑ W↓ x
//! ln α_t = bound σ(e^(A_log) (f_t + dt_bias))                with a lower bound, between it and 0
//! ```
//!
//! Initial values, as the authors': dt_bias is the inverse softplus of max(10⁻⁴, dt), where ln dt ~ U(ln 0.001, ln 0.1);
//! A_log is the logarithm of a uniform number. Neither has weight decay, as no vector has.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::activation::sigmoid;
use tealight_ops::softplus::scaled_softplus;

use super::wide;
use crate::attention::AttentionSpec;
use crate::layers::linear::{Bias, Linear};
use crate::params::get_drawn;

/// A map of the residual stream, of full or low rank.
#[derive(Debug)]
pub(in crate::attention) enum Map {
    Full(Linear),
    /// `down` and `up`.
    LowRank(Linear, Linear),
}

impl Map {
    /// A map of full rank at `name`.
    pub(in crate::attention) fn full(
        name: &str,
        width: usize,
        bias: Bias,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let weight = spec.init.weight(spec.d_model);
        Ok(Self::Full(Linear::build([spec.d_model, width], bias, weight, &vb.pp(name))?))
    }

    /// W↑ W↓ x + b, with `name.down` and `name.up`.
    pub(in crate::attention) fn low_rank(
        name: &str,
        [rank, width]: [usize; 2],
        bias: Bias,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let vb = vb.pp(name);
        let (down, up) = (spec.init.weight(spec.d_model), spec.init.weight(rank));
        Ok(Self::LowRank(
            Linear::build([spec.d_model, rank], Bias::Without, down, &vb.pp("down"))?,
            Linear::build([rank, width], bias, up, &vb.pp("up"))?,
        ))
    }

    /// `(batch, len, d_model)` → `(batch, len, width)`
    pub(in crate::attention) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Full(map) => map.forward(x),
            Self::LowRank(down, up) => up.forward(&down.forward(x)?),
        }
    }
}

/// ln α, of each head or of each of its features.
#[derive(Debug)]
pub(in crate::attention) struct Decay {
    /// A_log, `(n_heads)`
    a_log: Tensor,
    /// `(n_heads)` or `(n_heads·n_features)`
    dt_bias: Tensor,
    lower_bound: Option<f64>,
}

impl Decay {
    /// Builds `a_log`, where e^(A_log) ~ U(`rates`), and `dt_bias` of `n_features` for each head. With a lower bound A_log
    /// begins at 0.
    pub(in crate::attention) fn build(
        [n_heads, n_features]: [usize; 2],
        [lowest, highest]: [f64; 2],
        lower_bound: Option<f64>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let a_log = match lower_bound {
            None => get_drawn(vb, n_heads, "a_log", move |stream, i| {
                (lowest + (highest - lowest) * stream.uniform(i)).ln()
            })?,
            Some(_) => vb.get_with_hints(n_heads, "a_log", init::ZERO)?,
        };
        let dt_bias = get_drawn(vb, n_heads * n_features, "dt_bias", |stream, i| {
            inverse_softplus(step(stream.uniform(i)))
        })?;
        Ok(Self { a_log, dt_bias, lower_bound })
    }

    /// f, `(batch, len, n_heads)` or `(batch, len, n_heads·n_features)` → ln α, of the same shape
    pub(in crate::attention) fn forward(&self, f: &Tensor) -> Result<Tensor> {
        let (f, bias) = (wide(f)?, wide(&self.dt_bias)?);
        let rate = wide(&self.a_log)?.exp()?;
        let n_heads = rate.elem_count();
        let shape = (n_heads, bias.elem_count() / n_heads);
        let rate = rate.unsqueeze(1)?.broadcast_as(shape)?.flatten_all()?;
        match self.lower_bound {
            None => scaled_softplus(&f, &bias, &rate.neg()?),
            Some(bound) => {
                sigmoid(&f.broadcast_add(&bias)?.broadcast_mul(&rate)?.contiguous()?)? * bound
            }
        }
    }
}

/// A step dt between 0.001 and 0.1, of a uniform number.
pub(in crate::attention) fn step(uniform: f64) -> f64 {
    let (lowest, highest) = (0.001_f64.ln(), 0.1_f64.ln());
    (lowest + (highest - lowest) * uniform).exp().max(1e-4)
}

/// x with ln(1 + eˣ) = y.
pub(in crate::attention) fn inverse_softplus(y: f64) -> f64 {
    y + (-(-y).exp_m1()).ln()
}
