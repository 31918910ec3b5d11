//! The graph of nodes: gradients reach every variable, whatever stands between, and are added up as
//! Candle would add them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Result, Tensor, Var};
use tealight_ops::activation::silu;
use tealight_ops::linear::{Map, linear, linears};
use tealight_ops::norm::rms_norm;
use tealight_ops::profile::{self, Part, Phase};
use tealight_ops::recompute::checkpoint;
use tealight_ops::residual::residual;
use tealight_ops::testing::device;
use tealight_ops::{backward, reshape};

fn var(start: f64, shape: &[usize]) -> Result<Var> {
    let n = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..n).map(|i| (start + 1.3 * i as f64).sin()).collect();
    Var::from_vec(values, shape, device())
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
    let (x, gain) = (var(0., &[2, 3, 4])?, Var::ones(6, DType::F64, device())?);
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

/// A part of a model that is computed again: what it reads are a variable, a result of ours, one of
/// Candle's, and what another such part gives.
#[test]
fn a_checkpoint_has_the_gradients_of_what_is_kept() -> Result<()> {
    let (x, w) = (var(0., &[5, 4])?, var(1., &[4, 4])?);
    let calls = Arc::new(AtomicUsize::new(0));
    let model = |is_kept: bool| -> Result<Tensor> {
        let part = |f: Box<dyn Fn() -> Result<Tensor> + Send + Sync>| {
            if is_kept { f() } else { checkpoint(f) }
        };
        let (h, scaled) = (silu(&x)?, (x.as_tensor() * 2.)?);
        let (counted, weight, again) = (calls.clone(), w.clone(), h.clone());
        let first = part(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let inner = linear(&residual(&again, &scaled, None)?, weight.as_tensor(), None)?;
            residual(&inner, &silu(&inner)?, None)
        }))?;
        let (weight, above) = (w.clone(), reshape(&first, (2, 10))?);
        let second = part(Box::new(move || {
            linear(&reshape(&above, (5, 4))?, weight.as_tensor(), None)?.sqr()
        }))?;
        (residual(&second, &h, None)? * first)?.sum_all()
    };
    for variable in [&x, &w] {
        let kept = gradient(&model(true)?, variable)?;
        calls.store(0, Ordering::Relaxed);
        assert_equal(&gradient(&model(false)?, variable)?, &kept);
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_constants_is_computed_once() -> Result<()> {
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, x) = (calls.clone(), var(0., &[3])?.as_detached_tensor());
    let y = checkpoint(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        silu(&x)
    })?;
    assert!(!y.track_op());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    Ok(())
}

/// Only the second of three results is read, and twice; of a sum, neither term is kept.
#[test]
fn one_of_several_results_has_its_gradient() -> Result<()> {
    let (x, w, v) = (var(0., &[5, 4])?, var(1., &[4, 4])?, var(2., &[4, 4])?);
    let map = |weight: &Var| -> Result<Tensor> {
        let [a, b] = [&w, weight].map(|w| Map { weight: w.as_tensor(), bias: None });
        let [_unused, h, _] = linears(&x, [a, b, a])?;
        let sum = residual(&silu(&h)?, &h, None)?;
        residual(&sum, &silu(&sum)?, None)?.sum_all()
    };
    let candles = |weight: &Var| -> Result<Tensor> {
        let h = x.matmul(&weight.t()?)?;
        let sum = (h.silu()? + h)?;
        (&sum + sum.silu()?)?.sum_all()
    };
    for variable in [&x, &v] {
        assert_equal(&gradient(&map(&v)?, variable)?, &gradient(&candles(&v)?, variable)?);
    }
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
    for pass in [Phase::Forward, Phase::Backward] {
        // At least: the other tests of this file may run at the same time.
        assert!(times.get(&Part { name: "silu", phase: pass }).is_some_and(|time| time.count >= 2));
    }
    Ok(())
}
