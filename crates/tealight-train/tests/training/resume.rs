//! A run is a function of its configuration: stopping and resuming it, repeating it, or another number of
//! threads changes no bit of its results.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use crate::any_task::{ForAnyTask, with_task};
use crate::common::Result;
use crate::images::IMAGES;
use crate::outcome::Outcome;
use crate::tiny::tiny;
use candle_core::{DType, Tensor};
use tealight_ops::testing::device;
use tealight_ops::threads;
use tealight_train::observer::jsonl::{JsonLines, cut_after};
use tealight_train::observer::{Event, Observer};
use tealight_train::run::{Checkpoints, Selection};
use tealight_train::task::{Task, TaskConfig, TaskKind};
use tealight_train::training::session::Progress;
use tealight_train::{Error, RunConfig, Session, fit};

/// Ends the run like a power cut, without a last checkpoint.
struct PowerCut {
    step: u64,
}

impl Observer for PowerCut {
    fn observe(&mut self, event: &Event<'_>) -> tealight_train::Result<()> {
        match event {
            Event::Step(report) if report.step == self.step => Err(Error::config([], "dark")),
            _ => Ok(()),
        }
    }
}

/// The state in memory at the end of a process.
struct Ended {
    progress: Progress,
    parameters: BTreeMap<String, Tensor>,
}

/// Resumes in `directory` like a new process, from the latest checkpoint up to `last_step`.
struct GoOn<'a> {
    directory: &'a Path,
    last_step: u64,
    power_cut: Option<u64>,
}

impl ForAnyTask for GoOn<'_> {
    type Answer = Ended;

    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result<Ended> {
        let Self { directory, last_step, power_cut } = *self;
        let checkpoints = Checkpoints::new(directory.join("checkpoints"));
        let metrics = directory.join("metrics.jsonl");
        let mut session = Session::new(config, task, device())?;
        if checkpoints.latest()?.is_some() {
            session.restore(&checkpoints.load(Selection::Latest, device())?)?;
        }
        cut_after(&metrics, session.progress.step, session.progress.bad_step.n_roll_backs)?;
        let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(JsonLines::append(&metrics)?)];
        observers.extend(power_cut.map(|step| Box::new(PowerCut { step }) as Box<dyn Observer>));
        match fit(&mut session, last_step, Some(&checkpoints), &mut observers) {
            Err(error) if power_cut.is_none() => Err(error.into()),
            _ => Ok(Ended { parameters: session.params.tensors(), progress: session.progress }),
        }
    }
}

fn go_on(
    config: &RunConfig,
    directory: &Path,
    last_step: u64,
    power_cut: Option<u64>,
) -> Result<Ended> {
    with_task(config, &GoOn { directory, last_step, power_cut })
}

/// Runs to each step of `stops` in turn, resuming in between.
fn run(config: &RunConfig, stops: &[u64]) -> Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let mut step = 0;
    for &stop in stops {
        step = go_on(config, directory.path(), stop, None)?.progress.step;
    }
    Outcome::read(directory.path(), step)
}

const OPTIMIZERS: [&str; 7] = [
    "optimizer.kind=adamw",
    "optimizer.kind=sgd",
    "optimizer.kind=lion",
    "optimizer.kind=muon",
    "optimizer={kind='muon',row_beta=0.95}",
    "optimizer.kind=adafactor",
    "optimizer.kind=lamb",
];
const REGIMES: [&str; 2] = ["task.regime.kind=examples", "task.regime.kind=fresh"];

#[test]
fn a_resumed_run_is_the_run_that_never_stopped() -> Result {
    for optimizer in OPTIMIZERS {
        for regime in REGIMES {
            let config = tiny(&[optimizer, regime, "task.regime.n_validation=5"])?;
            let whole = run(&config, &[12])?;
            assert_eq!((whole.step, whole.trained("loss").len()), (12, 12));
            assert!(whole.files.contains_key("ema.safetensors"));
            let label = format!("{optimizer}, {regime}");
            run(&config, &[6, 12])?.assert_same(&whole, &label);
            run(&config, &[1, 5, 8, 12])?.assert_same(&whole, &label);
        }
    }
    Ok(())
}

