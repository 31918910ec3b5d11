//! The observed backward pass: each gradient is handed over once, as soon as it is final, and is the one of the plain
//! pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use candle_core::{DType, Result, Tensor, Var, bail};
use tealight_ops::activation::silu;
use tealight_ops::attention::{Options, attention};
use tealight_ops::embedding::embedding;
use tealight_ops::linear::{Map, linear, linears};
use tealight_ops::norm::rms_norm;
use tealight_ops::recompute::checkpoint;
use tealight_ops::residual::residual;
use tealight_ops::testing::device;
use tealight_ops::{Gradients, backward_observed, backward_scaled, reshape};

const FACTOR: f64 = 0.3;
const N_LAYERS: usize = 3;
const WIDTH: usize = 6;

fn var(start: f64, shape: &[usize]) -> Result<Var> {
    let n = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..n).map(|i| (start + 1.3 * i as f64).sin()).collect();
    Var::from_vec(values, shape, device())
}

/// Another value for every `start`.
fn square(start: usize) -> Result<Var> {
    var(start as f64, &[WIDTH, WIDTH])
}

fn bits(gradient: &Tensor) -> Result<Vec<u64>> {
    Ok(gradient.flatten_all()?.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
}

fn all_bits(gradients: &Gradients) -> Result<Vec<Option<Vec<u64>>>> {
    gradients.iter().map(|(_, gradient)| gradient.map(bits).transpose()).collect()
}

/// The names of the parameters in the order of the reports, those without a gradient in brackets; `on_report` is called
/// at each. Checks that every parameter is reported once, with the bits that it has at the end of the pass and in the
/// plain pass.
fn reports_while(
    loss: impl Fn() -> Result<Tensor>,
    parameters: &[(&str, &Var)],
    mut on_report: impl FnMut(),
) -> Result<Vec<String>> {
    let named = || parameters.iter().map(|(name, variable)| (*name, variable.as_tensor()));
    let expected = all_bits(&backward_scaled(&loss()?, FACTOR, named())?)?;
    let mut reported = vec![None; parameters.len()];
    let mut names = Vec::new();
    let gradients = backward_observed(&loss()?, FACTOR, named(), |place, gradient| {
        let name = parameters[place].0;
        on_report();
        names.push(if gradient.is_some() { name.to_owned() } else { format!("({name})") });
        let before = reported[place].replace(gradient.map(bits).transpose()?);
        assert!(before.is_none(), "`{name}` is reported twice");
        Ok(())
    })?;
    assert!(gradients.iter().map(|(name, _)| name).eq(parameters.iter().map(|(name, _)| *name)));
    assert_eq!(all_bits(&gradients)?, expected);
    assert_eq!(reported, expected.into_iter().map(Some).collect::<Vec<_>>());
    Ok(names)
}

fn reports(loss: impl Fn() -> Result<Tensor>, parameters: &[(&str, &Var)]) -> Result<Vec<String>> {
    reports_while(loss, parameters, || ())
}

/// The parameters of a layer: norm, attention, linear map, residual sum.
#[derive(Clone)]
struct Layer {
    gain: Var,
    query: Var,
    output: Var,
}

impl Layer {
    fn new(place: usize) -> Result<Self> {
        let start = 10 * place;
        let gain = var(start as f64, &[WIDTH])?;
        Ok(Self { gain, query: square(start + 1)?, output: square(start + 2)? })
    }

    /// `(batch · len, width)` → the same shape
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = rms_norm(x, &self.gain, 1e-6)?;
        let query = linear(&h, &self.query, None)?;
        // Two examples of five positions, two heads of three.
        let heads = |x: &Tensor| reshape(x, (2, 5, 2, 3))?.transpose(1, 2)?.contiguous();
        let [query, h] = [heads(&query)?, heads(&h)?];
        let mixed = attention(&query, &h, &h, &Options::default())?;
        let rows = mixed.transpose(1, 2)?.contiguous()?.reshape((10, WIDTH))?;
        residual(x, &linear(&rows, &self.output, None)?, None)
    }
}

/// Layers on a trained input, of which each may be computed again.
struct Model {
    input: Var,
    layers: Vec<Layer>,
    n_recomputed: Arc<AtomicUsize>,
}

impl Model {
    fn new() -> Result<Self> {
        let layers = (0..N_LAYERS).map(Layer::new).collect::<Result<_>>()?;
        Ok(Self { input: var(0.7, &[10, WIDTH])?, layers, n_recomputed: Arc::default() })
    }

    fn kept(&self) -> Result<Tensor> {
        let input = self.input.as_tensor().clone();
        self.layers.iter().try_fold(input, |x, layer| layer.forward(&x))?.sqr()?.sum_all()
    }

