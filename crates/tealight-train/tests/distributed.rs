//! Several ranks train one model: any number of them gives the bits of one process, and what happens on one rank
//! happens on all. The ranks are threads here; `scripts/cluster_check.sh` repeats the checks with processes of MPI.

#[path = "common/any_task.rs"]
mod any_task;
mod common;
#[path = "common/outcome.rs"]
mod outcome;
#[path = "common/tiny.rs"]
mod tiny;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use any_task::{ForAnyTask, with_task};
use candle_nn::VarBuilder;
use common::Result;
use outcome::Outcome;
use tealight_model::{Mode, ModelConfig};
use tealight_ops::testing::device;
use tealight_ops::threads;
use tealight_train::communicator::ranks::Ranks;
use tealight_train::communicator::threads::ranks;
use tealight_train::observer::Observer;
use tealight_train::observer::jsonl::{JsonLines, cut_after};
use tealight_train::run::{Checkpoints, Selection};
use tealight_train::task::{Evaluated, Inputs, Loss, Split, Task};
use tealight_train::training::distributed::join::Identity;
use tealight_train::{Error, Metrics, RunConfig, Session, fit_unless_stopped};
use tiny::tiny;

/// What goes wrong with a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Unreadable,
    Panic,
    /// Its loss is NaN, once.
    Nan,
}

/// A task with a fault in the training batch of this number, which one rank reads.
struct Faulty<T> {
    task: T,
    fault: Option<(Fault, u64)>,
    has_happened: AtomicBool,
}

impl<T: Task> Task for Faulty<T> {
    type Model = T::Model;
    type Batch = (T::Batch, bool);

    fn build_model(
        &self,
        config: &ModelConfig,
        vb: &VarBuilder<'_>,
    ) -> tealight_train::Result<T::Model> {
        self.task.build_model(config, vb)
    }

    fn batch(&self, split: Split, index: u64) -> tealight_train::Result<Self::Batch> {
        let here = self.fault.filter(|(_, at)| split == Split::Train && *at == index);
        let is_nan = match here {
            Some((Fault::Unreadable, _)) => {
                return Err(Error::config(["task.corpus.paths"], "the shard has gone"));
            }
            Some((Fault::Panic, _)) => panic!("the thread has lost its way"),
            Some((Fault::Nan, _)) => !self.has_happened.swap(true, Ordering::Relaxed),
            None => false,
        };
        Ok((self.task.batch(split, index)?, is_nan))
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.task.n_evaluation_batches()
    }

    fn seq_len(&self) -> usize {
        self.task.seq_len()
    }

    fn inputs<'a>(&self, (batch, _): &'a Self::Batch) -> Inputs<'a> {
        self.task.inputs(batch)
    }

    fn loss(
        &self,
        model: &T::Model,
        (batch, is_nan): &Self::Batch,
        mode: Mode,
    ) -> tealight_train::Result<Loss> {
        let loss = self.task.loss(model, batch, mode)?;
        let factor = if *is_nan { f64::NAN } else { 1. };
        Ok(Loss { sum: (loss.sum * factor)?, ..loss })
    }

    fn evaluate_batch(
        &self,
        model: &T::Model,
        (batch, _): &Self::Batch,
    ) -> tealight_train::Result<Evaluated> {
        self.task.evaluate_batch(model, batch)
    }

    fn score(&self, outputs: &[f64]) -> Metrics {
        self.task.score(outputs)
    }
}

/// Resumes in `directory` up to `last_step`, as one of several ranks.
struct GoOn<'a> {
    fault: Option<(Fault, u64)>,
    ranks: &'a Ranks,
    directory: &'a Path,
    last_step: u64,
    identity: Identity,
    /// Asked before each step.
    is_stopped: &'a (dyn Fn(&Ranks) -> bool + Sync),
}

impl ForAnyTask for GoOn<'_> {
    type Answer = u64;

    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result<u64> {
        let Self { fault, ranks, directory, last_step, identity, is_stopped } = self;
        let task = Faulty { task, fault: *fault, has_happened: AtomicBool::new(false) };
        let checkpoints = Checkpoints::new(directory.join("checkpoints"));
        let metrics = directory.join("metrics.jsonl");
        let mut session = Session::new(config, task, device())?;
        session.join((*ranks).clone(), identity)?;
        session.restore_on_all(|| {
            let latest = checkpoints.latest()?;
            latest.map(|step| checkpoints.load(Selection::Step(step), device())).transpose()
        })?;
        let mut observers: Vec<Box<dyn Observer>> = Vec::new();
        if ranks.is_first() {
            cut_after(&metrics, session.progress.step, session.progress.bad_step.n_roll_backs)?;
            observers.push(Box::new(JsonLines::append(&metrics)?));
        }
        let kept = ranks.is_first().then_some(&checkpoints);
        let is_stopped = || is_stopped(ranks);
        fit_unless_stopped(&mut session, *last_step, &is_stopped, kept, &mut observers)?;
        Ok(session.progress.step)
    }
}

