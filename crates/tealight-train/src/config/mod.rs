//! The configuration of a run: one TOML file.
//!
//! ```text
//! text ─► toml ─► --set overrides ─► RunConfig (unknown keys refused) ─► build (sizes from data)
//! ```
//!
//! There are no includes, inheritance or environment variables: the file describes the whole run. The resolved
//! file, with defaults and overrides written out, is saved with the run.

mod compare;
mod init_from;
pub(crate) mod limits;
pub mod memory;
mod notes;
pub mod reference;
pub mod schema;

use std::path::{PathBuf, absolute};

use candle_core::{DType, Device};
use serde::{Deserialize, Serialize};
use tealight_model::describe::{Described, Field, Shape};
use tealight_model::stack::StackSpec;
use tealight_model::{Activations, ModelConfig, names};
use tealight_ops::ProductPrecision;

pub use compare::Difference;
pub(crate) use compare::flat;
pub use init_from::InitFrom;
pub(crate) use init_from::is_in;

pub use crate::settings::{ConfigError, ConfigSource, DroppedKey, to_resolved_toml};

use crate::checks::{check, positive};
use crate::communicator::transport::TransportKind;
use crate::communicator::wire::Wire;
use crate::error::{Error, Result};
use crate::monitor::bad_step::{BadStep, LossSpike};
use crate::monitor::early_stopping::{self, Direction};
use crate::optimizer::schedule::ScheduleConfig;
use crate::optimizer::{OptimizerConfig, ema, fine_tuning};
use crate::settings::settings;
use crate::storage::hub::HubCache;
use crate::task::TaskConfig;
use crate::task::context::TaskContext;
use crate::task::imitation::TeacherConfig;
use crate::task::settings::absolute_path;

/// Generates the struct of the whole file, and what each key means. A key with `#[serde(default)]` may be left out.
macro_rules! whole_file {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[doc = $doc:literal])* $(#[serde($($serde:tt)+)])? pub $key:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[doc = $doc])* $(#[serde($($serde)+)])? pub $key: $type,)*
        }

        impl Described for $name {
            fn shape() -> Shape {
                Shape::Table(vec![
                    $(whole_file!(
                        @field stringify!($key), concat!($($doc, "\n"),*), $type $(, $($serde)+)?
                    ),)*
                ])
            }
        }
    };

    (@field $key:expr, $doc:expr, $type:ty) => {
        Field::required::<$type>($key, $doc)
    };
    (@field $key:expr, $doc:expr, $type:ty, $($serde:tt)+) => {
        Field::optional::<$type>($key, $doc, &<$type>::default())
    };
}

whole_file! {
    /// The whole file.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct RunConfig {
        /// Seed of all random numbers.
        #[serde(default)]
        pub seed: u64,
        /// A run, a checkpoint, or an exported or Hugging Face folder whose parameters the model starts from; random
        /// when absent. Settings of `[model]` and `[task]` that the file leaves out are taken from there. Those that it
        /// has must be the same, unless the table `{ path, allow }` names them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub init_from: Option<InitFrom>,
        /// `[model]`: the transformer.
        #[serde(default)]
        pub model: ModelConfig,
        /// `[task]`: data, inputs and targets.
        pub task: TaskConfig,
        /// `[teacher]`: a trained model whose outputs this one learns to give. Settings of `[task]` that the file leaves
        /// out, such as the tokenizer, are taken from there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub teacher: Option<TeacherConfig>,
        /// `[optimizer]`: the update rule.
        #[serde(default)]
        pub optimizer: OptimizerConfig,
        /// `[schedule]`: the learning rate over the run.
        #[serde(default)]
        pub schedule: ScheduleConfig,
        /// `[training]`: steps, batches, precision, evaluation.
        #[serde(default)]
        pub training: TrainingConfig,
        /// `[checkpoint]`: when checkpoints are saved and which are kept.
        #[serde(default)]
        pub checkpoint: CheckpointConfig,
        /// `[distributed]`: how several processes that train one model communicate.
        #[serde(default, skip_serializing_if = "DistributedConfig::is_default")]
        pub distributed: DistributedConfig,
        /// `[log]`: training metrics.
        #[serde(default)]
        pub log: LogConfig,
    }
}