#[test]
fn what_is_frozen_stays_as_it_was_and_the_rest_is_resumed() -> Result {
    let frozen = "training.frozen=['embedding.*', 'layer.0.*']";
    for optimizer in ["optimizer.kind=adamw", "optimizer.kind=muon"] {
        let config = tiny(&[optimizer, frozen, "training.layer_lr_decay=0.7"])?;
        let whole = run(&config, &[12])?;
        run(&config, &[5, 12])?.assert_same(&whole, optimizer);
        let parameters = |last_step| {
            Ok::<_, Box<dyn std::error::Error>>(
                go_on(&config, tempfile::tempdir()?.path(), last_step, None)?.parameters,
            )
        };
        let (before, after) = (parameters(0)?, parameters(12)?);
        for (name, parameter) in &before {
            let is_frozen = name.starts_with("embedding.") || name.starts_with("layer.0.");
            let stayed = values(parameter)? == values(&after[name])?;
            let has_no_gradient = name.ends_with("key.bias");
            assert!(stayed == is_frozen || has_no_gradient, "{name}");
        }
    }
    Ok(())
}

/// Generated pairs, whose lengths differ from batch to batch.
const SEQ2SEQ: [&str; 5] = [
    "task.kind=seq2seq",
    "task.source={kind='reverse',n_symbols=5,length=7}",
    "task.n_validation=11",
    "task.n_decoded=5",
    "training.early_stopping.metric=exact_match",
];

const EMBED: [&str; 4] = [
    "task={kind='embed',seq_len=64}",
    "task.data={generated='paraphrases',n_generated=40}",
    "task.tokenizer={kind='char'}",
    "checkpoint.metric=mrr@10",
];

#[test]
fn every_task_is_resumed_as_if_it_had_never_stopped() -> Result {
    let config = tiny(&SEQ2SEQ)?;
    let whole = run(&config, &[12])?;
    assert!(whole.metrics.iter().any(|line| line.contains_key("exact_match")));
    run(&config, &[1, 5, 8, 12])?.assert_same(&whole, "seq2seq");
    let other = run(&RunConfig { seed: 18, ..config }, &[12])?;
    assert_ne!(other.trained("loss"), whole.trained("loss"));
    let config = tiny(&IMAGES)?;
    let whole = run(&config, &[12])?;
    assert!(whole.metrics.iter().any(|line| line.contains_key("accuracy")));
    run(&config, &[1, 5, 8, 12])?.assert_same(&whole, "images");
    // Rows wait for another step, and the two micro-batches of a step are compared with each other.
    let config = tiny(&EMBED)?;
    let whole = run(&config, &[12])?;
    assert!(whole.metrics.iter().any(|line| line.contains_key("mrr@10")));
    run(&config, &[1, 5, 8, 12])?.assert_same(&whole, "embed");
    Ok(())
}

#[test]
fn a_run_that_crashed_goes_on_from_its_last_checkpoint() -> Result {
    let config = tiny(&[])?;
    let directory = tempfile::tempdir()?;
    let crashed = go_on(&config, directory.path(), 12, Some(9))?;
    assert_eq!(crashed.progress.step, 9);
    let step = go_on(&config, directory.path(), 12, None)?.progress.step;
    Outcome::read(directory.path(), step)?.assert_same(&run(&config, &[12])?, "crashed");
    Ok(())
}

/// The process died after a checkpoint was saved and before `best` pointed to it.
#[test]
fn a_best_that_a_crash_left_behind_is_right_again_after_resuming() -> Result {
    let config = tiny(&["checkpoint.keep_last=1"])?;
    for (stop, last_step) in [(8, 12), (12, 12)] {
        let whole = run(&config, &[stop, last_step])?;
        let directory = tempfile::tempdir()?;
        let progress = go_on(&config, directory.path(), stop, None)?.progress;
        let best = progress.early_stopping.state.best.ok_or("nothing was evaluated")?.step;
        assert!(best > 4, "the first evaluation is not the best of {stop} steps");
        let checkpoints = directory.path().join("checkpoints");
        fs::write(checkpoints.join("best"), "step-000004\n")?;
        go_on(&config, directory.path(), last_step, None)?;
        let resumed = Outcome::read(directory.path(), last_step)?;
        resumed.assert_same(&whole, &format!("stopped at {stop}"));
    }
    Ok(())
}