/// The step at which a rank ends, or its error.
type Answer = std::result::Result<u64, String>;

/// The answer of each of `n` ranks, without a fault.
fn on_ranks(
    n: usize,
    last_step: u64,
    directory: &Path,
    config: impl Fn(usize) -> RunConfig + Sync,
    is_stopped: &(dyn Fn(&Ranks) -> bool + Sync),
) -> Vec<Answer> {
    with_fault(None, n, last_step, directory, config, is_stopped)
}

/// The answer of each of `n` ranks to `config`, trained up to `last_step`; errors as text.
fn with_fault(
    fault: Option<(Fault, u64)>,
    n: usize,
    last_step: u64,
    directory: &Path,
    config: impl Fn(usize) -> RunConfig + Sync,
    is_stopped: &(dyn Fn(&Ranks) -> bool + Sync),
) -> Vec<Answer> {
    let (config, identity) = (&config, Identity::default());
    thread::scope(|scope| {
        let start = |rank| {
            let identity = identity.clone();
            scope.spawn(move || {
                let ranks =
                    Ranks::new(Arc::new(rank), "host").map_err(|error| error.to_string())?;
                let ranks = &ranks;
                let go_on = GoOn { fault, ranks, directory, last_step, identity, is_stopped };
                let answer = threads::with(1, || with_task(&config(ranks.rank()), &go_on));
                answer.map_err(|error| error.to_string())
            })
        };
        let started: Vec<_> = ranks(n).into_iter().map(start).collect();
        started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Runs to each step of `stops` in turn, each time with another number of ranks.
fn run(config: &RunConfig, stops: &[(usize, u64)]) -> Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let mut step = 0;
    for &(n, stop) in stops {
        let steps = on_ranks(n, stop, directory.path(), |_| config.clone(), &|_| false);
        let steps = steps.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        step = steps[0];
        assert!(steps.iter().all(|other| *other == step));
    }
    Outcome::read(directory.path(), step)
}

const OPTIMIZERS: [&str; 6] = [
    "optimizer.kind=adamw",
    "optimizer.kind=sgd",
    "optimizer.kind=lion",
    "optimizer.kind=muon",
    "optimizer.kind=adafactor",
    "optimizer.kind=lamb",
];

/// Texts whose batches have different numbers of masked tokens.
const MASKED_LM: [&str; 5] = [
    "task={kind='masked_lm',seq_len=16}",
    "task.corpus={kind='diary',n_documents=40}",
    "task.tokenizer={kind='char'}",
    "training.early_stopping.metric=loss",
    "optimizer.kind=adamw",
];

#[test]
fn any_number_of_ranks_computes_the_same_bits() -> Result {
    for optimizer in OPTIMIZERS {
        let settings = [optimizer, "training.micro_batches=8", "training.batch_size=3"];
        let config = tiny(&settings)?;
        let whole = run(&config, &[(1, 12)])?;
        assert_eq!((whole.step, whole.trained("loss").len()), (12, 12));
        for n in [2, 4, 8] {
            let label = format!("{optimizer}, {n} ranks");
            run(&config, &[(n, 12)])?.assert_same(&whole, &label);
            let mut sharded = config.clone();
            sharded.distributed.shard_optimizer = true;
            run(&sharded, &[(n, 12)])?.assert_same(&whole, &format!("{label}, sharded"));
        }
    }
    Ok(())
}

#[test]
fn micro_batches_that_are_no_power_of_two_are_summed_in_one_order() -> Result {
    let config = tiny(&["training.micro_batches=6", "training.batch_size=3"])?;
    let whole = run(&config, &[(1, 12)])?;
    for n in [2, 3, 6] {
        run(&config, &[(n, 12)])?.assert_same(&whole, &format!("{n} ranks"));
    }
    let mut one_bucket = config.clone();
    one_bucket.distributed.bucket_mb = 1000.;
    run(&one_bucket, &[(3, 12)])?.assert_same(&whole, "one bucket");
    one_bucket.distributed.bucket_mb = 1e-6;
    run(&one_bucket, &[(2, 12)])?.assert_same(&whole, "a bucket for each parameter");
    Ok(())
}

#[test]
fn gradients_that_travel_during_the_backward_pass_are_those_after_it() -> Result {
    let kinds = ["model.attention.kind=aft_simple", "model.attention.kind=nystrom"];
    for kind in [&["model.dropout=0.1"][..], &kinds[..1], &kinds[1..]] {
        for checkpointing in ["false", "true"] {
            let checkpointing = format!("training.activation_checkpointing={checkpointing}");
            let buckets = "distributed.bucket_mb=1e-3";
            let config = four(&[kind, &[&checkpointing, buckets]].concat())?;
            let mut after = config.clone();
            after.distributed.overlap = false;
            let whole = run(&config, &[(1, 12)])?;
            run(&after, &[(2, 12)])?.assert_same(&whole, "after the pass");
            run(&config, &[(2, 12)])?.assert_same(&whole, "during the pass");
        }
    }
    Ok(())
}

#[test]
fn frozen_parameters_and_refused_graphs_change_no_bit() -> Result {
    let frozen = "training.frozen=['embedding.*', 'layer.0.*']";
    for change in [frozen, "training.cuda_graphs=true"] {
        for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
            let config = four(&[change, shard])?;
            let whole = run(&config, &[(1, 12)])?;
            run(&config, &[(4, 12)])?.assert_same(&whole, &format!("{change}, {shard}"));
        }
    }
    Ok(())
}

#[test]
fn rounded_gradients_are_the_same_with_a_sharded_optimizer() -> Result {
    let config = |shard: &str| four(&["distributed.compress=bf16", shard]);
    let whole = run(&config("distributed.shard_optimizer=false")?, &[(2, 12)])?;
    run(&config("distributed.shard_optimizer=true")?, &[(2, 12)])?.assert_same(&whole, "sharded");
    Ok(())
}

#[test]
fn uneven_counts_weigh_as_in_one_process() -> Result {
    let mut settings = MASKED_LM.to_vec();
    settings.extend(["training.micro_batches=4", "training.batch_size=2"]);
    let config = tiny(&settings)?;
    let whole = run(&config, &[(1, 12)])?;
    for n in [2, 4] {
        run(&config, &[(n, 12)])?.assert_same(&whole, &format!("{n} ranks"));
    }
    Ok(())
}

/// A correlation or an F1 needs the predictions of all batches, which the ranks divide among them.
#[test]
fn scores_of_all_predictions_are_those_of_one_process() -> Result {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    for (objective, file, settings, metric) in [
        ("regression", "my_ratings.csv", "label='rating'", "spearmanr"),
        ("labels", "my_labels.jsonl", "label='labels'", "micro_f1"),
        ("classes", "my_text_pairs.jsonl", "text_pair='text_pair'", "matthews_correlation"),
    ] {
        // Four texts in a batch of an evaluation.
        let task = format!("task={{kind='classify',objective='{objective}',seq_len=4096}}");
        let path = format!("task.data={{path='{}',{settings}}}", data.join(file).display());
        let config = four(&[
            &task,
            &path,
            "task.tokenizer={kind='byte'}",
            "training.early_stopping.metric=loss",
        ])?;
        let whole = run(&config, &[(1, 12)])?;
        let evaluated = whole.metrics.iter().filter(|line| line.contains_key(metric));
        assert!(evaluated.count() >= 2, "{metric}: {:?}", whole.metrics);
        for (n, stops) in [(2, vec![(2, 12)]), (4, vec![(4, 5), (1, 9), (2, 12)])] {
            run(&config, &stops)?.assert_same(&whole, &format!("{objective}, {n} ranks"));
        }
    }
    Ok(())
}

#[test]
fn a_run_is_resumed_by_any_number_of_ranks() -> Result {
    for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
        let config = tiny(&["training.micro_batches=4", shard])?;
        let whole = run(&config, &[(1, 12)])?;
        run(&config, &[(4, 3), (1, 5), (2, 12)])?.assert_same(&whole, shard);
    }
    Ok(())
}

