//! What a run trains, built and checked before anything is written.

use std::sync::Arc;

use candle_core::{DType, Device};
use tealight_model::ParamStore;

use crate::config::RunConfig;
use crate::config::limits;
use crate::error::{Error, Result};
use crate::monitor::bad_step;
use crate::monitor::early_stopping::{self, EarlyStopping};
use crate::optimizer::Optimizer;
use crate::optimizer::ema::Ema;
use crate::optimizer::fine_tuning;
use crate::pretrained::{Initialised, Pretrained};
use crate::run::{Checkpoint, State};
use crate::storage::tensors::{self, NamedTensors};
use crate::task::Task;

/// The task, its model twice over one set of parameters, and what moves with it.
#[derive(Debug)]
pub struct Session<T: Task> {
    /// The run's settings.
    pub config: RunConfig,
    /// What is learned from what.
    pub task: Arc<T>,
    /// The parameters that both models share.
    pub params: ParamStore,
    /// Built from the trainable parameters: its forward pass records a graph.
    pub model: T::Model,
    /// Built from the frozen parameters, for evaluation.
    pub twin: T::Model,
    /// How a gradient becomes an update.
    pub optimizer: Optimizer,
    /// The moving average of the weights, if the run keeps one.
    pub ema: Option<Ema>,
    /// How far the run has come.
    pub progress: Progress,
}

/// How far a run has come: with parameters and optimizer state, all that a checkpoint holds.
#[derive(Debug)]
pub struct Progress {
    /// Updates done.
    pub step: u64,
    /// The best evaluation, and how long ago it was.
    pub early_stopping: EarlyStopping,
    /// Steps that were passed over or gone back from.
    pub guard: bad_step::State,
}

impl<T: Task> Session<T> {
    /// Builds everything at step 0, or says which setting is in the way.
    pub fn new(config: &RunConfig, task: T, device: &Device) -> Result<Self> {
        config.validate()?;
        limits::check_parameters(&config.model, |model| task.estimate(model).parameters)?;
        let precision = config.training.precision;
        let params = ParamStore::new(config.seed, DType::F32, device)
            .computing_in(precision.computes_in(device))
            .freezing(&config.training.frozen);
        let model = task.build(&config.model, &params.trainable())?;
        let twin = task.build(&config.model, &params.frozen())?;
        let parameters = fine_tuning::parameters(
            &params,
            &config.training.frozen,
            config.training.layer_lr_decay,
        )?;
        let optimizer = config.optimizer.build(parameters)?;
        let ema = config.training.ema_decay.map(|decay| Ema::new(decay, params.iter().collect()));
        let early_stopping = watch(config, early_stopping::State::default())?;
        let progress = Progress { step: 0, early_stopping, guard: bad_step::State::default() };
        let config = config.clone();
        let (task, ema) = (Arc::new(task), ema.transpose()?);
        Ok(Self { config, task, params, model, twin, optimizer, ema, progress })
    }

    /// Begins with the parameters of a trained model, wherever they have the same names.
    pub fn begin_with(&mut self, model: &Pretrained) -> Result<Initialised> {
        let initialised = model.initialise(&self.params)?;
        self.params.refresh()?;
        if let Some(decay) = self.config.training.ema_decay {
            self.ema = Some(Ema::new(decay, self.params.iter().collect())?);
        }
        Ok(initialised)
    }

    /// Goes on from a checkpoint, as if the run had never stopped.
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
            // A checkpoint without averages is an error that names the first one missing.
            ema.load_state(checkpoint.ema.as_ref().unwrap_or(&NamedTensors::new()))?;
        }
        let State { step, early_stopping, guard, .. } = checkpoint.state.clone();
        self.progress =
            Progress { step, early_stopping: watch(&self.config, early_stopping)?, guard };
        Ok(())
    }

    /// Everything that the run needs to go on.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            model: self.params.tensors(),
            optimizer: self.optimizer.state(),
            ema: self.ema.as_ref().map(Ema::state),
            state: State {
                step: self.progress.step,
                seed: self.config.seed,
                early_stopping: self.progress.early_stopping.state().clone(),
                guard: self.progress.guard.clone(),
            },
        }
    }

    /// Training examples of one step.
    pub fn examples_per_step(&self) -> u64 {
        self.task.batch_size() as u64 * self.config.training.micro_batches
    }

    /// Overwrites the parameters, which both models see.
    pub fn load_weights(&self, weights: &NamedTensors) -> Result<()> {
        let variables: Vec<_> = self.params.iter().collect();
        let targets = variables.iter().map(|(name, variable)| (name.as_str(), variable));
        tensors::assign("model", targets, weights)?;
        Ok(self.params.refresh()?)
    }
}

/// Without `[training.early_stopping]` the best evaluation is still remembered.
fn watch(config: &RunConfig, state: early_stopping::State) -> Result<EarlyStopping> {
    let forever = || early_stopping::Config { patience: u64::MAX, ..Default::default() };
    EarlyStopping::new(&config.training.early_stopping.clone().unwrap_or_else(forever), state)
}