/// The process died after a checkpoint was saved and before an old one was removed.
#[test]
fn a_checkpoint_that_a_crash_left_behind_is_removed_after_resuming() -> Result {
    let config = tiny(&["checkpoint.keep_last=1", "training.evaluate_every=12"])?;
    let directory = tempfile::tempdir()?;
    go_on(&config, directory.path(), 5, None)?;
    let checkpoints = Checkpoints::new(directory.path().join("checkpoints"));
    let old = checkpoints.path(3);
    fs::create_dir(&old)?;
    for entry in fs::read_dir(checkpoints.path(5))? {
        let entry = entry?;
        fs::copy(entry.path(), old.join(entry.file_name()))?;
    }
    assert_eq!(checkpoints.steps()?, [3, 5]);
    go_on(&config, directory.path(), 5, None)?;
    assert_eq!(checkpoints.steps()?, [5]);
    Ok(())
}

#[test]
fn a_checkpoint_of_another_seed_is_refused_with_both() -> Result {
    let config = tiny(&[])?;
    let directory = tempfile::tempdir()?;
    go_on(&config, directory.path(), 4, None)?;
    let Err(error) = go_on(&RunConfig { seed: 18, ..config }, directory.path(), 12, None) else {
        return Err("another seed was taken".into());
    };
    let message = error.to_string();
    assert!(message.contains("`seed` = 18") && message.contains("`seed` = 17"), "{message}");
    Ok(())
}

/// Records whether a checkpoint exists when it is announced and when it is reported as saved.
struct Order<'a> {
    checkpoints: &'a Checkpoints,
    seen: &'a std::cell::RefCell<Vec<(u64, bool)>>,
}

impl Observer for Order<'_> {
    fn observe(&mut self, event: &Event<'_>) -> tealight_train::Result<()> {
        if let Event::CheckpointSaving { step } | Event::CheckpointSaved { step, .. } = *event {
            self.seen.borrow_mut().push((step, self.checkpoints.contains(step)));
        }
        Ok(())
    }
}

#[test]
fn a_checkpoint_is_announced_before_it_is_there() -> Result {
    let config = tiny(&["checkpoint.every=5", "training.evaluate_every=100"])?;
    let directory = tempfile::tempdir()?;
    let checkpoints = Checkpoints::new(directory.path().join("checkpoints"));
    let seen = std::cell::RefCell::default();
    let TaskConfig::Weather(task) = &config.task else { return Err("another task".into()) };
    let task = task.build(&config.task_context(device()))?;
    let mut session = Session::new(&config, task, device())?;
    let order = Order { checkpoints: &checkpoints, seen: &seen };
    fit(&mut session, 6, Some(&checkpoints), &mut [Box::new(order)])?;
    assert_eq!(*seen.borrow(), [(5, false), (5, true), (6, false), (6, true)]);
    Ok(())
}

#[test]
fn a_run_that_goes_back_does_so_however_it_was_interrupted() -> Result {
    // The first update makes the weights far too large; with the lower learning rate training succeeds.
    let settings = ["optimizer={kind='sgd',lr=1e30}", "training.max_grad_norm=1e6"];
    let roll_back = "training.bad_step={kind='roll_back',max_times=2,lr_factor=1e-31}";
    let config = tiny(&[&settings[..], &[roll_back, "checkpoint.keep_last=1"]].concat())?;
    let whole = run(&config, &[12])?;
    let notes = whole.metrics.iter().filter(|line| line["split"] == "rolled_back");
    assert_eq!(notes.map(|line| &line["from"]).collect::<Vec<_>>(), [2.]);
    for stops in [&[1, 12][..], &[3, 12], &[1, 2, 3, 7, 12]] {
        run(&config, stops)?.assert_same(&whole, &format!("{stops:?}"));
    }
    for power_cut in [1, 6, 9] {
        let directory = tempfile::tempdir()?;
        go_on(&config, directory.path(), 12, Some(power_cut))?;
        let step = go_on(&config, directory.path(), 12, None)?.progress.step;
        Outcome::read(directory.path(), step)?.assert_same(&whole, &format!("cut at {power_cut}"));
    }
    Ok(())
}

#[test]
fn early_stopping_remembers_across_a_stop() -> Result {
    // No loss falls by ten, so the run stops early; `best` is marked regardless of `min_delta`.
    let impatient = ["training.evaluate_every=2", "training.early_stopping.patience=3"];
    let config = tiny(&[&impatient[..], &["training.early_stopping.min_delta=10.0"]].concat())?;
    let whole = run(&config, &[12])?;
    assert_eq!((whole.step, whole.best), (8, Some(8)));
    run(&config, &[5, 12])?.assert_same(&whole, "stopped early");
    run(&config, &[12, 12])?.assert_same(&whole, "resumed although it was over");
    Ok(())
}