#[test]
fn gradients_in_bf16_are_repeatable_and_not_those_in_f32() -> Result {
    let settings = ["training.micro_batches=4", "training.steps=4"];
    let exact = run(&tiny(&settings)?, &[(2, 4)])?;
    let rounded = tiny(&[settings[0], settings[1], "distributed.compress=bf16"])?;
    let first = run(&rounded, &[(2, 4)])?;
    run(&rounded, &[(2, 4)])?.assert_same(&first, "again");
    let (exact, rounded) = (exact.trained("loss"), first.trained("loss"));
    assert_eq!(exact[0], rounded[0]);
    assert!(exact[3] != rounded[3] && (exact[3] - rounded[3]).abs() < 1e-2);
    Ok(())
}

#[test]
fn a_stop_that_one_rank_is_asked_for_stops_all_with_a_checkpoint() -> Result {
    let directory = tempfile::tempdir()?;
    let config = tiny(&["training.micro_batches=4"])?;
    let is_stopped = |ranks: &Ranks| ranks.rank() == 2;
    let steps = on_ranks(4, 12, directory.path(), |_| config.clone(), &is_stopped);
    assert_eq!(steps, vec![Ok(1); 4]);
    assert_eq!(Checkpoints::new(directory.path().join("checkpoints")).latest()?, Some(1));
    Ok(())
}

