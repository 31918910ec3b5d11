//! What is learned from what; not how.

pub mod causal_lm;
pub mod classify;
pub mod evaluate;
mod labelled;
pub mod listops;
pub mod masked_lm;
pub(crate) mod metrics;
pub mod seq2seq;
mod text;
pub mod weather;

use std::collections::BTreeMap;

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use serde::Serialize;
use tealight_model::block::AttentionMaps;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::{Mode, ModelConfig, ParamStore, choice};

use crate::data::DataFile;
pub use crate::data::Split;
use crate::error::Result;
use crate::task::metrics::{Measures, Metrics};

pub use labelled::Batch as LabelledBatch;
pub use text::Preparing;
pub(crate) use text::readings as text_readings;

choice! {
    /// `[task]`: what is learned from what.
    pub enum TaskConfig {
        /// Forecast tomorrow from the last days of rain, cloud and sun.
        "weather" => Weather(weather::Config),
        /// Read one sequence and write another: reversed, sorted, dates, pairs from a file.
        "seq2seq" => Seq2Seq(seq2seq::Config),
        /// Read nested operations on digits, and tell their value.
        "listops" => ListOps(listops::Config),
        /// Guess tokens that are hidden from a text.
        "masked_lm" => MaskedLm(masked_lm::Config),
        /// Guess each token of a text from those before it.
        "causal_lm" => CausalLm(causal_lm::Config),
        /// Tell the class of a text: texts and labels from a file.
        "classify" => Classify(classify::Config),
    }
}

impl TaskConfig {
    /// Makes paths absolute, so that they mean the same wherever a run is resumed.
    pub(crate) fn absolute_paths(&mut self) -> Result<()> {
        match self {
            Self::Weather(weather) => weather.absolute_paths(),
            Self::Seq2Seq(seq2seq) => seq2seq.absolute_paths(),
            Self::ListOps(_) => Ok(()),
            Self::MaskedLm(masked_lm) => masked_lm.absolute_paths(),
            Self::CausalLm(causal_lm) => causal_lm.absolute_paths(),
            Self::Classify(classify) => classify.absolute_paths(),
        }
    }
}

/// The loss of one batch.
#[derive(Debug)]
pub struct Loss {
    /// Sum over the items that carry a loss: a scalar with a graph behind it in training.
    pub sum: Tensor,
    /// How many items carry a loss. Mean = Σ sum / Σ count, so accumulation is exact. A batch of none weighs
    /// nothing.
    pub count: f64,
    /// What else was measured on the way.
    pub others: Measures,
}

impl Loss {
    /// That of a batch in which nothing is to be guessed.
    pub(crate) fn nothing(device: &Device) -> Result<Self> {
        let sum = Tensor::zeros((), DType::F32, device)?;
        Ok(Self { sum, count: 0., others: Measures::default() })
    }

    /// The loss, and what else was measured.
    pub(crate) fn measures(self) -> Measures {
        let mut measures = self.others;
        measures.add("loss", &self.sum, self.count);
        measures
    }
}

/// What one attention read, with names for the positions.
#[derive(Debug)]
pub struct Reading {
    /// Which attention, such as `layer 1`.
    pub name: String,
    /// The positions that read: the rows of the maps.
    pub queries: Vec<String>,
    /// The positions that are read: the columns.
    pub keys: Vec<String>,
    /// The weights of the first sequence of the batch.
    pub maps: AttentionMaps,
}

/// What a pass reads of a batch.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// In an order that is the same for all batches.
    pub tensors: Vec<&'a Tensor>,
    /// How many items carry a loss.
    pub count: usize,
}

/// What like batches have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shapes(Vec<(Shape, DType)>);

impl Inputs<'_> {
    /// What batches that are passed over alike have in common with this one.
    pub fn shapes(&self) -> Shapes {
        let of = |x: &&Tensor| (x.shape().clone(), x.dtype());
        Shapes(self.tensors.iter().map(of).collect())
    }
}

/// A task that `fit` can train a model on.
pub trait Task: Sync {
    /// What is trained.
    type Model;
    /// What one forward pass takes.
    type Batch: Send;

    /// Builds the model for this task's data: once trainable, once frozen.
    fn build(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Self::Model>;

    /// Batch `index` of a split: a pure function, so that resuming is an index.
    fn batch(&self, split: Split, index: u64) -> Result<Self::Batch>;

    /// How many batches of the validation split an evaluation takes.
    fn n_evaluation_batches(&self) -> u64;

    /// Sizes that the data decides, for the manifest.
    fn sizes(&self) -> BTreeMap<String, u64>;

    /// The longest sequence of inputs.
    fn seq_len(&self) -> usize;

    /// What the model of this `config` needs memory for: one stack on its own unless said otherwise.
    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Estimate::alone(config, self.seq_len())
    }

    /// Examples in each training batch.
    fn batch_size(&self) -> usize;

    /// Tokens that the model reads in a batch, padding left out; `None` where examples say more.
    fn n_tokens(&self, _batch: &Self::Batch) -> Option<u64> {
        None
    }

    /// The tensors of a batch, and how many items carry a loss: all that a pass over it depends on. Batches
    /// of like [`Inputs::shapes`] are passed over alike, and measured over as many items as carry a loss, or
    /// over a number that follows from the shapes.
    fn inputs<'a>(&self, batch: &'a Self::Batch) -> Inputs<'a>;

    /// What the model makes of a batch.
    fn loss(&self, model: &Self::Model, batch: &Self::Batch, mode: Mode) -> Result<Loss>;

    /// What the model reads in the first example of the validation split, attention by attention;
    /// nothing where a task has no names for positions.
    fn readings(&self, _model: &Self::Model) -> Result<Vec<Reading>> {
        Ok(Vec::new())
    }

    /// What only an evaluation measures, because it takes more than a forward pass; nothing unless
    /// said otherwise. `model` is built from frozen parameters.
    fn measure(&self, _model: &Self::Model) -> Result<Metrics> {
        Ok(Metrics::default())
    }
}

/// A task whose results can be told: what the commands need, and the loop does not.
pub trait Reported: Task {
    /// How good a trained model is, beside whatever it should be compared with.
    type Report: Serialize;

    /// Measures `model`, which is built from frozen parameters.
    fn report(&self, model: &Self::Model) -> Result<Self::Report>;

    /// The numbers of a report by which runs are compared.
    fn metrics(report: &Self::Report) -> BTreeMap<String, f64>;

    /// What training `model` costs, with the parameters in `store`.
    fn cost(&self, model: &Self::Model, config: &ModelConfig, store: &ParamStore) -> Cost;

    /// Files that a run keeps, by name: what a trained model needs of the data to be used without them.
    fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(Vec::new())
    }

    /// The files that the data come from, as they were when they were read; nothing if they are drawn.
    fn data(&self) -> Vec<DataFile> {
        Vec::new()
    }
}