#[test]
fn a_run_is_a_function_of_its_seed() -> Result {
    for regime in REGIMES {
        let config = tiny(&[regime])?;
        let first = run(&config, &[12])?;
        run(&config, &[12])?.assert_same(&first, regime);
        let other = run(&RunConfig { seed: 18, ..config }, &[12])?;
        assert_ne!(first.trained("loss"), other.trained("loss"), "{regime}");
        assert_ne!(first.files["model.safetensors"], other.files["model.safetensors"]);
    }
    Ok(())
}

/// Rounding error of f32 over a few updates.
const ERROR: f64 = 1e-5;

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

fn assert_close(a: &[f64], b: &[f64], label: &str) {
    assert_eq!(a.len(), b.len(), "{label}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < ERROR * b.abs().max(1.), "{label}: {a} is not {b}");
    }
}

#[test]
fn two_micro_batches_are_one_batch_of_twice_the_size() -> Result {
    // Not AdamW: it divides by the size of a gradient, which amplifies rounding errors of tiny gradients.
    let common = ["optimizer.kind=sgd", "model.dropout=0.0", "optimizer.lr=0.1"];
    let trained = |batches: [&str; 2]| {
        let config = tiny(&[&common[..], &batches[..]].concat())?;
        let directory = tempfile::tempdir()?;
        let ended = go_on(&config, directory.path(), 12, None)?;
        Ok::<_, Box<dyn std::error::Error>>((ended, Outcome::read(directory.path(), 12)?))
    };
    let (halves, in_halves) = trained(["training.micro_batches=2", "training.batch_size=8"])?;
    let (wholes, in_wholes) = trained(["training.micro_batches=1", "training.batch_size=16"])?;
    for metric in ["loss", "accuracy", "nll", "grad_norm"] {
        assert_close(&in_halves.trained(metric), &in_wholes.trained(metric), metric);
    }
    let (halves, wholes) = (halves.parameters, wholes.parameters);
    for (name, parameter) in &halves {
        assert_close(&values(parameter)?, &values(&wholes[name])?, name);
    }
    Ok(())
}

/// Batches large enough that fused loops and matrix products use several threads.
fn wide() -> Result<RunConfig> {
    let batches = ["training.batch_size=512", "task.regime.n=1000", "training.steps=2"];
    tiny(&[&batches[..], &["schedule.warmup_steps=1"]].concat())
}

#[test]
fn the_number_of_threads_in_the_pool_changes_nothing() -> Result {
    let run_on = |config: &RunConfig, n_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build()?;
        let outcome = pool.install(|| {
            threads::with(n_threads, || run(config, &[2])).map_err(|error| error.to_string())
        });
        Ok::<_, Box<dyn std::error::Error>>(outcome?)
    };
    let short = ["training.steps=2", "schedule.warmup_steps=1"];
    for config in [wide()?, tiny(&[&IMAGES[..], &short].concat())?] {
        let alone = run_on(&config, 1)?;
        for n_threads in [2, 5] {
            let label = format!("{}, {n_threads} threads", config.task.kind());
            run_on(&config, n_threads)?.assert_same(&alone, &label);
        }
    }
    Ok(())
}

/// The variable with the path where a child process writes its trained parameters.
const OUTPUT: &str = "TEALIGHT_TEST_OUTPUT";

#[test]
#[ignore = "started as a child process by the test below"]
fn child() -> Result {
    let outcome = run(&wide()?, &[2])?;
    fs::write(env::var(OUTPUT)?, &outcome.files["model.safetensors"])?;
    Ok(())
}

/// Candle splits its matrix products by the number of threads in the environment.
#[test]
fn the_number_of_threads_of_the_process_changes_nothing() -> Result {
    let directory = tempfile::tempdir()?;
    let run_on = |n_threads: &str| {
        let output = directory.path().join(n_threads);
        let child = Command::new(env::current_exe()?)
            .args(["--exact", "resume::child", "--ignored"])
            .env("RAYON_NUM_THREADS", n_threads)
            .env(OUTPUT, &output)
            .output()?;
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        Ok::<_, Box<dyn std::error::Error>>(fs::read(output)?)
    };
    let alone = run_on("1")?;
    assert!(run_on("2")? == alone, "2 threads");
    assert!(run_on("5")? == alone, "5 threads");
    Ok(())
}
