//! A task of any kind behind one type, so that commands and the training loop are compiled once and not once for each
//! task.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde_json::Value;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::transformer::Transformer;
use tealight_model::{Mode, ModelConfig, ParamStore};

use crate::data::{DataFile, Split};
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::image_classifier::PictureMaps;
use crate::task::metrics::Metrics;
use crate::task::report::Report;
use crate::task::sample::Sample;
use crate::task::{
    Evaluated, Imitation, Inputs, JointLoss, Loss, Reading, RegisteredTask, RowMeanings, Task,
};

/// A task of the list of [`TaskConfig`](crate::task::TaskConfig), whichever it is.
pub struct AnyTask(Box<dyn Erased>);

/// Its model.
pub struct AnyModel(Box<dyn Any>);

/// Its batch.
pub struct AnyBatch(Box<dyn Any + Send>);

impl AnyTask {
    /// Hides the type of a task.
    pub(super) fn new<T>(task: T) -> Self
    where
        T: RegisteredTask + 'static,
        T::Model: 'static,
        T::Batch: 'static,
    {
        Self(Box::new(task))
    }
}

macro_rules! opaque {
    ($($name:ident),+) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })+
    };
}

opaque!(AnyTask, AnyModel, AnyBatch);

impl AnyModel {
    /// The model of the task `T`.
    fn of<T: Task<Model: 'static>>(&self) -> &T::Model {
        self.0.downcast_ref().expect("invariant: a task gets models that it has built")
    }
}

impl AnyBatch {
    /// The batch of the task `T`.
    fn of<T: Task<Batch: 'static>>(&self) -> &T::Batch {
        self.0.downcast_ref().expect("invariant: a task gets batches that it has made")
    }
}

/// Declares methods of [`Erased`], and implements them for each task by those of the same name of [`Task`] or
/// [`RegisteredTask`]. A `model` and a `batch` come first; other arguments stand behind the semicolon.
macro_rules! erased {
    ($($of:ident::$name:ident($($part:ident),*; $($argument:ident: $type:ty),*) -> $output:ty;)+) => {
        /// A task with a model and a batch of any type.
        trait Erased: Sync {
            fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<AnyModel>;
            fn batch(&self, split: Split, index: u64) -> Result<AnyBatch>;
            fn inputs<'a>(&self, batch: &'a AnyBatch) -> Inputs<'a>;
            fn has_joint_loss(&self) -> bool;
            fn vectors(&self, model: &AnyModel, batch: &AnyBatch, mode: Mode) -> Result<Tensor>;
            fn loss_of_vectors(&self, batches: Range<u64>, vectors: &[Tensor]) -> Result<Loss>;
            fn can_imitate(&self) -> bool;
            fn outputs(
                &self,
                model: &AnyModel,
                batch: &AnyBatch,
                mode: Mode,
            ) -> Result<Option<Tensor>>;
            fn loss_by_labels(&self, outputs: &Tensor, batch: &AnyBatch) -> Result<Loss>;
            fn transformer<'a>(&self, model: &'a AnyModel) -> &'a Transformer;
            fn readings<'a>(&self, batch: &'a AnyBatch, mode: Mode) -> Vec<Reading<'a>>;
            $(fn $name(&self $(, $part: any!($part))* $(, $argument: $type)*) -> $output;)+
        }

        impl<T: RegisteredTask> Erased for T
        where
            T::Model: 'static,
            T::Batch: 'static,
        {
            fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<AnyModel> {
                Ok(AnyModel(Box::new(Task::build_model(self, config, vb)?)))
            }

            fn batch(&self, split: Split, index: u64) -> Result<AnyBatch> {
                Ok(AnyBatch(Box::new(Task::batch(self, split, index)?)))
            }

            fn inputs<'a>(&self, batch: &'a AnyBatch) -> Inputs<'a> {
                Task::inputs(self, batch.of::<T>())
            }

            fn has_joint_loss(&self) -> bool {
                self.joint_loss().is_some()
            }

            fn vectors(&self, model: &AnyModel, batch: &AnyBatch, mode: Mode) -> Result<Tensor> {
                joint(self).vectors(model.of::<T>(), batch.of::<T>(), mode)
            }

            fn loss_of_vectors(&self, batches: Range<u64>, vectors: &[Tensor]) -> Result<Loss> {
                joint(self).loss(batches, vectors)
            }

            fn can_imitate(&self) -> bool {
                self.imitation().is_some()
            }

            fn outputs(
                &self,
                model: &AnyModel,
                batch: &AnyBatch,
                mode: Mode,
            ) -> Result<Option<Tensor>> {
                imitation(self).outputs(model.of::<T>(), batch.of::<T>(), mode)
            }

            fn loss_by_labels(&self, outputs: &Tensor, batch: &AnyBatch) -> Result<Loss> {
                imitation(self).loss_by_labels(outputs, batch.of::<T>())
            }

            fn transformer<'a>(&self, model: &'a AnyModel) -> &'a Transformer {
                imitation(self).transformer(model.of::<T>())
            }

            fn readings<'a>(&self, batch: &'a AnyBatch, mode: Mode) -> Vec<Reading<'a>> {
                imitation(self).readings(batch.of::<T>(), mode)
            }

            $(fn $name(&self $(, $part: any!($part))* $(, $argument: $type)*) -> $output {
                $of::$name(self $(, $part.of::<T>())* $(, $argument)*)
            })+
        }
    };
}

/// The loss over all micro-batches of a step.
fn joint<T: Task>(task: &T) -> &dyn JointLoss<T::Model, T::Batch> {
    task.joint_loss().expect("invariant: a task is asked for vectors if it compares them")
}

