//! The state of a training run: task, model, optimizer, progress.

use std::sync::Arc;

use candle_core::{DType, Device};
use tealight_model::ParamStore;

use crate::communicator::ranks::Ranks;
use crate::communicator::transport::{ThroughHost, Transport};
use crate::config::{CheckpointConfig, RunConfig, TrainingConfig, memory};
use crate::error::{Error, Result};
use crate::monitor::bad_step::BadStepState;
use crate::monitor::early_stopping::{
    self, Best, BestBy, Direction, EarlyStopping, EarlyStoppingState,
};
use crate::optimizer::Optimizer;
use crate::optimizer::ema::Ema;
use crate::optimizer::fine_tuning;
use crate::run::checkpoint::{Checkpoint, CheckpointState};
use crate::storage::tensors::{self, NamedTensors};
use crate::task::Task;
use crate::trained::{InitReport, TrainedModel};
use crate::training::shards::Shards;
use crate::training::teacher::Teacher;

/// Task, training model, evaluation model on the same weights, optimizer, progress.
#[derive(Debug)]
pub struct Session<T: Task> {
    /// The run's settings.
    pub config: RunConfig,
    /// The task, with its data.
    pub task: Arc<T>,
    /// The parameters, shared by both models.
    pub params: ParamStore,
    /// The training model: its forward pass records the autograd graph.
    pub model: T::Model,
    /// The evaluation model, on the same parameters without gradients.
    pub eval_model: T::Model,
    /// The optimizer, with its state.
    pub optimizer: Optimizer,
    /// The model that this one imitates (`[teacher]`), once the session has [learned of it](Self::learn_from).
    pub teacher: Option<Teacher<T::Model>>,
    /// The moving average of the weights (`training.ema_decay`).
    pub ema: Option<Ema>,
    /// Steps made, best evaluation, bad steps.
    pub progress: Progress,
    /// The processes that train together; this one alone unless the session has [joined](Self::join) others.
    pub ranks: Ranks,
    /// How tensors travel between them.
    pub transport: Arc<dyn Transport>,
    /// Which parameters this process updates.
    pub(crate) shards: Shards,
}

/// The part of a checkpoint that is neither parameters nor optimizer state.
#[derive(Debug)]
pub struct Progress {
    /// Steps made, skipped ones included.
    pub step: u64,
    /// The best evaluation, and the number of evaluations since.
    pub early_stopping: EarlyStopping,
    /// The best evaluation by `checkpoint.metric`.
    pub best: Option<BestBy>,
    /// Skipped steps and roll-backs.
    pub bad_step: BadStepState,
}

impl<T: Task> Session<T> {
    /// Builds a session at step 0. Nothing is written.
    ///
    /// # Errors
    /// If a setting is invalid, or the parameters exceed memory; the error names the keys.
    pub fn new(config: &RunConfig, task: T, device: &Device) -> Result<Self> {
        config.validate()?;
        memory::check_parameters(&config.model, |model| task.estimate(model).parameters)?;
        let TrainingConfig { precision, frozen, layer_lr_decay, ema_decay, .. } = &config.training;
        let params = ParamStore::new(config.seed, DType::F32, device)
            .computing_in(precision.computes_in(device))
            .with_frozen(frozen);
        let model = task.build_model(&config.model, &params.trainable())?;
        let eval_model = task.build_model(&config.model, &params.without_gradients())?;
        let parameters = fine_tuning::parameters(&params, frozen, *layer_lr_decay)?;
        let optimizer = config.optimizer.build(parameters)?;
        let ema = ema_decay.map(|decay| Ema::new(decay, params.iter().collect()));
        let early_stopping = early_stopping_from(config, EarlyStoppingState::default())?;
        let bad_step = BadStepState::default();
        let progress = Progress { step: 0, early_stopping, best: None, bad_step };
        let config = config.clone();
        let (task, ema) = (Arc::new(task), ema.transpose()?);
        let (ranks, shards) = (Ranks::alone(), Shards::Whole);
        let transport = Arc::new(ThroughHost::new(ranks.clone()));
        Ok(Self {
            config,
            task,
            params,
            model,
            eval_model,
            optimizer,
            teacher: None,
            ema,
            progress,
            ranks,
            transport,
            shards,
        })
    }

    /// Copies the parameters of a trained model that have the same names (`init_from`).
    pub fn begin_with(&mut self, model: &TrainedModel) -> Result<InitReport> {
        let initialised =
            model.initialise(&self.params, self.task.row_meanings(&self.config.model))?;
        self.params.refresh()?;
        if let Some(decay) = self.config.training.ema_decay {
            self.ema = Some(Ema::new(decay, self.params.iter().collect())?);
        }
        Ok(initialised)
    }

