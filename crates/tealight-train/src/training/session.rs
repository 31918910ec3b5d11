//! What a run trains, built and checked before anything is written.

use std::sync::Arc;

use candle_core::{DType, Device};
use tealight_model::{Activations, Mode, ParamStore};

use crate::config::limits;
use crate::config::{Precision, RunConfig};
use crate::error::{Error, Result};
use crate::monitor::bad_step::BadStepState;
use crate::monitor::early_stopping::{self, EarlyStopping, EarlyStoppingState};
use crate::monitor::gradient_audit::audit;
use crate::optimizer::Optimizer;
use crate::optimizer::ema::Ema;
use crate::optimizer::fine_tuning;
use crate::pretrained::{InitReport, Pretrained};
use crate::run::checkpoint::{Checkpoint, CheckpointState};
use crate::storage::tensors::{self, NamedTensors};
use crate::task::{Split, Task};
use crate::training::forward_backward::MicroBatch;

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
    pub guard: BadStepState,
}

impl<T: Task> Session<T> {
    /// Builds everything at step 0, or says which setting is in the way.
    pub fn new(config: &RunConfig, task: T, device: &Device) -> Result<Self> {
        config.validate()?;
        limits::check_parameters(&config.model, |model| task.estimate(model).parameters)?;
        let precision = config.training.precision;
        tealight_ops::allow_tf32(precision == Precision::Tf32);
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
        let early_stopping = watch(config, EarlyStoppingState::default())?;
        let progress = Progress { step: 0, early_stopping, guard: BadStepState::default() };
        let config = config.clone();
        let (task, ema) = (Arc::new(task), ema.transpose()?);
        Ok(Self { config, task, params, model, twin, optimizer, ema, progress })
    }

    /// Checks what would end a run only after it has begun: that every parameter has a gradient, and
    /// that early stopping watches something that is measured.
    pub fn check(&self) -> Result<()> {
        let MicroBatch { gradients, .. } = self.first_micro_batch()?;
        audit(&gradients, &self.config.training.gradient_audit_exceptions)?;
        self.check_metric()
    }

    /// Checks that the system would promise the memory for a batch.
    pub fn check_memory(&self) -> Result<()> {
        let Self { config, task, .. } = self;
        if self.params.device().is_cpu() {
            limits::check_memory(config, &task.estimate(&config.model), task.seq_len())?;
        }
        Ok(())
    }

    /// Checks that early stopping watches something that is measured.
    pub fn check_metric(&self) -> Result<()> {
        let Self { config, task, twin, .. } = self;
        let Some(stopping) = &config.training.early_stopping else { return Ok(()) };
        let loss = task.loss(twin, &task.batch(Split::Validation, 0)?, Mode::Eval)?;
        let mut metrics = loss.measures().read()?;
        if metrics.mean(&stopping.metric).is_some() {
            return Ok(());
        }
        metrics.merge(&task.measure(twin)?);
        let metrics = metrics.means();
        if metrics.contains_key(&stopping.metric) {
            return Ok(());
        }
        Err(early_stopping::unknown_metric(&stopping.metric, &metrics))
    }

    /// Begins with the parameters of a trained model, wherever they have the same names.
    pub fn begin_with(&mut self, model: &Pretrained) -> Result<InitReport> {
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
        let CheckpointState { step, early_stopping, bad_step: guard, .. } =
            checkpoint.state.clone();
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
            state: CheckpointState {
                step: self.progress.step,
                seed: self.config.seed,
                early_stopping: self.progress.early_stopping.state().clone(),
                bad_step: self.progress.guard.clone(),
            },
        }
    }

    /// Bytes of memory that training takes, about: parameters, gradients and moments, and what the
    /// backward pass needs of a batch.
    pub fn memory_needed(&self) -> f64 {
        limits::memory(&self.config, &self.task.estimate(&self.config.model), self.of_scalar())
    }

    /// The largest batch, about, whose training needs no more than `bytes` of memory.
    pub fn largest_batch(&self, bytes: f64, activations: Activations) -> usize {
        let mut config = self.config.clone();
        config.training.activation_checkpointing = activations == Activations::Recomputed;
        let estimate = self.task.estimate(&config.model);
        let mut of_batch = |batch_size| {
            config.training.batch_size = batch_size;
            limits::memory(&config, &estimate, self.of_scalar())
        };
        let (of_none, of_one) = (of_batch(0), of_batch(1));
        ((bytes - of_none) / (of_one - of_none)).max(0.) as usize
    }

    /// Bytes of a number that a model computes with.
    fn of_scalar(&self) -> f64 {
        let dtype = self.config.training.precision.computes_in(self.params.device());
        dtype.size_in_bytes() as f64
    }

    /// Bytes of parameters and moments, which are there already.
    pub fn bytes_held(&self) -> u64 {
        bytes(&self.params.tensors()) + bytes(&self.optimizer.state())
    }

    /// Bytes of a checkpoint's tensors.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.bytes_held() + self.ema.as_ref().map_or(0, |ema| bytes(&ema.state()))
    }

    /// Overwrites the parameters, which both models see.
    pub fn load_weights(&self, weights: &NamedTensors) -> Result<()> {
        let variables: Vec<_> = self.params.iter().collect();
        let targets = variables.iter().map(|(name, variable)| (name.as_str(), variable));
        tensors::assign("model", targets, weights)?;
        Ok(self.params.refresh()?)
    }
}

fn bytes(tensors: &NamedTensors) -> u64 {
    tensors.values().map(|x| (x.elem_count() * x.dtype().size_in_bytes()) as u64).sum()
}

/// Without `[training.early_stopping]` the best evaluation is still remembered.
fn watch(config: &RunConfig, state: EarlyStoppingState) -> Result<EarlyStopping> {
    let forever = || early_stopping::Config { patience: u64::MAX, ..Default::default() };
    EarlyStopping::new(&config.training.early_stopping.clone().unwrap_or_else(forever), state)
}
