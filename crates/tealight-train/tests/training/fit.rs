//! `fit` on tasks with faults: parameters without gradients, losses that are not finite or spike, batches
//! that cannot be read; and no autograd graph outside training.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::common::Result;
use crate::tiny::tiny;
use crate::weather::weather;
use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use tealight_model::models::forecaster::Forecaster;
use tealight_model::{Mode, ModelConfig, ParamStore};
use tealight_ops::reference_ops::with_reference_ops;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::threads;
use tealight_train::StepFault;
use tealight_train::observer::{Event, Observer};
use tealight_train::run::{Checkpoints, Selection};
use tealight_train::task::weather::{Batch, Weather};
use tealight_train::task::{Inputs, Loss, Split, Task, TaskConfig};
use tealight_train::{Error, Measures, RunConfig, Session, fit, fit_unless_stopped};

/// The fault of a task.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Nothing,
    /// A parameter that the loss does not depend on.
    UnusedParameter,
    /// From this training batch on, the loss and its gradient are multiplied by a factor.
    Factor {
        from: u64,
        factor: f64,
    },
    /// These training batches have no labels.
    Empty {
        from: u64,
        to: u64,
    },
    /// The loss of these training batches is NaN.
    Nan {
        from: u64,
        to: u64,
    },
    /// From this training batch on, reading fails, as if a file had been deleted.
    Unreadable {
        from: u64,
    },
    /// From this training batch on, a thread panics.
    Panic {
        from: u64,
    },
    /// From this training batch on, a constant is added to the loss, which leaves the gradient unchanged.
    Term {
        from: u64,
        term: f64,
    },
}

/// The weather task with a fault; records which losses had an autograd graph.
#[derive(Debug)]
struct Troubled {
    weather: Weather,
    trouble: Trouble,
    graphs: Mutex<Vec<(Split, bool)>>,
}

#[derive(Debug)]
struct Numbered {
    batch: Batch,
    split: Split,
    index: u64,
}

impl Task for Troubled {
    type Model = Forecaster;
    type Batch = Numbered;

    fn build_model(
        &self,
        config: &ModelConfig,
        vb: &VarBuilder<'_>,
    ) -> tealight_train::Result<Forecaster> {
        if matches!(self.trouble, Trouble::UnusedParameter) {
            vb.pp("unused").get_with_hints((3, 5), "weight", candle_nn::init::ONE)?;
        }
        self.weather.build_model(config, vb)
    }

    fn batch(&self, split: Split, index: u64) -> tealight_train::Result<Numbered> {
        match self.trouble {
            Trouble::Unreadable { from } if index >= from => {
                return Err(Error::config(["task.corpus.paths"], "the shard has gone"));
            }
            Trouble::Panic { from } if index >= from => {
                threads::map(vec![1, 2], &|_| panic!("the thread has lost its way"));
            }
            _ => {}
        }
        Ok(Numbered { batch: self.weather.batch(split, index)?, split, index })
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.weather.n_evaluation_batches()
    }

    fn seq_len(&self) -> usize {
        self.weather.seq_len()
    }

    fn inputs<'a>(&self, numbered: &'a Numbered) -> Inputs<'a> {
        self.weather.inputs(&numbered.batch)
    }

    fn loss(
        &self,
        model: &Forecaster,
        numbered: &Numbered,
        mode: Mode,
    ) -> tealight_train::Result<Loss> {
        let Numbered { batch, split, index } = numbered;
        let mut loss = self.weather.loss(model, batch, mode)?;
        let trains = *split == Split::Train;
        match self.trouble {
            Trouble::Factor { from, factor } if trains && *index >= from => {
                loss.sum = (loss.sum * factor)?;
            }
            Trouble::Nan { from, to } if trains && (from..to).contains(index) => {
                loss.sum = (loss.sum * f64::NAN)?;
            }
            Trouble::Term { from, term } if trains && *index >= from => {
                loss.sum = (loss.sum + term)?;
            }
            Trouble::Empty { from, to } if trains && (from..to).contains(index) => {
                let sum = Tensor::zeros((), DType::F32, device())?;
                return Ok(Loss { sum, count: 0., metrics: Measures::default() });
            }
            _ => {}
        }
        assert_eq!(trains, mode != Mode::Eval);
        self.graphs.lock().expect("no panic").push((*split, loss.sum.track_op()));
        Ok(loss)
    }
}

