//! The gradient audit: after the first backward pass every parameter must have a gradient.
//!
//! If a model contains an operation without a backward pass, the loss still falls, but the parameters below
//! that operation never change. So a gradient that is missing, all zero or not finite stops the run before
//! its first update. `training.gradient_audit_exceptions` lists parameters whose gradient may be missing or
//! zero.

use tealight_model::pattern;
use tealight_ops::Gradients;
use tealight_ops::gradients::{FaultKind, GradientFault};

use crate::error::{Error, Result};

/// Checks the gradients of all parameters. In an exception, `*` matches any text. A gradient that is not
/// finite is an error despite an exception.
///
/// # Errors
/// [`Error::GradientAudit`] with the names of the parameters without a usable gradient.
pub fn audit(gradients: &Gradients, exceptions: &[String]) -> Result<()> {
    let faults = gradients.audit()?;
    let is_exception = |fault: &GradientFault| {
        fault.kind != FaultKind::NotFinite && pattern::matches_any(exceptions, &fault.name)
    };
    let faults: Vec<String> =
        faults.iter().filter(|fault| !is_exception(fault)).map(ToString::to_string).collect();
    if faults.is_empty() { Ok(()) } else { Err(Error::GradientAudit(faults)) }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor, Var};

    use super::*;

    fn gradients() -> Result<Gradients> {
        let used = Var::from_tensor(&Tensor::new(2_f32, &Device::Cpu)?)?;
        let stuck = Var::from_tensor(&Tensor::new(3_f32, &Device::Cpu)?)?;
        let loss = (used.as_tensor() * 5.)?;
        Ok(tealight_ops::backward(&loss, [("used", &*used), ("layer.0.key.bias", &*stuck)])?)
    }

    #[test]
    fn a_parameter_without_a_gradient_is_named() -> Result<()> {
        let error = audit(&gradients()?, &[]).expect_err("one parameter is unused");
        assert!(error.to_string().contains("`layer.0.key.bias`"), "{error}");
        audit(&gradients()?, &["*.key.bias".to_owned()])
    }
}
