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

/// The gradients of `loss`, after checking that every parameter has a finite one, and that together they agree with
/// finite differences along `n_directions` random directions, which have a part in each entry of each parameter. If they
/// do not, each parameter is moved by itself, so that the wrong one is named.
pub(crate) fn checked_gradients(
    label: &str,
    store: &ParamStore,
    n_directions: u64,
    loss: impl Fn() -> Result<Tensor>,
) -> Result<Gradients> {
    let variables: Vec<_> = store.iter().collect();
    let named = variables.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
    let gradients = backward(&loss()?, named)?;
    let mut parts = Vec::new();
    for (name, variable) in &variables {
        let Some(gradient) = gradients.get(name) else {
            panic!("{label}: `{name}` has no gradient")
        };
        let gradient = values(gradient)?;
        assert!(gradient.iter().all(|g| g.is_finite()), "{label}: `{name}` is not finite");
        parts.push(Part { name, variable, value: values(variable)?, gradient });
    }
    for draw in 0..n_directions {
        if difference_of(&parts, draw, &loss)?.is_some() {
            for part in &parts {
                let wrong = difference_of(std::slice::from_ref(part), draw, &loss)?;
                assert!(wrong.is_none(), "{label}: `{}` along {draw}: {wrong:?}", part.name);
            }
            panic!("{label}: all parameters together, along {draw}");
        }
    }
    Ok(gradients)
}

/// A parameter.
struct Part<'a> {
    name: &'a str,
    variable: &'a Var,
    value: Vec<f64>,
    gradient: Vec<f64>,
}

/// The derivative of `loss` along a direction in all `parts` by their gradients, and by differences of four points, if
/// the two differ. The values of the parameters are restored.
fn difference_of(
    parts: &[Part<'_>],
    draw: u64,
    loss: impl Fn() -> Result<Tensor>,
) -> Result<Option<[f64; 2]>> {
    let directions: Vec<Vec<f64>> = parts
        .iter()
        .map(|part| {
            let stream = Stream::new(17, Purpose::Sampling).fork_name(part.name);
            unit(&stream.fork(draw), part.value.len())
        })
        .collect();
    let loss_at = |delta: f64| {
        for (part, direction) in parts.iter().zip(&directions) {
            let moved = part.value.iter().zip(direction).map(|(x, d)| x + delta * d).collect();
            part.variable.set(&Tensor::from_vec(moved, part.variable.shape(), device())?)?;
        }
        loss()?.to_scalar::<f64>()
    };
    let near = loss_at(STEP)? - loss_at(-STEP)?;
    let far = loss_at(2. * STEP)? - loss_at(-2. * STEP)?;
    loss_at(0.)?;
    let numeric = (8. * near - far) / (12. * STEP);
    let along = |(part, direction): (&Part<'_>, &Vec<f64>)| {
        part.gradient.iter().zip(direction).map(|(g, d)| g * d).sum::<f64>()
    };
    let analytic: f64 = parts.iter().zip(&directions).map(along).sum();
    let agree = (analytic - numeric).abs() < TOLERANCE * numeric.abs().max(1.);
    Ok((!agree).then_some([analytic, numeric]))
}

/// A direction in `n` dimensions.
fn unit(stream: &Stream, n: usize) -> Vec<f64> {
    let direction: Vec<f64> = (0..n as u64).map(|i| stream.normal(i)).collect();
    let size = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
    direction.iter().map(|x| x / size).collect()
}