fn troubled(config: &RunConfig, trouble: Trouble) -> Result<Session<Troubled>> {
    let task = Troubled { weather: weather(config)?, trouble, graphs: Mutex::default() };
    Ok(Session::new(config, task, device())?)
}

/// All values that an update changes.
fn state<T: Task>(session: &Session<T>) -> Result<BTreeMap<String, Vec<f64>>> {
    let checkpoint = session.checkpoint()?;
    let parts = [("model", Some(checkpoint.model)), ("optimizer", Some(checkpoint.optimizer))];
    let mut values = BTreeMap::new();
    for (part, tensors) in parts.into_iter().chain([("ema", checkpoint.ema)]) {
        for (name, tensor) in tensors.into_iter().flatten() {
            let tensor = tensor.to_dtype(DType::F64)?.flatten_all()?;
            values.insert(format!("{part}.{name}"), tensor.to_vec1()?);
        }
    }
    Ok(values)
}

#[test]
fn a_parameter_that_cannot_move_ends_the_run_before_its_first_update() -> Result {
    let mut session = troubled(&tiny(&[])?, Trouble::UnusedParameter)?;
    let before = state(&session)?;
    let error = fit(&mut session, 12, None, &mut []).unwrap_err();
    assert!(matches!(error, Error::GradientAudit { .. }));
    assert!(error.to_string().contains("`unused.weight` has no gradient"), "{error}");
    assert_eq!((session.progress.step, state(&session)?), (0, before));
    // Listed as an exception, the parameter stays constant and the others train.
    let excused = "training.gradient_audit_exceptions=['*.key.bias', 'unused.*']";
    let mut session = troubled(&tiny(&[excused])?, Trouble::UnusedParameter)?;
    fit(&mut session, 12, None, &mut [])?;
    assert_eq!(session.progress.step, 12);
    Ok(())
}

#[test]
fn scores_that_cannot_matter_are_found_and_the_bias_of_the_keys_may_be_excused() -> Result {
    // Over one day the softmax is 1 whatever the score, so the gradient of the scores is zero. With dropout
    // its two terms would round differently and not cancel exactly.
    let audited = |overrides: &[&str]| {
        let mut session = troubled(&tiny(overrides)?, Trouble::Nothing)?;
        let error = fit(&mut session, 12, None, &mut []).unwrap_err();
        assert_eq!(session.progress.step, 0);
        Ok::<_, Box<dyn std::error::Error>>(error.to_string())
    };
    let message = audited(&["task.window=1", "model.dropout=0"])?;
    let zero = |name| format!("`layer.0.attention.{name}` has a gradient of zero everywhere");
    assert!(message.contains(&zero("query.weight")), "{message}");
    assert!(message.contains(&zero("key.weight")) && !message.contains("key.bias"), "{message}");
    let message =
        audited(&["task.window=1", "model.dropout=0", "training.gradient_audit_exceptions=[]"])?;
    assert!(message.contains(&zero("key.bias")), "{message}");
    Ok(())
}

#[test]
fn a_loss_or_gradient_that_is_not_finite_leaves_everything_as_it_was() -> Result {
    // A step has two micro-batches: batch 5 is the second half of step 3.
    let from = 5;
    let troubles = [
        Trouble::Factor { from, factor: f64::NAN },
        Trouble::Factor { from, factor: f64::INFINITY },
        Trouble::Term { from, term: f64::NAN },
        Trouble::Term { from, term: f64::INFINITY },
    ];
    let config = tiny(&["checkpoint.every=1"])?;
    for trouble in troubles {
        let directory = tempfile::tempdir()?;
        let checkpoints = Checkpoints::new(directory.path().join("checkpoints"));
        let mut session = troubled(&config, trouble)?;
        fit(&mut session, 2, Some(&checkpoints), &mut [])?;
        let before = state(&session)?;
        let error = fit(&mut session, 12, Some(&checkpoints), &mut []).unwrap_err();
        let Error::BadStep(bad) = &error else { panic!("{trouble:?}: {error}") };
        assert_eq!((bad.step, bad.batches.clone()), (3, 4..6), "{trouble:?}");
        assert!(error.to_string().contains("(batches 4 to 5 of the training split"), "{error}");
        assert_eq!(session.progress.step, 2, "{trouble:?}");
        assert_eq!(state(&session)?, before, "{trouble:?}");
        assert_eq!(checkpoints.latest()?, Some(2), "{trouble:?}");
    }
    Ok(())
}