    /// Restores a checkpoint: the run continues bit for bit as if it had not stopped.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let (seed, other) = (self.config.seed, checkpoint.state.seed);
        if seed != other {
            let message =
                format!("`seed` = {seed}, but the checkpoint is of a run with `seed` = {other}");
            return Err(Error::config(["seed"], message));
        }
        self.load_weights(&checkpoint.model)?;
        self.optimizer.load_state(&checkpoint.optimizer)?;
        if let Some(ema) = &mut self.ema {
            // Without averages in the checkpoint, the error names the first one that is missing.
            ema.load_state(checkpoint.ema.as_ref().unwrap_or(&NamedTensors::new()))?;
        }
        let CheckpointState { step, early_stopping, best, bad_step, .. } = checkpoint.state.clone();
        let early_stopping = early_stopping_from(&self.config, early_stopping)?;
        self.progress = Progress { step, early_stopping, best, bad_step };
        Ok(())
    }

    /// [`Self::restore`] on all ranks, of the checkpoint that `load` finds on rank 0; whether there is one.
    ///
    /// # Errors
    /// On all ranks, if `load` fails on rank 0.
    pub fn restore_on_all(
        &mut self,
        load: impl FnOnce() -> Result<Option<Checkpoint>>,
    ) -> Result<Option<Checkpoint>> {
        if self.ranks.is_alone() {
            let loaded = load()?;
            loaded.iter().try_for_each(|checkpoint| self.restore(checkpoint))?;
            return Ok(loaded);
        }
        let mut loaded = None;
        let found = self.ranks.on_first(|| {
            loaded = load()?;
            loaded.as_ref().map(Checkpoint::outline).transpose()
        })?;
        let Some(outline) = found else { return Ok(None) };
        let checkpoint = outline.spread(loaded.as_ref(), &self.ranks, self.params.device())?;
        let restored = self.restore(&checkpoint);
        self.ranks.agree(restored)?;
        Ok(Some(checkpoint))
    }

    /// The state to save: parameters, optimizer state, averages, progress. All ranks call it; where
    /// `distributed.shard_optimizer` divides the optimizer's state, only rank 0 gets all of it.
    ///
    /// # Errors
    /// If communication fails.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        Ok(Checkpoint {
            model: self.params.tensors(),
            optimizer: self.shards.optimizer_state(&self.optimizer)?,
            ema: self.ema.as_ref().map(Ema::state),
            state: CheckpointState {
                step: self.progress.step,
                seed: self.config.seed,
                early_stopping: self.progress.early_stopping.state.clone(),
                best: self.progress.best.clone(),
                bad_step: self.progress.bad_step.clone(),
            },
        })
    }

    /// Training examples of one step.
    pub fn examples_per_step(&self) -> u64 {
        let TrainingConfig { batch_size, micro_batches, .. } = self.config.training;
        batch_size as u64 * micro_batches
    }

    /// Overwrites the parameters of both models.
    pub fn load_weights(&self, weights: &NamedTensors) -> Result<()> {
        let variables: Vec<_> = self.params.iter().collect();
        let targets = variables.iter().map(|(name, variable)| (name.as_str(), variable));
        tensors::assign("model", targets, weights)?;
        Ok(self.params.refresh()?)
    }
}

impl Progress {
    /// The step of the best checkpoint, as `checkpoint` chooses it.
    pub(crate) fn best_step(&self, checkpoint: &CheckpointConfig) -> Option<u64> {
        let best = match &checkpoint.metric {
            None => self.early_stopping.state.best,
            Some(metric) => {
                let of_metric = self.best.as_ref().filter(|best| best.metric == *metric);
                of_metric.map(|best| best.best)
            }
        };
        best.map(|best| best.step)
    }

    /// Records the value of `metric` at this step; whether it is the best so far.
    pub(crate) fn observe(&mut self, metric: &str, direction: Direction, value: f64) -> bool {
        let best = self.best.as_ref().filter(|best| best.metric == metric);
        let is_best = direction.beats(value, best.map(|best| best.best.value), 0.);
        if is_best {
            let best = Best { step: self.step, value };
            self.best = Some(BestBy { metric: metric.to_owned(), best });
        }
        is_best
    }
}

/// Early stopping as configured, continued from `state`. Without `[training.early_stopping]` it only tracks the best
/// evaluation and never stops the run.
fn early_stopping_from(config: &RunConfig, state: EarlyStoppingState) -> Result<EarlyStopping> {
    let forever = || early_stopping::Config { patience: u64::MAX, ..Default::default() };
    EarlyStopping::new(&config.training.early_stopping.clone().unwrap_or_else(forever), state)
}
