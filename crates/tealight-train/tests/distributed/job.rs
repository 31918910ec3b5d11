//! A run by ranks that are threads, in which something may go wrong on one of them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use candle_core::{Tensor, Var};
use candle_nn::VarBuilder;
use tealight_model::{Mode, ModelConfig};
use tealight_ops::activation::silu;
use tealight_ops::testing::device;
use tealight_ops::threads;
use tealight_train::communicator::Communicator;
use tealight_train::communicator::ranks::Ranks;
use tealight_train::communicator::threads::{ThreadRank, ranks};
use tealight_train::observer::Observer;
use tealight_train::observer::jsonl::{JsonLines, cut_after};
use tealight_train::run::Checkpoints;
use tealight_train::task::{Evaluated, Inputs, JointLoss, Loss, Split, Task};
use tealight_train::training::distributed::join::Identity;
use tealight_train::{Error, Metrics, RunConfig, Session, fit_unless_stopped};

use crate::any_task::{ForAnyTask, with_task};
use crate::common::Result;
use crate::outcome::Outcome;

/// What goes wrong with a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Unreadable,
    Panic,
    /// Its loss is NaN, once.
    Nan,
    /// Its loss is NaN, also when the pass runs again.
    StaysNan,
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
            Some((Fault::StaysNan, _)) => true,
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
        if !is_nan {
            return Ok(loss);
        }
        Ok(Loss { sum: silu(&(loss.sum * f64::NAN)?)?, ..loss })
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

    fn joint_loss(&self) -> Option<&dyn JointLoss<T::Model, Self::Batch>> {
        self.task.joint_loss().is_some().then_some(self)
    }

    fn measure(&self, model: &T::Model) -> tealight_train::Result<Metrics> {
        self.task.measure(model)
    }
}

impl<T: Task> JointLoss<T::Model, (T::Batch, bool)> for Faulty<T> {
    fn vectors(
        &self,
        model: &T::Model,
        (batch, _): &(T::Batch, bool),
        mode: Mode,
    ) -> tealight_train::Result<Tensor> {
        self.joint().vectors(model, batch, mode)
    }

    fn loss(&self, batches: Range<u64>, vectors: &[Tensor]) -> tealight_train::Result<Loss> {
        self.joint().loss(batches, vectors)
    }
}

impl<T: Task> Faulty<T> {
    fn joint(&self) -> &dyn JointLoss<T::Model, T::Batch> {
        self.task.joint_loss().expect("a loss over all rows of a step")
    }
}

/// The step at which a rank ends, or its error.
pub(crate) type Answer = std::result::Result<u64, String>;

/// Parameters by name.
pub(crate) type Parameters = Vec<(String, Var)>;

/// Ranks that resume the run in a directory together.
pub(crate) struct Job<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) last_step: u64,
    /// By rank.
    pub(crate) configs: Vec<RunConfig>,
    /// By rank.
    pub(crate) identities: Vec<Identity>,
    /// What goes wrong with the training batch of this number.
    pub(crate) fault: Option<(Fault, u64)>,
    /// Whether a rank is asked to stop, before each step.
    pub(crate) is_stopped: &'a (dyn Fn(usize) -> bool + Sync),
    /// Further observers of a rank.
    pub(crate) observers: &'a (dyn Fn(usize, Parameters) -> Vec<Box<dyn Observer>> + Sync),
    /// What a rank communicates by.
    pub(crate) communicator: &'a (dyn Fn(ThreadRank) -> Arc<dyn Communicator> + Sync),
}

impl<'a> Job<'a> {
    /// `n` ranks with the same settings, among which nothing goes wrong.
    pub(crate) fn new(config: &RunConfig, n: usize, last_step: u64, directory: &'a Path) -> Self {
        Self {
            directory,
            last_step,
            configs: vec![config.clone(); n],
            identities: vec![Identity::default(); n],
            fault: None,
            is_stopped: &|_| false,
            observers: &|_, _| Vec::new(),
            communicator: &|rank| Arc::new(rank),
        }
    }

    /// The answer of each rank.
    pub(crate) fn run(&self) -> Vec<Answer> {
        thread::scope(|scope| {
            let start = |rank| scope.spawn(move || self.train(rank));
            let started: Vec<_> = ranks(self.configs.len()).into_iter().map(start).collect();
            started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    fn train(&self, rank: ThreadRank) -> Answer {
        let config = &self.configs[rank.rank()];
        let train = || {
            let ranks = &Ranks::new((self.communicator)(rank), "host")?;
            with_task(config, &Resume { job: self, ranks })
        };
        threads::with(1, train).map_err(|error| error.to_string())
    }
}

/// One rank of a job.
struct Resume<'a> {
    job: &'a Job<'a>,
    ranks: &'a Ranks,
}

impl ForAnyTask for Resume<'_> {
    type Answer = u64;

    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result<u64> {
        let Self { job, ranks } = self;
        let rank = ranks.rank();
        let task = Faulty { task, fault: job.fault, has_happened: AtomicBool::new(false) };
        let checkpoints = Checkpoints::new(job.directory.join("checkpoints"));
        let metrics = job.directory.join("metrics.jsonl");
        let mut session = Session::new(config, task, device())?;
        session.join((*ranks).clone(), &job.identities[rank])?;
        session.restore_on_all(|| Ok(checkpoints.load_newest(device())?.checkpoint))?;
        let mut observers = (job.observers)(rank, session.params.iter().collect());
        if ranks.is_first() {
            cut_after(&metrics, session.progress.step, session.progress.bad_step.n_roll_backs)?;
            observers.push(Box::new(JsonLines::append(&metrics)?));
        }
        let kept = ranks.is_first().then_some(&checkpoints);
        let is_stopped = || (job.is_stopped)(rank);
        fit_unless_stopped(&mut session, job.last_step, &is_stopped, kept, &mut observers)?;
        Ok(session.progress.step)
    }
}

/// Runs to each step of `stops` in turn, each time with another number of ranks.
pub(crate) fn run(config: &RunConfig, stops: &[(usize, u64)]) -> Result<Outcome> {
    let directory = tempfile::tempdir()?;
    resume(config, stops, directory.path())
}

/// As [`run`], from the newest checkpoint in `directory` on.
pub(crate) fn resume(
    config: &RunConfig,
    stops: &[(usize, u64)],
    directory: &Path,
) -> Result<Outcome> {
    let mut step = 0;
    for &(n, stop) in stops {
        let answers = Job::new(config, n, stop, directory).run().into_iter();
        let steps = answers.collect::<std::result::Result<Vec<_>, _>>()?;
        step = steps[0];
        assert!(steps.iter().all(|other| *other == step));
    }
    Outcome::read(directory, step)
}