#[test]
fn a_first_loss_that_is_not_finite_is_called_so() -> Result {
    for trouble in [f64::NAN, f64::INFINITY].map(|term| Trouble::Term { from: 0, term }) {
        let mut session = troubled(&tiny(&[])?, trouble)?;
        let error = fit(&mut session, 12, None, &mut []).unwrap_err();
        assert!(error.to_string().starts_with("step 1: the loss is "), "{error}");
    }
    Ok(())
}

/// Skipped steps and roll-backs.
#[derive(Default)]
struct Notes {
    skipped: Vec<u64>,
    went_back: Vec<(u64, u64, f64)>,
}

struct Notebook<'a>(&'a RefCell<Notes>);

impl Observer for Notebook<'_> {
    fn observe(&mut self, event: &Event<'_>) -> tealight_train::Result<()> {
        let mut notes = self.0.borrow_mut();
        match event {
            Event::Skipped { bad_step } => notes.skipped.push(bad_step.step),
            Event::RolledBack { bad_step, to, lr_factor, .. } => {
                notes.went_back.push((bad_step.step, *to, *lr_factor));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Records events about CUDA graphs.
struct GraphEvents<'a>(&'a RefCell<Vec<&'static str>>);

impl Observer for GraphEvents<'_> {
    fn observe(&mut self, event: &Event<'_>) -> tealight_train::Result<()> {
        match event {
            Event::GraphCaptured => self.0.borrow_mut().push("recorded"),
            Event::GraphNotCaptured { .. } => self.0.borrow_mut().push("refused"),
            _ => {}
        }
        Ok(())
    }
}

/// Elsewhere than on a GPU observers get the reason, and passes stay eager.
#[test]
fn recorded_passes_change_no_bit() -> Result {
    // Sparsemax uses operations of Candle, some of which copy strides to the GPU.
    for attention in ["softmax", "sparsemax"] {
        let attention = format!("model.attention.kind={attention}");
        let settings = |graphs| ["training.micro_batches=1", attention.as_str(), graphs];
        let [apart, recorded] = ["training.cuda_graphs=false", "training.cuda_graphs=true"];
        let mut expected = troubled(&tiny(&settings(apart))?, Trouble::Nothing)?;
        fit(&mut expected, 12, None, &mut [])?;

        let (config, told) = (tiny(&settings(recorded))?, RefCell::default());
        let mut whole = troubled(&config, Trouble::Nothing)?;
        fit(&mut whole, 12, None, &mut [Box::new(GraphEvents(&told))])?;
        let expected_news = [if device().is_cuda() { "recorded" } else { "refused" }];
        assert_eq!(told.into_inner(), expected_news, "{attention}");
        assert!(state(&whole)? == state(&expected)?, "{attention}");

        let (_directory, checkpoints) = folder()?;
        fit(&mut troubled(&config, Trouble::Nothing)?, 5, Some(&checkpoints), &mut [])?;
        let mut resumed = troubled(&config, Trouble::Nothing)?;
        resumed.restore(&checkpoints.load(Selection::Latest, device())?)?;
        fit(&mut resumed, 12, None, &mut [])?;
        assert!(state(&resumed)? == state(&expected)?, "{attention}");
    }
    Ok(())
}

#[test]
fn a_graph_of_several_micro_batches_is_refused_by_name() -> Result {
    let config = tiny(&["training.micro_batches=2", "training.cuda_graphs=true"])?;
    let told = RefCell::default();
    let mut session = troubled(&config, Trouble::Nothing)?;
    fit(&mut session, 3, None, &mut [Box::new(GraphEvents(&told))])?;
    assert_eq!(told.into_inner(), ["refused"]);
    Ok(())
}

/// A folder for checkpoints that lives as long as it.
fn folder() -> Result<(tempfile::TempDir, Checkpoints)> {
    let directory = tempfile::tempdir()?;
    let checkpoints = Checkpoints::new(directory.path().join("checkpoints"));
    Ok((directory, checkpoints))
}

#[test]
fn a_bad_step_can_be_skipped_and_changes_nothing() -> Result {
    let config = tiny(&["training.bad_step=skip"])?;
    let trouble = Trouble::Nan { from: 5, to: 8 };
    let notes = RefCell::default();
    let mut whole = troubled(&config, trouble)?;
    fit(&mut whole, 2, None, &mut [])?;
    let before = state(&whole)?;
    fit(&mut whole, 4, None, &mut [Box::new(Notebook(&notes))])?;
    assert_eq!((whole.progress.step, &notes.borrow().skipped[..]), (4, &[3, 4][..]));
    assert!(state(&whole)? == before);
    fit(&mut whole, 12, None, &mut [])?;
    assert_eq!(whole.progress.step, 12);
    assert!(state(&whole)? != before);
    // A run resumed between bad steps keeps their number.
    let (_directory, checkpoints) = folder()?;
    fit(&mut troubled(&config, trouble)?, 3, Some(&checkpoints), &mut [])?;
    let mut resumed = troubled(&config, trouble)?;
    resumed.restore(&checkpoints.load(Selection::Latest, device())?)?;
    assert_eq!(resumed.progress.bad_step.n_skipped_in_a_row, 1);
    fit(&mut resumed, 12, None, &mut [])?;
    assert!(state(&resumed)? == state(&whole)?);
    Ok(())
}

#[test]
fn too_many_bad_steps_in_a_row_end_the_run_with_a_checkpoint() -> Result {
    let config = tiny(&["training.bad_step={kind='skip',max_in_a_row=2}"])?;
    let (_directory, checkpoints) = folder()?;
    let mut session = troubled(&config, Trouble::Nan { from: 4, to: 99 })?;
    let error = fit(&mut session, 12, Some(&checkpoints), &mut []).unwrap_err();
    assert!(error.to_string().starts_with("step 5: the loss is NaN (batches 8 to 9"), "{error}");
    assert_eq!(checkpoints.latest()?, Some(4));
    Ok(())
}

#[test]
fn a_run_can_go_back_and_learn_more_slowly() -> Result {
    // The first update makes the weights far too large.
    let settings = ["optimizer={kind='sgd',lr=1e30}", "training.max_grad_norm=1e6"];
    let roll_back = "training.bad_step={kind='roll_back',max_times=1,lr_factor=1e-31}";
    let config = tiny(&[&settings[..], &[roll_back]].concat())?;
    let notes = RefCell::default();
    let (_directory, checkpoints) = folder()?;
    let mut session = troubled(&config, Trouble::Nothing)?;
    fit(&mut session, 12, Some(&checkpoints), &mut [Box::new(Notebook(&notes))])?;
    let went_back = notes.borrow().went_back.clone();
    assert_eq!(went_back.len(), 1, "{went_back:?}");
    assert_eq!((went_back[0].1, went_back[0].2), (0, 1e-31));
    assert_eq!(session.progress.step, 12);
    let bad_step = checkpoints.load(Selection::Latest, device())?.state.bad_step;
    assert_eq!((bad_step.n_roll_backs, bad_step.lr_factor), (1, 1e-31));
    // The run ends if there is no checkpoint to go back to, or after `max_times` roll-backs.
    let error = fit(&mut troubled(&config, Trouble::Nothing)?, 12, None, &mut []).unwrap_err();
    assert!(matches!(error, Error::BadStep(_)), "{error}");
    let (_directory, checkpoints) = folder()?;
    let mut hopeless = troubled(&config, Trouble::Nan { from: 4, to: 99 })?;
    let error = fit(&mut hopeless, 12, Some(&checkpoints), &mut []).unwrap_err();
    assert!(matches!(error, Error::BadStep(_)), "{error}");
    Ok(())
}

#[test]
fn a_loss_that_leaps_is_a_bad_step_if_asked_for() -> Result {
    let leap = Trouble::Term { from: 12, term: 1e3 };
    fit(&mut troubled(&tiny(&[])?, leap)?, 12, None, &mut [])?;
    let config = tiny(&["training.loss_spike={window=4,deviations=8}"])?;
    let error = fit(&mut troubled(&config, leap)?, 12, None, &mut []).unwrap_err();
    let Error::BadStep(bad) = &error else { return Err(error.into()) };
    assert!(matches!(bad.fault, StepFault::Spike { .. }), "{error}");
    assert_eq!((bad.step, &bad.origin), (7, &None));
    Ok(())
}

#[test]
fn the_first_tensor_that_is_not_finite_is_named() -> Result {
    let origin = |session: &mut Session<Troubled>| match fit(session, 12, None, &mut []) {
        Err(Error::BadStep(bad)) => Ok(bad.origin.unwrap_or_default()),
        other => Err(format!("{other:?}")),
    };
    let spoil = |name: &str, value: f64| -> Result<Session<Troubled>> {
        let mut session = troubled(&tiny(&["model.dropout=0"])?, Trouble::Nothing)?;
        fit(&mut session, 1, None, &mut [])?;
        let variables = session.params.iter().collect::<BTreeMap<_, _>>();
        variables[name].set(&(variables[name].as_detached_tensor() * value)?)?;
        Ok(session)
    };
    let name = "layer.0.feed_forward.up.weight";
    assert_eq!(origin(&mut spoil(name, f64::NAN)?)?, format!("the parameter `{name}`"));
    // The weights are finite, but the loss computed from them is not.
    let overflown = origin(&mut spoil(name, 3e38)?)?;
    assert!(overflown.starts_with("the result of `mlp`, operation "), "{overflown}");
    assert!(overflown.contains(", which reads `layer.0.feed_forward."), "{overflown}");
    let gradient = origin(&mut troubled(&tiny(&[])?, Trouble::Nan { from: 4, to: 99 })?)?;
    assert!(gradient.starts_with("the gradient of `"), "{gradient}");
    Ok(())
}

#[test]
fn data_that_fail_and_threads_that_panic_leave_a_checkpoint() -> Result {
    let config = tiny(&["training.evaluate_every=100", "checkpoint.every=100"])?;
    let troubles = [
        (Trouble::Unreadable { from: 5 }, "the shard has gone"),
        (Trouble::Panic { from: 5 }, "step 3: the program failed, which is a bug: the thread has"),
        (Trouble::Nan { from: 5, to: 9 }, "step 3: the loss is NaN"),
    ];
    for (trouble, expected) in troubles {
        let (_directory, checkpoints) = folder()?;
        let mut session = troubled(&config, trouble)?;
        let error = fit(&mut session, 12, Some(&checkpoints), &mut []).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(checkpoints.latest()?, Some(2), "{trouble:?}");
        let mut resumed = troubled(&config, Trouble::Nothing)?;
        resumed.restore(&checkpoints.load(Selection::Latest, device())?)?;
        fit(&mut resumed, 12, None, &mut [])?;
        let mut whole = troubled(&config, Trouble::Nothing)?;
        fit(&mut whole, 12, None, &mut [])?;
        assert!(state(&resumed)? == state(&whole)?, "{trouble:?}");
    }
    Ok(())
}

#[test]
fn a_run_that_is_asked_to_stop_does_so_after_the_step_with_a_checkpoint() -> Result {
    let config = tiny(&["training.evaluate_every=100", "checkpoint.every=100"])?;
    for (n_steps, latest) in [(0, None), (1, Some(1)), (7, Some(7))] {
        let (_directory, checkpoints) = folder()?;
        let mut session = troubled(&config, Trouble::Nothing)?;
        let n_asked = std::cell::Cell::new(0);
        let is_asked = || n_asked.replace(n_asked.get() + 1) == n_steps;
        fit_unless_stopped(&mut session, 12, &is_asked, Some(&checkpoints), &mut [])?;
        assert_eq!((session.progress.step, checkpoints.latest()?), (n_steps, latest));
    }
    Ok(())
}

#[test]
fn a_batch_with_nothing_to_predict_weighs_nothing() -> Result {
    // A step has two micro-batches: half of the first step, and all of the second.
    let mut session = troubled(&tiny(&[])?, Trouble::Empty { from: 1, to: 4 })?;
    session.check()?;
    fit(&mut session, 1, None, &mut [])?;
    let model = |session: &Session<Troubled>| -> Result<BTreeMap<String, Vec<f64>>> {
        let values = state(session)?.into_iter();
        Ok(values.filter(|(name, _)| name.starts_with("model.")).collect())
    };
    let after_one = model(&session)?;
    fit(&mut session, 2, None, &mut [])?;
    assert!(model(&session)? == after_one);
    fit(&mut session, 3, None, &mut [])?;
    assert_eq!(session.progress.step, 3);
    assert!(model(&session)? != after_one);
    Ok(())
}

#[test]
fn a_run_may_begin_with_nothing_to_predict_and_not_have_nothing_at_all() -> Result {
    let mut session = troubled(&tiny(&[])?, Trouble::Empty { from: 0, to: 2 })?;
    session.check()?;
    fit(&mut session, 3, None, &mut [])?;
    let nothing = Trouble::Empty { from: 0, to: u64::MAX };
    let error = troubled(&tiny(&[])?, nothing)?.check().unwrap_err();
    assert!(error.to_string().contains("nothing to predict in the first 100 batches"), "{error}");
    Ok(())
}

#[test]
fn evaluation_records_no_graph_and_training_does() -> Result {
    let mut session = troubled(&tiny(&[])?, Trouble::Nothing)?;
    fit(&mut session, 12, None, &mut [])?;
    let graphs = session.task.graphs.lock().unwrap();
    let of = |split| graphs.iter().filter(move |(other, _)| *other == split);
    // 12 steps of two micro-batches, and evaluations after steps 4, 8 and 12.
    assert_eq!((of(Split::Train).count(), of(Split::Validation).count()), (24, 3));
    assert!(of(Split::Train).all(|(_, has_graph)| *has_graph));
    assert!(!of(Split::Validation).any(|(_, has_graph)| *has_graph));
    Ok(())
}

#[test]
fn labels_are_smoothed_in_training_only() -> Result {
    let config = tiny(&["model.dropout=0.0"])?;
    let store = ParamStore::new(config.seed, DType::F32, device());
    let stream = Stream::new(config.seed, Purpose::Dropout);
    let losses = |label_smoothing| {
        let mut config = config.clone();
        let TaskConfig::Weather(settings) = &mut config.task else {
            return Err("another task".into());
        };
        settings.label_smoothing = label_smoothing;
        let task = weather(&config)?;
        let model = task.build_model(&config.model, &store.trainable())?;
        let batch = task.batch(Split::Train, 0)?;
        let loss = |mode| Ok::<_, Error>(task.loss(&model, &batch, mode)?.sum.to_scalar::<f32>()?);
        Ok::<_, Box<dyn std::error::Error>>([loss(Mode::Eval)?, loss(Mode::train(stream))?])
    };
    let ([plain, plain_trained], [smooth, smooth_trained]) = (losses(0.)?, losses(0.3)?);
    assert_eq!([plain, plain], [plain_trained, smooth]);
    assert_ne!(plain, smooth_trained);
    Ok(())
}

#[test]
fn watching_a_metric_that_is_not_measured_names_those_that_are() -> Result {
    let metric = "training.early_stopping.metric=perplexity";
    let config = tiny(&[metric, "training.early_stopping.direction=min"])?;
    let mut session = troubled(&config, Trouble::Nothing)?;
    let error = fit(&mut session, 12, None, &mut []).unwrap_err();
    assert!(error.to_string().contains("`accuracy`, `loss`, `nll`"), "{error}");
    let Error::Config(fault) = error else { panic!("{error}") };
    assert_eq!(fault.keys, ["training.early_stopping.metric"]);
    Ok(())
}

struct Losses<'a>(&'a RefCell<Vec<f64>>);

impl Observer for Losses<'_> {
    fn observe(&mut self, event: &Event<'_>) -> tealight_train::Result<()> {
        if let Event::Step(report) = event {
            self.0.borrow_mut().push(report.loss);
        }
        Ok(())
    }
}

