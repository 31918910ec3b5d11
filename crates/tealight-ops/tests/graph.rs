//! The graph of nodes: gradients reach every variable, whatever stands between, and are added up as
//! Candle would add them.

use candle_core::{DType, Device, Result, Tensor, Var};
use tealight_ops::activation::silu;
use tealight_ops::linear::linear;
use tealight_ops::norm::rms_norm;
use tealight_ops::profile::{self, Part, Pass};
use tealight_ops::residual::residual;
use tealight_ops::{backward, reshape};

fn var(start: f64, shape: &[usize]) -> Result<Var> {
    let n = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..n).map(|i| (start + 1.3 * i as f64).sin()).collect();
    Var::from_vec(values, shape, &Device::Cpu)
}

fn gradient(loss: &Tensor, variable: &Var) -> Result<Vec<f64>> {
    let gradients = backward(loss, [("x", variable.as_tensor())])?;
    gradients.get("x").expect("a gradient").flatten_all()?.to_vec1()
}

fn assert_equal(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() < 1e-12 * e.abs().max(1.), "element {i}: {a} and not {e}");
    }
}

/// h is read by three nodes and by an operation of Candle's, and x by two.
#[test]
fn what_is_read_often_has_the_sum_of_its_gradients() -> Result<()> {
    let (x, w) = (var(0., &[5, 4])?, var(1., &[4, 4])?);
    let ours = |x: &Tensor, w: &Tensor| -> Result<Tensor> {
        let h = linear(x, w, None)?;
        let sum = residual(&h, &silu(&h)?, None)?;
        ((sum * h)? + x)?.sum_all()
    };
    let candles = |x: &Tensor, w: &Tensor| -> Result<Tensor> {
        let h = x.matmul(&w.t()?)?;
        let sum = (&h + h.silu()?)?;
        ((sum * h)? + x)?.sum_all()
    };
    for variable in [&x, &w] {
        let actual = gradient(&ours(&x, &w)?, variable)?;
        assert_equal(&actual, &gradient(&candles(&x, &w)?, variable)?);
    }
    Ok(())
}

/// A gradient that an operation has passed on to two inputs is added to in neither place.
#[test]
fn a_gradient_that_is_passed_on_twice_is_not_changed_in_place() -> Result<()> {
    let x = var(0., &[3, 8])?;
    let chain = |x: &Tensor| -> Result<Tensor> {
        let h = silu(x)?;
        let once = residual(&h, &silu(&h)?, None)?;
        residual(&once, &silu(&once)?, None)?.sum_all()
    };
    let candles = |x: &Tensor| -> Result<Tensor> {
        let h = x.silu()?;
        let once = (&h + h.silu()?)?;
        (&once + once.silu()?)?.sum_all()
    };
    assert_equal(&gradient(&chain(&x)?, &x)?, &gradient(&candles(&x)?, &x)?);
    Ok(())
}

#[test]
fn other_shapes_and_stretches_of_candles_pass_gradients_on() -> Result<()> {
    let (x, gain) = (var(0., &[2, 3, 4])?, Var::ones(6, DType::F64, &Device::Cpu)?);
    let ours = |x: &Tensor| -> Result<Tensor> {
        let rows = reshape(&silu(x)?, (4, 6))?;
        let normed = rms_norm(&rows, &gain, 1e-6)?;
        let swapped = reshape(&normed, (2, 3, 4))?.transpose(1, 2)?.contiguous()?;
        silu(&swapped)?.sqr()?.sum_all()
    };
    let candles = |x: &Tensor| -> Result<Tensor> {
        let rows = x.silu()?.reshape((4, 6))?;
        let scale = (rows.sqr()?.mean_keepdim(1)? + 1e-6)?.sqrt()?;
        let normed = rows.broadcast_div(&scale)?;
        normed.reshape((2, 3, 4))?.transpose(1, 2)?.contiguous()?.silu()?.sqr()?.sum_all()
    };
    assert_equal(&gradient(&ours(&x)?, &x)?, &gradient(&candles(&x)?, &x)?);
    Ok(())
}

#[test]
fn a_backward_frees_what_it_needs_and_says_so_when_asked_again() -> Result<()> {
    let x = var(0., &[4])?;
    let loss = silu(&x)?.sum_all()?;
    gradient(&loss, &x)?;
    let error = backward(&loss, [("x", x.as_tensor())]).expect_err("the graph is used up");
    assert!(error.to_string().contains("`silu`: its backward has run already"), "{error}");
    Ok(())
}

#[test]
fn a_variable_of_two_names_has_its_gradient_under_both() -> Result<()> {
    let x = var(0., &[4])?;
    let names = [("x", x.as_tensor()), ("y", x.as_tensor())];
    let gradients = backward(&silu(&x)?.sum_all()?, names)?;
    assert!(gradients.audit()?.is_empty());
    Ok(())
}

#[test]
fn candles_own_backward_is_sent_here() -> Result<()> {
    let x = var(0., &[4])?;
    #[expect(clippy::disallowed_methods, reason = "to see that it is refused")]
    let error = silu(&x)?.sum_all()?.backward().expect_err("not the way to a gradient");
    assert!(error.to_string().contains("tealight_ops::backward"), "{error}");
    Ok(())
}

#[test]
fn a_profile_counts_what_ran_while_it_did() -> Result<()> {
    let x = var(0., &[4])?;
    silu(&x)?;
    profile::start();
    gradient(&silu(&silu(&x)?)?.sum_all()?, &x)?;
    let times = profile::stop();
    for pass in [Pass::Forward, Pass::Backward] {
        // At least: the other tests of this file may run at the same time.
        assert!(times.get(&Part { name: "silu", pass }).is_some_and(|time| time.count >= 2));
    }
    Ok(())
}
