//! Comparison of a model's gradients with finite differences of its loss, in f64.

use candle_core::{Result, Tensor, Var};
use tealight_model::ParamStore;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::{Gradients, backward};

use crate::common::values;

const STEP: f64 = 1e-5;
/// The error is O(STEP⁴) times the fifth derivative, plus 10⁻¹⁶/STEP from rounding.
const TOLERANCE: f64 = 1e-7;

/// The gradients of `loss`, after checking that every parameter has a finite one which agrees with finite
/// differences at `n_entries` random entries.
pub(crate) fn checked_gradients(
    label: &str,
    store: &ParamStore,
    n_entries: u64,
    loss: impl Fn() -> Result<Tensor>,
) -> Result<Gradients> {
    let variables: Vec<_> = store.iter().collect();
    let named = variables.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
    let gradients = backward(&loss()?, named)?;
    for (name, variable) in &variables {
        let Some(gradient) = gradients.get(name) else {
            panic!("{label}: `{name}` has no gradient")
        };
        let gradient = values(gradient)?;
        assert!(gradient.iter().all(|g| g.is_finite()), "{label}: `{name}` is not finite");
        let stream = Stream::new(17, Purpose::Sampling).fork_name(name);
        for draw in 0..n_entries {
            let at = stream.below(draw, gradient.len() as u64) as usize;
            let (analytic, numeric) = (gradient[at], difference(variable, at, &loss)?);
            let allowed = TOLERANCE * numeric.abs().max(1.);
            let agree = (analytic - numeric).abs() < allowed;
            assert!(agree, "{label}: `{name}`[{at}]: {analytic} is not {numeric}");
        }
    }
    Ok(gradients)
}

/// The derivative of `loss` in entry `at` of `variable`, from differences of four points. The value of the
/// variable is restored.
fn difference(variable: &Var, at: usize, loss: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let original = values(variable)?;
    let set = |delta: f64| {
        let mut nudged = original.clone();
        nudged[at] += delta;
        variable.set(&Tensor::from_vec(nudged, variable.shape(), device())?)
    };
    let loss_at = |delta: f64| {
        set(delta)?;
        loss()?.to_scalar::<f64>()
    };
    let near = loss_at(STEP)? - loss_at(-STEP)?;
    let far = loss_at(2. * STEP)? - loss_at(-2. * STEP)?;
    set(0.)?;
    Ok((8. * near - far) / (12. * STEP))
}