/// The training losses of a hundred steps.
fn losses(config: &RunConfig) -> Result<Vec<f64>> {
    losses_of(config, weather(config)?)
}

/// Of a task of any kind.
fn losses_of<T: Task>(config: &RunConfig, task: T) -> Result<Vec<f64>> {
    let losses = RefCell::default();
    let mut session = Session::new(config, task, device())?;
    fit(&mut session, 100, None, &mut [Box::new(Losses(&losses))])?;
    Ok(losses.into_inner())
}

/// A loss that compares the rows of a step is that over all of them, in however many micro-batches they are read.
#[test]
fn micro_batches_are_compared_with_each_other() -> Result {
    let losses = |batches: &[&str]| -> Result<Vec<f64>> {
        let settings = [
            "task={kind='embed',seq_len=64}",
            "task.data={generated='paraphrases',n_generated=80}",
            "task.tokenizer={kind='char'}",
            "model.dropout=0.0",
            "training.steps=30",
            "training.evaluate_every=30",
            "checkpoint.every=30",
        ];
        let config = tiny(&[&settings[..], batches].concat())?;
        // Of any kind, as commands train it.
        losses_of(&config, config.task.build(&config.task_context(device()))?)
    };
    let whole = losses(&["training.batch_size=16", "training.micro_batches=1"])?;
    for batches in [
        ["training.batch_size=4", "training.micro_batches=4"],
        ["training.batch_size=8", "training.micro_batches=2"],
    ] {
        let in_parts = losses(&batches)?;
        assert_eq!(in_parts.len(), whole.len());
        for (step, (part, whole)) in in_parts.iter().zip(&whole).enumerate() {
            assert!((part - whole).abs() < 1e-4, "{batches:?}, step {}: {part}, {whole}", step + 1);
        }
    }
    // Among four rows, a positive is found more easily.
    let alone = losses(&["training.batch_size=4", "training.micro_batches=1"])?;
    assert!(alone[0] < whole[0] - 0.5, "{alone:?} {whole:?}");
    Ok(())
}