    fn recomputed(&self) -> Result<Tensor> {
        let checkpointed = |x: Tensor, layer: &Layer| {
            let (layer, n_recomputed) = (layer.clone(), self.n_recomputed.clone());
            checkpoint(move || {
                n_recomputed.fetch_add(1, Ordering::Relaxed);
                layer.forward(&x)
            })
        };
        let y = self.layers.iter().try_fold(self.input.as_tensor().clone(), checkpointed)?;
        self.n_recomputed.store(0, Ordering::Relaxed);
        y.sqr()?.sum_all()
    }

    fn parameters(&self) -> Vec<(&'static str, &Var)> {
        const NAMES: [[&str; 3]; N_LAYERS] = [
            ["0.gain", "0.query", "0.output"],
            ["1.gain", "1.query", "1.output"],
            ["2.gain", "2.query", "2.output"],
        ];
        let layers = NAMES.iter().zip(&self.layers).flat_map(|(names, layer)| {
            names.iter().copied().zip([&layer.gain, &layer.query, &layer.output])
        });
        [("input", &self.input)].into_iter().chain(layers).collect()
    }
}

#[test]
fn parameters_are_reported_from_the_last_operation_to_the_first() -> Result<()> {
    let model = Model::new()?;
    let order = reports(|| model.kept(), &model.parameters())?;
    let expected = [
        "2.output", "2.query", "2.gain", "1.output", "1.query", "1.gain", "0.output", "0.query",
        "input", "0.gain",
    ];
    assert_eq!(order, expected);
    Ok(())
}

#[test]
fn a_recomputed_layer_is_reported_before_those_below_are_computed_again() -> Result<()> {
    let model = Model::new()?;
    let mut n_recomputed = Vec::new();
    let count = || n_recomputed.push(model.n_recomputed.load(Ordering::Relaxed));
    let order = reports_while(|| model.recomputed(), &model.parameters(), count)?;
    let expected = [
        "2.gain", "2.query", "2.output", "1.gain", "1.query", "1.output", "input", "0.gain",
        "0.query", "0.output",
    ];
    assert_eq!(order, expected);
    assert_eq!(n_recomputed, [1, 1, 1, 2, 2, 2, 3, 3, 3, 3]);
    Ok(())
}

