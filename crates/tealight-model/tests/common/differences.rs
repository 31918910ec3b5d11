//! The gradient of a model, in f64, against differences of its loss.

use candle_core::{Result, Tensor, Var};
use tealight_model::ParamStore;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::{Gradients, backward};

use crate::common::values;

const STEP: f64 = 1e-5;
/// The differences err by STEP⁴ for the fifth derivative, and by 10⁻¹⁶/STEP for rounding.
const TOLERANCE: f64 = 1e-7;

/// The gradients of `loss`, once they are found to be there and finite for every parameter, and
/// right at `n_entries` random entries of each.
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

/// The derivative of `loss` in entry `at` of `variable`, which keeps its value, from four points.
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
