//! Linear attention and Performer: averages weighted by products of features, from their logarithms.

use candle_core::{D, Result, Tensor};
use tealight_model::Reads;
use tealight_model::attention::linear::taylor;
use tealight_model::attention::{AttentionConfig, linear};
use tealight_ops::linear_attention::{linear_attention, reference};

use crate::layer;
use crate::mask::Mask;
use crate::record::Case;

/// Performer's features are random constants of a layer, so only linear attention is checked as a
/// layer, too.
pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_case(case)?;
    let reach = mask.reach();
    let omega = case.has("features").then(|| case.tensor("features"));
    let log_features = |x: &Tensor| match &omega {
        Some(omega) => log_random_features(x, omega),
        None => log_elu_features(x),
    };
    let x = case.inputs();
    let (query, key) = (log_features(&x["q"])?, log_features(&x["k"])?);
    case.compare("weights", &reference::weights(&query, &key, reach, mask.padding())?)?;
    case.compare_with_gradients(|x| {
        let (query, key) = (log_features(&x["q"])?, log_features(&x["k"])?);
        linear_attention(&query, &key, &x["v"], reach, mask.padding())
    })?;
    match omega {
        Some(_) => Ok(()),
        None => layer::check(case, &AttentionConfig::Linear(linear::Config::default()), &mask),
    }
}

/// Features of the second order of e^s.
pub(crate) fn check_taylor(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let reads = if case.description.causal { Reads::Past } else { Reads::Everything };
    case.compare_with_gradients(|x| {
        let root = (x["q"].dim(3)? as f64).powf(0.25);
        let value = &x["v"];
        let mut value = Tensor::cat(&[value, &value.narrow(3, 0, 1)?.ones_like()?], 3)?;
        if let Some(padding) = mask.padding() {
            let padding = padding.unsqueeze(1)?.unsqueeze(3)?.broadcast_as(value.shape())?;
            value = padding.where_cond(&value.zeros_like()?, &value)?;
        }
        taylor::attend(&(&x["q"] / root)?, &(&x["k"] / root)?, &value, reads)
    })
}

/// ln (elu(x) + 1) = min(x, 0) + ln(1 + max(x, 0))
fn log_elu_features(x: &Tensor) -> Result<Tensor> {
    x.minimum(0.)? + (x.maximum(0.)? + 1.)?.log()?
}

/// ln (exp(ωᵣᵀ x − |x|²/2) / √m), with x divided by head_dim^(1/4): `x (.., head_dim)` and
/// `omega (m, head_dim)` → `(.., m)`
fn log_random_features(x: &Tensor, omega: &Tensor) -> Result<Tensor> {
    let x = (x / (x.dim(D::Minus1)? as f64).powf(0.25))?;
    let half_square = (x.sqr()?.sum_keepdim(D::Minus1)? / 2.)?;
    let half_log_m = (omega.dim(0)? as f64).ln() / 2.;
    x.broadcast_matmul(&omega.t()?)?.broadcast_sub(&half_square)? - half_log_m
}