settings! {
    /// `[training]`
    pub struct TrainingConfig {
        /// Number of steps; each is one update, unless it is skipped.
        pub steps: u64 = 1000,
        /// Examples in one forward and backward pass.
        pub batch_size: usize = 64,
        /// Forward and backward passes whose gradients are summed into one update, counted over all processes. A loss that
        /// compares the rows of a step, as in `embed`, compares those of all of them.
        pub micro_batches: u64 = 1,
        /// Gradients whose global norm exceeds this are scaled down to it; no clipping when absent.
        pub max_grad_norm: Option<f64> = None,
        /// Evaluate and keep a moving average of the weights with this decay; none when absent.
        pub ema_decay: Option<f64> = None,
        /// Multiplies the learning rate from one layer to the one below it, above 0 and at most 1; all
        /// learn at the same rate when absent.
        pub layer_lr_decay: Option<f64> = None,
        /// Parameters that are not updated, as names in which `*` matches anything.
        pub frozen: Vec<String> = Vec::new(),
        /// Recompute the activations inside a block for its backward pass instead of keeping them: the same numbers
        /// with less memory, for the time of one more forward pass. On CPUs and NVIDIA GPUs.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub activation_checkpointing: bool = false,
        /// Number format of computation. `bf16` is faster on a GPU, and on a CPU with instructions for it.
        #[serde(skip_serializing_if = "Precision::is_f32")]
        pub precision: Precision = Precision::F32,
        /// Capture forward and backward over batches of one shape as a CUDA graph and replay it, instead of launching
        /// each kernel every step. It helps where the model is small. Elsewhere than on an NVIDIA GPU, and with
        /// several micro-batches, passes stay eager, and the run says so.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub cuda_graphs: bool = false,
        /// Evaluate on the validation split every this many updates, and at the end.
        pub evaluate_every: u64 = 100,
        /// Whether the model is also evaluated before the first step: what it can do already.
        pub evaluate_first: bool = false,
        /// Data that nothing in training reads, neither the updates nor the choice of a checkpoint: the chosen checkpoint
        /// is scored on them as well, at the end and by `tealight evaluate`.
        pub test_data: Option<PathBuf> = None,
        /// Parameters that may have no gradient, as names in which `*` matches anything. By default the key bias: under
        /// softmax it adds the same to all scores of a row, and its gradient is rounding error.
        pub gradient_audit_exceptions: Vec<String> = vec!["*.key.bias".to_owned()],
        /// What happens to a step whose loss or gradient is not finite, or whose loss spikes.
        pub bad_step: BadStep = BadStep::default(),
        /// `[training.loss_spike]`; when absent, only a loss or gradient that is not finite makes a step bad.
        pub loss_spike: Option<LossSpike> = None,
        /// `[training.early_stopping]`; when absent, the run continues to its last step.
        pub early_stopping: Option<early_stopping::Config> = None,
    }
}

names! {
    /// Number format of computation.
    pub enum Precision {
        /// Everything in f32.
        "f32" => F32,
        /// On an NVIDIA GPU, matrix products read f32 rounded to 10 bits of mantissa; everything else is f32. On a CPU
        /// the same as `f32`.
        "tf32" => Tf32,
        /// On a GPU, activations, gradients and copies of the parameters in bf16; parameters, moments and sums in f32.
        /// On a CPU with instructions for it, large matrix products read f32 rounded to bf16; everything else is f32.
        "bf16" => Bf16,
    }
}

impl Precision {
    /// The dtype of activations on `device`.
    pub fn computes_in(self, device: &Device) -> DType {
        if self == Self::Bf16 && device.is_cuda() { DType::BF16 } else { DType::F32 }
    }