#[test]
fn threads_that_train_models_of_their_own_do_not_disturb_each_other() -> Result<()> {
    let train = || -> Result<()> {
        let model = Model::new()?;
        for _ in 0..5 {
            let kept = reports(|| model.kept(), &model.parameters())?;
            assert_eq!(kept.first().map(String::as_str), Some("2.output"));
            assert_eq!(kept.last().map(String::as_str), Some("0.gain"));
            let recomputed = reports(|| model.recomputed(), &model.parameters())?;
            assert!(recomputed[0].starts_with('2') && recomputed[9].starts_with('0'));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(train));
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// The first and the last operation read one table.
#[test]
fn a_tied_weight_is_reported_after_its_last_contribution() -> Result<()> {
    let (table, between) = (var(0., &[5, WIDTH])?, square(1)?);
    let ids = Tensor::new(&[1_u32, 4, 1, 0], device())?;
    let loss = || {
        let h = silu(&linear(&embedding(&table, &ids)?, &between, None)?)?;
        linear(&h, &table, None)?.sqr()?.sum_all()
    };
    assert_eq!(reports(loss, &[("table", &table), ("between", &between)])?, ["between", "table"]);
    Ok(())
}

/// `shared` is read by an operation of ours and by one of Candle's, in either order.
#[test]
fn what_candles_operations_read_is_not_reported_early() -> Result<()> {
    let (x, shared, between) = (square(0)?, square(1)?, square(2)?);
    let ours = |x: &Tensor| linear(x, &shared, None);
    let candles = |x: &Tensor| x.matmul(&shared.t()?);
    let middle = |x: &Tensor| silu(&linear(x, &between, None)?);
    let parameters = [("x", &x), ("shared", &shared), ("between", &between)];
    let above = || candles(&middle(&ours(&x)?)?)?.sum_all();
    assert_eq!(reports(above, &parameters)?, ["between", "x", "shared"]);
    let below = || ours(&middle(&candles(&x)?)?)?.sum_all();
    assert_eq!(reports(below, &parameters)?, ["x", "shared", "between"]);
    let between_nodes = || ours(&middle(&candles(&silu(&x)?)?)?)?.sum_all();
    assert_eq!(reports(between_nodes, &parameters)?, ["shared", "between", "x"]);
    Ok(())
}

#[test]
fn what_only_candles_operations_read_is_reported_before_any_node_has_run() -> Result<()> {
    let (x, scale, weight) = (square(0)?, square(1)?, square(2)?);
    let loss = || (linear(&x, &weight, None)? * scale.as_tensor())?.sum_all();
    let parameters = [("x", &x), ("scale", &scale), ("weight", &weight)];
    assert_eq!(reports(loss, &parameters)?, ["scale", "x", "weight"]);
    assert_eq!(reports(|| x.sqr()?.sum_all(), &[("x", &x)])?, ["x"]);
    Ok(())
}

/// Parts that read what is read above and below them, hold parts themselves, or have no operation of ours.
#[test]
fn recomputed_parts_of_every_kind_are_not_early() -> Result<()> {
    let (x, shared, inner, candles) = (square(0)?, square(1)?, square(2)?, square(3)?);
    let loss = || {
        let h = linear(&x, &shared, None)?;
        let (input, weight) = (h.clone(), candles.clone());
        let h = checkpoint(move || input.matmul(&weight)?.sqr())?;
        let (input, above, weights) = (h.clone(), h.clone(), [shared.clone(), inner.clone()]);
        let nested = checkpoint(move || {
            let (h, weight) = (linear(&input, &weights[0], None)?, weights[1].clone());
            silu(&checkpoint(move || silu(&linear(&h, &weight, None)?))?)
        })?;
        linear(&residual(&above, &nested, None)?, &shared, None)?.sqr()?.sum_all()
    };
    let parameters = [("x", &x), ("shared", &shared), ("inner", &inner), ("candles", &candles)];
    assert_eq!(reports(loss, &parameters)?, ["inner", "candles", "x", "shared"]);
    Ok(())
}

#[test]
fn parameters_without_a_gradient_come_last() -> Result<()> {
    let (x, weight, unused, unread) = (square(0)?, square(1)?, square(2)?, square(3)?);
    let loss = || {
        let maps = [&unread, &weight].map(|weight| Map { weight: weight.as_tensor(), bias: None });
        let [_unread, y] = linears(&silu(&x)?, maps)?;
        y.sqr()?.sum_all()
    };
    let parameters = [("unread", &unread), ("unused", &unused), ("x", &x), ("weight", &weight)];
    assert_eq!(reports(loss, &parameters)?, ["weight", "x", "(unread)", "(unused)"]);
    Ok(())
}

#[test]
fn a_variable_of_two_names_is_reported_under_both() -> Result<()> {
    let x = square(0)?;
    assert_eq!(reports(|| silu(&x)?.sum_all(), &[("a", &x), ("b", &x)])?, ["a", "b"]);
    Ok(())
}

#[test]
fn an_error_of_the_observer_ends_the_pass() -> Result<()> {
    let model = Model::new()?;
    let parameters = model.parameters();
    let named = parameters.iter().map(|(name, variable)| (*name, variable.as_tensor()));
    let mut n_reports = 0;
    let error = backward_observed(&model.recomputed()?, FACTOR, named, |_, _| {
        n_reports += 1;
        if n_reports == 2 {
            bail!("the connection is lost")
        }
        Ok(())
    });
    let error = error.expect_err("an error").to_string();
    assert!(error.contains("the connection is lost"), "{error}");
    assert_eq!((n_reports, model.n_recomputed.load(Ordering::Relaxed)), (2, 1));
    Ok(())
}

/// The second run reads a variable that has been reported, as the first run did not read it.
#[test]
fn a_part_that_reads_something_else_when_it_is_computed_again_is_an_error() -> Result<()> {
    let (x, weights) = (square(0)?, [square(1)?, square(2)?]);
    let (input, read, n_runs) = (x.clone(), weights.clone(), AtomicUsize::new(0));
    let h =
        checkpoint(move || linear(&input, &read[n_runs.fetch_add(1, Ordering::Relaxed)], None))?;
    let loss = linear(&h, &weights[1], None)?.sum_all()?;
    let named =
        [("x", x.as_tensor()), ("0", weights[0].as_tensor()), ("1", weights[1].as_tensor())];
    let mut n_reports = 0;
    let error = backward_observed(&loss, 1., named, |place, _| {
        n_reports += 1;
        assert_eq!(place, 2);
        Ok(())
    });
    let error = error.expect_err("a late gradient").to_string();
    assert!(error.contains("whose gradient was final"), "{error}");
    assert_eq!(n_reports, 1);
    Ok(())
}

#[test]
fn an_observed_loss_is_a_single_number() -> Result<()> {
    let x = Var::ones(2, DType::F64, device())?;
    let error = backward_observed(&x, 1., [("x", x.as_tensor())], |_, _| Ok(()));
    assert!(error.expect_err("two numbers").to_string().contains("expected a single number"));
    Ok(())
}
