//! Retention by itself; and gated, with the group norm of the paper or the RMS norm of its authors' code.

use candle_core::{DType, Result, Tensor};
use tealight_model::attention::{AttentionConfig, retention as kind};
use tealight_ops::activation::Function;
use tealight_ops::gate::gated;
use tealight_ops::norm::{layer_norm, rms_norm};
use tealight_ops::retention::{reference, retention};

use crate::layer;
use crate::mask::Mask;
use crate::record::{Case, values};

/// (Q Kᵀ ⊙ D) V
pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let (mask, decay) = (Mask::from_case(case)?, decay(case)?);
    let x = case.inputs();
    case.compare("weights", &reference::weights(&x["q"], &x["k"], &decay, mask.padding())?)?;
    case.compare_with_gradients(|x| retention(&x["q"], &x["k"], &x["v"], &decay, mask.padding()))
}

/// swish(g) ⊙ norm of each head, with q divided by √head_dim; and the layer, where it has these decays.
pub(crate) fn check_gated(case: &Case<'_>) -> Result<()> {
    let (mask, decay) = (Mask::from_case(case)?, decay(case)?);
    let is_group = case.description.norm.as_deref() == Some("group");
    let epsilon = case.description.epsilon.expect("an epsilon");
    case.compare_with_gradients(|x| {
        let query = (&x["q"] / (x["q"].dim(3)? as f64).sqrt())?;
        let context = retention(&query, &x["k"], &x["v"], &decay, mask.padding())?;
        let ones = Tensor::ones(context.dim(3)?, context.dtype(), context.device())?;
        let context = if is_group {
            layer_norm(&context, &ones, None, epsilon)?
        } else {
            rms_norm(&context, &ones, epsilon)?
        };
        gated(Function::Silu, &x["g"], &layer::merge_heads(&context)?.contiguous()?)
    })?;
    let of_the_paper = |(head, &decay): (usize, &f64)| decay == 1. - (-5. - head as f64).exp2();
    if is_group && decay.iter().enumerate().all(of_the_paper) {
        layer::check(case, &AttentionConfig::Retention(kind::Config::default()), &mask)?;
    }
    Ok(())
}

/// γ of each head.
fn decay(case: &Case<'_>) -> Result<Vec<f64>> {
    values(&case.tensor("decay").to_dtype(DType::F64)?)
}