#[test]
fn ranks_that_differ_are_refused_by_name_before_anything_is_written() -> Result {
    let refused = |n, change: &str, expected: &str| -> Result {
        let directory = tempfile::tempdir()?;
        let config = |rank| {
            let changed = if rank == n - 1 { change } else { "seed=17" };
            let settings = ["training.micro_batches=6", "optimizer.kind=adamw", changed];
            tiny(&settings).expect("valid settings")
        };
        for answer in on_ranks(n, 12, directory.path(), config, &|_| false) {
            let message = answer.expect_err("refused");
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(std::fs::read_dir(directory.path())?.count(), 0);
        Ok(())
    };
    refused(
        3,
        "optimizer.lr=0.5",
        "rank 2 on host differs from rank 0 on host: `optimizer.lr` = 0.5, not 0.001",
    )?;
    refused(2, "model.d_model=36", "`model.d_model` = 36, not 33")?;
    refused(4, "seed=17", "cannot be divided among 4; the nearest that can: 4 and 8")
}

/// Batch 4·7 + 2 is that of micro-batch 2 in step 8: of rank 1 of two, of rank 2 of four.
const IN_STEP_8: u64 = 30;

/// A run of 4 micro-batches whose checkpoints are saved after steps 5 and 10.
fn four(overrides: &[&str]) -> Result<RunConfig> {
    tiny(&[&["training.micro_batches=4"], overrides].concat())
}

#[test]
fn an_error_or_a_panic_on_one_rank_ends_all_with_a_checkpoint() -> Result {
    for (fault, expected) in [
        (Fault::Unreadable, "the shard has gone"),
        (Fault::Panic, "step 8: the program failed, which is a bug: the thread has lost its way"),
    ] {
        for (n, rank) in [(2, 1), (4, 2)] {
            let directory = tempfile::tempdir()?;
            let config = four(&[])?;
            let fault = Some((fault, IN_STEP_8));
            let answers =
                with_fault(fault, n, 12, directory.path(), |_| config.clone(), &|_| false);
            for (own, answer) in answers.into_iter().enumerate() {
                let message = answer.expect_err("all ranks end");
                let whose = format!("rank {rank} on host: ");
                assert!(message.contains(expected), "{message}");
                assert_eq!(message.starts_with(&whose), own != rank, "{message}");
            }
            let checkpoints = Checkpoints::new(directory.path().join("checkpoints"));
            assert_eq!(checkpoints.latest()?, Some(7));
            // Resumed by another number of ranks, nothing is lost.
            let go_on = on_ranks(1, 12, directory.path(), |_| config.clone(), &|_| false);
            assert_eq!(go_on, [Ok(12)]);
            let resumed = Outcome::read(directory.path(), 12)?;
            resumed.assert_same(&run(&config, &[(1, 12)])?, &format!("{n} ranks"));
        }
    }
    Ok(())
}

#[test]
fn a_loss_that_is_nan_on_one_rank_is_one_for_all() -> Result {
    let kinds = ["stop", "skip", "roll_back"];
    for kind in kinds.map(|kind| format!("training.bad_step.kind={kind}")) {
        for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
            let config = four(&[&kind, shard])?;
            let outcome = |n| -> Result<(Vec<Answer>, Outcome)> {
                let directory = tempfile::tempdir()?;
                let fault = Some((Fault::Nan, IN_STEP_8));
                let answers =
                    with_fault(fault, n, 12, directory.path(), |_| config.clone(), &|_| false);
                Ok((answers, Outcome::read(directory.path(), 0)?))
            };
            let (alone, expected) = outcome(1)?;
            for n in [2, 4] {
                let (answers, outcome) = outcome(n)?;
                assert!(answers.iter().all(|answer| *answer == alone[0]), "{answers:?}");
                outcome.assert_same(&expected, &format!("{kind}, {shard}, {n} ranks"));
            }
        }
    }
    Ok(())
}