    /// The precision of matrix products whose operands are f32.
    pub fn of_products(self) -> ProductPrecision {
        match self {
            Self::F32 => ProductPrecision::F32,
            Self::Tf32 => ProductPrecision::Tf32,
            Self::Bf16 => ProductPrecision::Bf16,
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
    fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

impl TrainingConfig {
    /// Whether the activations inside blocks are kept or recomputed.
    pub fn activations(&self) -> Activations {
        if self.activation_checkpointing { Activations::Recomputed } else { Activations::Kept }
    }
}

settings! {
    /// `[checkpoint]`
    pub struct CheckpointConfig {
        /// Save every this many updates, and at the end.
        pub every: u64 = 500,
        /// How many of the newest checkpoints are kept, besides the best.
        pub keep_last: usize = 2,
        /// Which checkpoint is evaluated at the end, and the default of other commands.
        pub select: Select = Select::Latest,
        /// The metric of evaluations by which a checkpoint is the best; that of early stopping when absent, `loss`
        /// without early stopping.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub metric: Option<String> = None,
        /// Whether lower (`min`) or higher (`max`) values of it are better; its name decides when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub direction: Option<Direction> = None,
    }
}

impl CheckpointConfig {
    /// The metric of the best checkpoint and its direction, if it has one of its own.
    ///
    /// # Errors
    /// If the direction is not known, or is that of no metric.
    pub(crate) fn best_by(&self) -> Result<Option<(&str, Direction)>> {
        match (&self.metric, self.direction) {
            (None, None) => Ok(None),
            (Some(metric), direction) => {
                Ok(Some((metric, Direction::named("checkpoint", metric, direction)?)))
            }
            (None, Some(_)) => {
                let message =
                    "`checkpoint.direction` is that of `checkpoint.metric`, which is missing";
                Err(Error::config(["checkpoint.direction", "checkpoint.metric"], message))
            }
        }
    }
}

names! {
    /// Which checkpoint is used when none is named.
    pub enum Select {
        /// The newest.
        "latest" => Latest,
        /// The one with the best evaluation, until then the newest; noisy if there are few validation examples.
        "best" => Best,
    }
}

settings! {
    /// `[distributed]`: how the processes of an MPI job communicate. None of these settings but `compress` changes a
    /// number, and in a single process none has an effect.
    pub struct DistributedConfig {
        /// Send gradients while the rest of the backward pass still runs.
        pub overlap: bool = true,
        /// Gradients travel in buckets of at least this many megabytes.
        pub bucket_mb: f64 = 4.,
        /// Each process keeps the optimizer's state of a part of the parameters, updates these, and sends them to the
        /// others: less memory (ZeRO stage 1, Rajbhandari et al. 2020).
        pub shard_optimizer: bool = false,
        /// How gradients travel.
        pub transport: TransportKind = TransportKind::Host,
        /// The format in which gradients travel.
        pub compress: Wire = Wire::F32,
    }
}

impl DistributedConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The elements of a bucket.
    pub(crate) fn bucket_len(&self) -> usize {
        (self.bucket_mb * 1e6 / size_of::<f32>() as f64) as usize
    }
}

settings! {
    /// `[log]`
    pub struct LogConfig {
        /// Write a line of training metrics every this many updates.
        pub every: u64 = 10,
        /// Also write TensorBoard files: the same numbers, and attention maps at evaluations
        /// (`tensorboard --logdir runs`).
        pub tensorboard: bool = false,
    }
}

impl RunConfig {
    /// The configuration in `source`. The error about a key that stands at a wrong place names its place.
    pub fn from_source(source: &ConfigSource) -> Result<Self, ConfigError> {
        source.deserialize_with(|key| reference::similar_keys(key).into_iter().next())
    }

    /// Patterns of the names of parameters whose gradient may be missing or zero: those of
    /// `training.gradient_audit_exceptions`, those that the loss of the task does not depend on and, where the loss does not depend on all outputs of the last layer, those of
    /// its attention that act on no other.
    pub fn gradient_audit_exceptions(&self) -> Vec<String> {
        let mut exceptions = self.training.gradient_audit_exceptions.clone();
        exceptions.extend(self.task.settings().idle_parameters().iter().map(ToString::to_string));
        let stack = StackSpec::single(&self.model, 0);
        if let Some(last) = stack.n_layers.checked_sub(1)
            && let Some(outputs) = self.task.settings().outputs()
        {
            let idle = stack.attention_of(last).0.idle(outputs).iter();
            exceptions.extend(idle.map(|name| format!("layer.{last}.attention.{name}")));
        }
        exceptions
    }

    /// Why passes cannot be a CUDA graph; `None` if they can.
    pub(crate) fn no_cuda_graph(&self) -> Option<&'static str> {
        if self.training.micro_batches > 1 {
            return Some(
                "`training.micro_batches` is above 1, and a replay overwrites the gradients of the one before",
            );
        }
        let rule = "the items that are compared with those of `[teacher]` differ in number from batch to batch";
        self.teacher.as_ref().map(|_| rule)
    }

    /// Whether the forward and backward pass may become a CUDA graph.
    pub(crate) fn uses_cuda_graph(&self) -> bool {
        self.training.cuda_graphs && self.no_cuda_graph().is_none()
    }

    /// Makes paths absolute, so that a run can be resumed from another directory.
    pub fn absolute_paths(&mut self) -> Result<()> {
        let of_init = self.init_from.as_mut().map(|init_from| &mut init_from.path);
        let of_teacher = self.teacher.as_mut().map(|teacher| &mut teacher.model);
        for path in of_init.into_iter().chain(of_teacher) {
            if path.as_os_str().is_empty() {
                continue;
            }
            // A run outlives the model that it began with, which need not be there.
            if let Ok(found) = HubCache::of_environment().locate(path) {
                *path = found;
            }
            *path = absolute(&*path).map_err(Error::io("find", path))?;
        }
        self.training.test_data.as_mut().map_or(Ok(()), absolute_path)?;
        self.task.absolute_paths()
    }

    /// The part of the configuration that a task is built from. The caller adds the directory of an existing run,
    /// and the progress callback.
    pub fn task_context<'a>(&'a self, device: &'a Device) -> TaskContext<'a> {
        let Self { seed, model, training, .. } = self;
        let fixed_shapes = self.uses_cuda_graph() && device.is_cuda();
        let micro_batches = training.micro_batches;
        let context = TaskContext::new(*seed, training.batch_size, model, device);
        TaskContext { micro_batches, fixed_shapes, ..context }
    }

    /// Checks all settings that do not depend on data.
    pub fn validate(&self) -> Result<()> {
        let TrainingConfig { steps, batch_size, micro_batches, evaluate_every, .. } = self.training;
        let counts = [
            ("training.steps", steps),
            ("training.batch_size", batch_size as u64),
            ("training.micro_batches", micro_batches),
            ("training.evaluate_every", evaluate_every),
            ("checkpoint.every", self.checkpoint.every),
            ("checkpoint.keep_last", self.checkpoint.keep_last as u64),
            ("log.every", self.log.every),
        ];
        counts.into_iter().try_for_each(|(key, count)| positive(key, count))?;
        if let Some(norm) = self.training.max_grad_norm {
            let rule = "must be positive; leave it out for no clipping";
            check("training.max_grad_norm", norm, |norm| norm.is_finite() && norm > 0., rule)?;
        }
        self.training.ema_decay.map_or(Ok(()), ema::validate)?;
        self.training.layer_lr_decay.map_or(Ok(()), fine_tuning::validate)?;
        self.training.early_stopping.as_ref().map_or(Ok(()), early_stopping::Config::validate)?;
        self.checkpoint.best_by()?;
        self.training.bad_step.validate()?;
        self.training.loss_spike.as_ref().map_or(Ok(()), LossSpike::validate)?;
        let rule = "must be above 0 and at most 1000";
        let in_range = |mb: f64| mb > 0. && mb <= 1000.;
        check("distributed.bucket_mb", self.distributed.bucket_mb, in_range, rule)?;
        self.teacher.as_ref().map_or(Ok(()), |teacher| teacher.validate(&self.task))?;
        limits::check(self)?;
        self.model.validate()?;
        self.optimizer.settings().validate()?;
        self.schedule.validate(steps)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::task::seq2seq;
    use crate::task::weather::{self, SourceConfig};

    /// A small run with `--set` overrides.
    pub(crate) fn config(overrides: &[&str]) -> RunConfig {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let text = "task = 'weather'\nmodel.d_model = 8\noptimizer = 'adamw'";
        ConfigSource::parse(Path::new("a"), text, &overrides).unwrap().deserialize().unwrap()
    }

    #[test]
    fn settings_that_a_session_would_refuse_are_refused_before_data_are_drawn() {
        for (typed, key) in [
            ("training.ema_decay=1.5", "training.ema_decay"),
            ("training.layer_lr_decay=0", "training.layer_lr_decay"),
            ("training.early_stopping.patience=0", "training.early_stopping.patience"),
            ("training.early_stopping.min_delta=-1", "training.early_stopping.min_delta"),
            ("training.early_stopping.metric=glow", "training.early_stopping.direction"),
            ("checkpoint.metric=glow", "checkpoint.direction"),
            ("checkpoint.direction=max", "checkpoint.direction"),
        ] {
            let error = config(&[typed]).validate().unwrap_err();
            let Error::Config(fault) = &error else { panic!("{error}") };
            assert_eq!(fault.keys[0], key);
        }
        config(&["training.ema_decay=0.5"]).validate().unwrap();
    }

    #[test]
    fn a_relative_path_becomes_absolute_and_a_missing_one_stays_missing() {
        let path = |task: &str, typed: &str| {
            let task = format!("task.kind={task}");
            let mut config = config(&[&task, "task.source.kind=file", typed]);
            config.absolute_paths().unwrap();
            match config.task {
                TaskConfig::Weather(weather::Config {
                    source: SourceConfig::File(file), ..
                }) => file.path,
                TaskConfig::Seq2Seq(seq2seq::Config {
                    source: seq2seq::SourceConfig::File(file),
                    ..
                }) => file.path,
                other => panic!("{other:?} has no file"),
            }
        };
        let here = std::env::current_dir().unwrap();
        for task in ["weather", "seq2seq"] {
            assert_eq!(path(task, "task.source.path=a/days.txt"), here.join("a/days.txt"));
            assert_eq!(path(task, "task.source.path=''"), Path::new(""));
        }
    }
}
