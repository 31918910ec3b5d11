//! The gradient audit: after the first backward pass, every parameter has a gradient.
//!
//! Where an operation without a backward pass slips into a model, the loss still falls and the
//! parameters below it never move. So a gradient that is missing, zero throughout or not finite ends
//! the run before its first update, unless `training.gradient_audit_exceptions` allows it.

use tealight_model::pattern;
use tealight_ops::Gradients;
use tealight_ops::gradients::{Fault, FaultKind};

use crate::error::{Error, Result};

/// Fails with the names of the parameters that have no usable gradient. In an exception, `*` stands
/// for any text; nothing excuses a gradient that is not finite.
pub fn audit(gradients: &Gradients, exceptions: &[String]) -> Result<()> {
    let faults = gradients.audit()?;
    let excused = |fault: &Fault| {
        fault.kind != FaultKind::NotFinite && pattern::matches_any(exceptions, &fault.name)
    };
    let faults: Vec<String> =
        faults.iter().filter(|fault| !excused(fault)).map(ToString::to_string).collect();
    if faults.is_empty() { Ok(()) } else { Err(Error::GradientAudit { faults }) }
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