/// The outputs in which models of `task` imitate a teacher.
fn imitation<T: Task>(task: &T) -> &dyn Imitation<T::Model, T::Batch> {
    task.imitation().expect("invariant: a task is asked for outputs if it has them")
}

/// The type of a model or a batch.
macro_rules! any {
    (model) => {
        &AnyModel
    };
    (batch) => {
        &AnyBatch
    };
}

/// Methods of [`AnyTask`] that call those of [`Erased`] of the same name.
macro_rules! forwarded {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $output:ty;)+) => {
        $(fn $name(&self $(, $argument: $type)*) -> $output {
            Erased::$name(&*self.0 $(, $argument)*)
        })+
    };
}

erased! {
    Task::n_evaluation_batches(;) -> u64;
    Task::seq_len(;) -> usize;
    Task::row_meanings(; config: &ModelConfig) -> RowMeanings<'_>;
    Task::estimate(; config: &ModelConfig) -> Estimate;
    Task::n_tokens(batch;) -> Option<u64>;
    Task::loss(model, batch; mode: Mode) -> Result<Loss>;
    Task::evaluate_batch(model, batch;) -> Result<Evaluated>;
    Task::score(; outputs: &[f64]) -> Metrics;
    Task::remark(; metrics: &BTreeMap<String, f64>) -> Option<String>;
    Task::attention_maps(model;) -> Result<Vec<AttentionMap>>;
    Task::samples(model;) -> Result<Vec<Sample>>;
    Task::measure(model;) -> Result<Metrics>;
    RegisteredTask::report(model;) -> Result<Report>;
    RegisteredTask::answers(model;) -> Result<Option<Vec<Value>>>;
    RegisteredTask::cost(model; config: &ModelConfig, store: &ParamStore) -> Cost;
    RegisteredTask::sizes(;) -> BTreeMap<String, u64>;
    RegisteredTask::kept_files(;) -> Result<Vec<(&'static str, Vec<u8>)>>;
    RegisteredTask::data_files(;) -> Vec<DataFile>;
    RegisteredTask::notes(;) -> Vec<String>;
    RegisteredTask::picture_maps(model; index: usize) -> Result<Option<(String, PictureMaps)>>;
}

impl Task for AnyTask {
    type Model = AnyModel;
    type Batch = AnyBatch;

    fn inputs<'a>(&self, batch: &'a AnyBatch) -> Inputs<'a> {
        Erased::inputs(&*self.0, batch)
    }

    fn joint_loss(&self) -> Option<&dyn JointLoss<AnyModel, AnyBatch>> {
        self.0.has_joint_loss().then_some(self)
    }

    fn imitation(&self) -> Option<&dyn Imitation<AnyModel, AnyBatch>> {
        self.0.can_imitate().then_some(self)
    }

    forwarded! {
        fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<AnyModel>;
        fn batch(&self, split: Split, index: u64) -> Result<AnyBatch>;
        fn n_evaluation_batches(&self) -> u64;
        fn seq_len(&self) -> usize;
        fn row_meanings(&self, config: &ModelConfig) -> RowMeanings<'_>;
        fn estimate(&self, config: &ModelConfig) -> Estimate;
        fn n_tokens(&self, batch: &AnyBatch) -> Option<u64>;
        fn loss(&self, model: &AnyModel, batch: &AnyBatch, mode: Mode) -> Result<Loss>;
        fn evaluate_batch(&self, model: &AnyModel, batch: &AnyBatch) -> Result<Evaluated>;
        fn score(&self, outputs: &[f64]) -> Metrics;
        fn remark(&self, metrics: &BTreeMap<String, f64>) -> Option<String>;
        fn attention_maps(&self, model: &AnyModel) -> Result<Vec<AttentionMap>>;
        fn samples(&self, model: &AnyModel) -> Result<Vec<Sample>>;
        fn measure(&self, model: &AnyModel) -> Result<Metrics>;
    }
}

impl JointLoss<AnyModel, AnyBatch> for AnyTask {
    fn vectors(&self, model: &AnyModel, batch: &AnyBatch, mode: Mode) -> Result<Tensor> {
        self.0.vectors(model, batch, mode)
    }

    fn loss(&self, batches: Range<u64>, vectors: &[Tensor]) -> Result<Loss> {
        self.0.loss_of_vectors(batches, vectors)
    }
}

impl Imitation<AnyModel, AnyBatch> for AnyTask {
    fn outputs(&self, model: &AnyModel, batch: &AnyBatch, mode: Mode) -> Result<Option<Tensor>> {
        self.0.outputs(model, batch, mode)
    }

    fn loss_by_labels(&self, outputs: &Tensor, batch: &AnyBatch) -> Result<Loss> {
        self.0.loss_by_labels(outputs, batch)
    }

    fn transformer<'a>(&self, model: &'a AnyModel) -> &'a Transformer {
        self.0.transformer(model)
    }

    fn readings<'a>(&self, batch: &'a AnyBatch, mode: Mode) -> Vec<Reading<'a>> {
        self.0.readings(batch, mode)
    }
}

impl RegisteredTask for AnyTask {
    forwarded! {
        fn report(&self, model: &AnyModel) -> Result<Report>;
        fn answers(&self, model: &AnyModel) -> Result<Option<Vec<Value>>>;
        fn cost(&self, model: &AnyModel, config: &ModelConfig, store: &ParamStore) -> Cost;
        fn sizes(&self) -> BTreeMap<String, u64>;
        fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>>;
        fn data_files(&self) -> Vec<DataFile>;
        fn notes(&self) -> Vec<String>;
        fn picture_maps(&self, model: &AnyModel, index: usize) -> Result<Option<(String, PictureMaps)>>;
    }
}