/// With dropout, accumulation, and a bias that all layers share.
#[test]
fn what_is_computed_again_is_exact() -> Result {
    let settings: [&[&str]; 3] = [
        &["model.dropout=0.2", "training.micro_batches=2"],
        &["model.position.kind=relative", "model.feed_forward.kind=glu"],
        &["model.attention.kind=nystrom", "model.norm_placement=post"],
    ];
    for settings in settings {
        let run = |checkpointing: bool| -> Result<Vec<f64>> {
            let checkpointing = format!("training.activation_checkpointing={checkpointing}");
            let steps = ["training.steps=9", "training.evaluate_every=9", "checkpoint.every=9"];
            losses(&tiny(&[&[&checkpointing[..]], &steps[..], settings].concat())?)
        };
        let (kept, again) = (run(false)?, run(true)?);
        assert_eq!(kept.len(), 9);
        assert!(kept == again, "{settings:?}: {kept:?} {again:?}");
    }
    Ok(())
}

#[test]
fn a_hundred_steps_of_fused_loops_are_those_of_the_definitions() -> Result {
    for attention in ["softmax", "nystrom", "aft_local", "linear"] {
        let config = tiny(&[
            &format!("model.attention.kind={attention}"),
            "training.steps=101",
            "training.evaluate_every=101",
            "checkpoint.every=101",
        ])?;
        let fused = losses(&config)?;
        let plain = with_reference_ops(|| losses(&config))?;
        assert_eq!(fused.len(), 100);
        assert!(fused != plain, "{attention}: the definitions were not asked");
        for (step, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
            let difference = (fused - plain).abs();
            assert!(difference < 1e-4, "{attention}, step {}: {fused} is not {plain}", step + 1);
        }
    }
    Ok(())
}
