//! Tasks: the data and the loss that a model is trained with, its metrics, and its report.
//!
//! A task is a folder here and one line in the list of [`TaskConfig`]. Its settings implement [`TaskSettings`] and
//! [`TaskKind`], the task itself [`Task`] and [`RegisteredTask`], its report is a [`Report`]. Code for any task gets an
//! [`AnyTask`]. Besides, `tealight init` names the tasks that it writes a configuration for, and
//! [`trained`](crate::trained) the tasks that take settings from a model (`init_from`) or prompts from a tokenizer.
//!
//! A task is for training and evaluation: it has data. What is done with a trained model is in
//! [`trained`](crate::trained) and [`pipelines`](crate::pipelines).

mod any;
mod batch;
mod calibration;
pub mod causal_lm;
pub mod classify;
pub(crate) mod context;
pub mod copying;
pub mod drawn;
pub mod embed;
pub mod evaluate;
mod illustration;
pub mod images;
mod imitable;
pub mod imitation;
mod label_column;
pub mod listops;
pub mod markov_icl;
pub mod masked_lm;
pub(crate) mod metrics;
mod parts;
mod ranking;
pub mod recall;
pub mod report;
pub mod rerank;
mod rows;
pub mod sample;
mod scores;
pub mod seq2seq;
pub(crate) mod settings;
pub mod state_tracking;
pub mod table;
pub mod tag;
mod text;
mod thresholds;
pub mod weather;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use serde_json::Value;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::{
    Mode, ModelConfig, ModelSpec, Outputs, ParamStore, Reads, SpecRecord, choice,
};

use crate::data::DataFile;
pub use crate::data::Split;
use crate::data::weather::Score;
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::image_classifier::PictureMaps;
use crate::inference::readers::Readers;
use crate::task::metrics::{Measures, Metrics};
use crate::task::report::Report;
use crate::task::sample::Sample;

pub use any::{AnyBatch, AnyModel, AnyTask};
pub use batch::Batch as LabelledBatch;
pub use context::TaskContext;
pub use illustration::{Captioned, Illustration};
pub use imitable::{Imitated, Imitation, Reading};
pub use rows::RowMeanings;

/// Defines [`TaskConfig`] from its list, with the methods that need the type of the settings.
macro_rules! tasks {
    ($($(#[doc = $doc:literal])* $kind:literal => $variant:ident ($settings:ty)),+ $(,)?) => {
        choice! {
            /// `[task]`: the data, and the targets that a model learns.
            pub enum TaskConfig: TaskSettings {
                $($(#[doc = $doc])* $kind => $variant ($settings)),+
            }
        }

        impl TaskConfig {
            /// Makes paths absolute, so that they mean the same wherever a run is resumed.
            pub(crate) fn absolute_paths(&mut self) -> Result<()> {
                match self {
                    $(Self::$variant(settings) => settings.absolute_paths()),+
                }
            }

            /// The share of a file that is held out for a test of the trained model, and the file.
            pub fn test_share(&self) -> Option<(&Path, f64)> {
                match self {
                    $(Self::$variant(settings) => settings.test_share()),+
                }
            }

            /// Replaces the data by those in `data`, which a trained model is tested on: [`TaskContext::test`].
            ///
            /// # Errors
            /// If their path cannot be made absolute.
            pub fn test_on(&mut self, data: &Path) -> Result<()> {
                match self {
                    $(Self::$variant(settings) => settings.test_on(data)),+
                }
            }

            /// Builds the task with its data.
            ///
            /// # Errors
            /// If a setting is invalid, or if the data cannot be read.
            pub fn build(&self, context: &TaskContext<'_>) -> Result<AnyTask> {
                match self {
                    $(Self::$variant(settings) => Ok(AnyTask::new(settings.build(context)?))),+
                }
            }
        }
    };
}

tasks! {
    /// Forecast tomorrow from the last days of rain, cloud and sun.
    "weather" => Weather(weather::Config),
    /// Read one sequence and write another: reversed, sorted, dates, pairs from a file.
    "seq2seq" => Seq2Seq(seq2seq::Config),
    /// Read nested operations on digits, and tell their value.
    "listops" => ListOps(listops::Config),
    /// Predict the masked tokens of a text.
    "masked_lm" => MaskedLm(masked_lm::Config),
    /// Predict each token of a text from those before it.
    "causal_lm" => CausalLm(causal_lm::Config),
    /// Tell the class of a text: texts and labels from a file.
    "classify" => Classify(classify::Config),
    /// Tell the tag of each word: names in sentences, parts of speech.
    "tag" => Tag(tag::Config),
    /// Give texts vectors, which are near where their texts mean the same.
    "embed" => Embed(embed::Config),
    /// Tell how relevant a passage is for a query, and rank passages.
    "rerank" => Rerank(rerank::Config),
    /// Tell the class of a picture: class folders, archives, MNIST, CIFAR, drawn shapes.
    "images" => Images(images::Config),
    /// Tell which value stood behind a key, among many.
    "recall" => Recall(recall::Config),
    /// Predict a Markov chain that is new in every example.
    "markov_icl" => MarkovIcl(markov_icl::Config),
    /// Track a state: the product of all group elements read so far.
    "state_tracking" => StateTracking(state_tracking::Config),
    /// Write the symbols of the input again: forwards, backwards, or those among blanks.
    "copying" => Copying(copying::Config),
}

/// The settings of a task: what can be asked before any data are read.
pub trait TaskSettings: fmt::Debug {
    /// Checks what does not depend on the data.
    fn validate(&self) -> Result<()>;

    /// Makes paths absolute, so that they mean the same wherever a run is resumed.
    fn absolute_paths(&mut self) -> Result<()> {
        Ok(())
    }

    /// Which positions each stack of `model` reads, for `tealight doctor` to check its masks.
    fn reads(&self, model: &ModelConfig) -> Vec<Reads> {
        vec![model.reads()]
    }

    /// Replaces the data by those in `data`.
    fn test_on(&mut self, data: &Path) -> Result<()>;

    /// The share of a file that is held out for a test of the trained model, and the file.
    fn test_share(&self) -> Option<(&Path, f64)> {
        None
    }

    /// The outputs of the last layer that the loss depends on; `None`: all.
    fn outputs(&self) -> Option<Outputs> {
        None
    }

    /// The names of parameters that the loss does not depend on, though the model has them: their gradient may be zero.
    fn idle_parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// The outputs of the models in which they can imitate a teacher (`[teacher]`); `None` if they cannot.
    fn imitated(&self) -> Option<Imitated> {
        None
    }

    /// The languages of texts that Tealight generates, as ISO 639 abbreviates them; none for other data.
    fn languages(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// A command to try with the trained run in this directory.
    fn next_command(&self, run: &Path) -> String {
        format!("tealight evaluate {} --json", run.display())
    }

    /// Whether what a model writes for an example ([`Sample::text`]) goes on with its input.
    fn continues_text(&self) -> bool {
        false
    }

    /// The name of the [pipeline](crate::pipelines::Pipeline) that uses the models of this task; `None` if no pipeline
    /// does.
    fn pipeline(&self) -> Option<&'static str> {
        None
    }

    /// The kind of the models that a run with these settings trains. `record` has the sizes in the manifest of the run,
    /// `pad_id` is the padding of its tokenizer. `None` if a size is missing, or if [`ModelSpec`] has no such kind.
    fn model_spec(&self, record: SpecRecord, pad_id: Option<u32>) -> Option<ModelSpec> {
        record.spec(pad_id)
    }

    /// How the names of settings of `[model]` begin that have no effect on a model of this task. New runs refuse them; runs
    /// of versions that ignored them have them.
    fn unused_model_settings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Reads the data as training does: what a user should know about them, a line each. By default nothing is read.
    ///
    /// # Errors
    /// The first fault.
    fn check_data(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The scores of the best possible model, where a rule that draws the data decides them.
    fn bayes(&self) -> Option<Score> {
        None
    }

    /// Adds to `readers` what only the settings of the run hold: the rule of the weather, the fields of a table.
    ///
    /// # Errors
    /// If a setting is invalid.
    fn add_readers(&self, _readers: &mut Readers) -> Result<()> {
        Ok(())
    }
}

/// Settings that build a task.
pub trait TaskKind: TaskSettings {
    /// The task.
    type Task: RegisteredTask<Model: 'static, Batch: 'static> + 'static;

    /// Validates the settings, and draws or reads the data.
    fn build(&self, context: &TaskContext<'_>) -> Result<Self::Task>;
}

/// The loss of one batch.
#[derive(Debug)]
pub struct Loss {
    /// Sum over the items that carry a loss: a scalar, with a graph in training.
    pub sum: Tensor,
    /// Number of items that carry a loss, or the sum of their weights. The mean is Σ sum / Σ count, so accumulation is
    /// exact. A batch of count 0 has no weight.
    pub count: f64,
    /// Further averages from the same forward pass, such as the accuracy.
    pub metrics: Measures,
}

impl Loss {
    /// The loss of `count` items, and how many of them the model got right, as the average `name`.
    pub(crate) fn with_hits(sum: Tensor, count: usize, name: &'static str, hits: &Tensor) -> Self {
        let (count, mut metrics) = (count as f64, Measures::default());
        metrics.add(name, hits, count);
        Self { sum, count, metrics }
    }

    /// The loss of a batch without labels.
    pub(crate) fn zero(device: &Device) -> Result<Self> {
        let sum = Tensor::zeros((), DType::F32, device)?;
        Ok(Self { sum, count: 0., metrics: Measures::default() })
    }

    /// All averages, the mean loss as `loss`.
    pub(crate) fn measures(self) -> Measures {
        let mut measures = self.metrics;
        measures.add("loss", &self.sum, self.count);
        measures
    }
}

/// A batch of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct Evaluated {
    /// Sums and counts.
    pub measures: Measures,
    /// Numbers of each item, for [`Task::score`].
    pub outputs: Vec<f64>,
}

/// The tensors of a batch.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// In an order that is the same for all batches.
    pub tensors: Vec<&'a Tensor>,
    /// Number of items that carry a loss, or the sum of their weights.
    pub count: f64,
}

impl Inputs<'_> {
    /// The shape and dtype of each tensor. A captured graph can process every batch whose list is equal.
    pub fn shapes(&self) -> Vec<(Shape, DType)> {
        self.tensors.iter().map(|x| (x.shape().clone(), x.dtype())).collect()
    }
}

/// A task that `fit` can train a model on.
pub trait Task: Sync {
    /// The model that is trained.
    type Model;
    /// The input of one forward pass.
    type Batch: Send;

    /// Builds the model for this task's data: from `vb` with or without gradients.
    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Self::Model>;

    /// Batch `index` of a split: a pure function, so that resuming needs only the index.
    fn batch(&self, split: Split, index: u64) -> Result<Self::Batch>;

    /// Number of batches of the validation split in an evaluation.
    fn n_evaluation_batches(&self) -> u64;

    /// The longest sequence of inputs.
    fn seq_len(&self) -> usize;

    /// What the rows of the parameters of a model stand for, which another model may initialise; by default nothing.
    fn row_meanings(&self, _config: &ModelConfig) -> RowMeanings<'_> {
        RowMeanings::default()
    }

    /// The memory that the model of this `config` needs; by default that of a single stack.
    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Estimate::single_stack(config, self.seq_len())
    }

    /// Tokens in a batch without padding; `None` where throughput is counted in examples.
    fn n_tokens(&self, _batch: &Self::Batch) -> Option<u64> {
        None
    }

    /// The tensors of a batch, and the number of items that carry a loss. The forward pass depends on nothing
    /// else; for batches of equal [`Inputs::shapes`] it runs the same operations. Its averages are over
    /// [`Inputs::count`] items or over a number that follows from the shapes.
    fn inputs<'a>(&self, batch: &'a Self::Batch) -> Inputs<'a>;

    /// The loss of `model` on a batch.
    fn loss(&self, model: &Self::Model, batch: &Self::Batch, mode: Mode) -> Result<Loss>;

    /// The loss over all micro-batches of a step at once; `None` if that of a step is the mean over its micro-batches.
    /// [`Self::loss`] is it over a single batch.
    fn joint_loss(&self) -> Option<&dyn JointLoss<Self::Model, Self::Batch>> {
        None
    }

    /// The outputs that the model has in common with a teacher; `None` if [`TaskSettings::imitated`] is.
    fn imitation(&self) -> Option<&dyn Imitation<Self::Model, Self::Batch>> {
        None
    }

    /// The averages of one batch of an evaluation, and what [`Self::score`] needs of it: by default only those of
    /// the loss.
    fn evaluate_batch(&self, model: &Self::Model, batch: &Self::Batch) -> Result<Evaluated> {
        let measures = self.loss(model, batch, Mode::Eval)?.measures();
        Ok(Evaluated { measures, outputs: Vec::new() })
    }

    /// Metrics that are no averages over batches, such as a correlation, from the outputs of all batches of an
    /// evaluation in their order; by default none.
    fn score(&self, _outputs: &[f64]) -> Metrics {
        Metrics::default()
    }

    /// What a user should know about the metrics of an evaluation: that the model is no better than a trivial baseline;
    /// by default nothing.
    fn remark(&self, _metrics: &BTreeMap<String, f64>) -> Option<String> {
        None
    }

    /// The attention maps of the first example of the validation split; none where a task has no names for
    /// positions.
    fn attention_maps(&self, _model: &Self::Model) -> Result<Vec<AttentionMap>> {
        Ok(Vec::new())
    }

    /// The answers of the model to a few fixed examples of the validation split; by default none. It draws no random
    /// numbers that anything else draws, and takes a small part of the time of an evaluation. `model` is built without
    /// gradients.
    fn samples(&self, _model: &Self::Model) -> Result<Vec<Sample>> {
        Ok(Vec::new())
    }

    /// Metrics of an evaluation that need more than a forward pass; by default none. `model` is built
    /// without gradients.
    fn measure(&self, _model: &Self::Model) -> Result<Metrics> {
        Ok(Metrics::default())
    }
}

/// A loss that compares the examples of all micro-batches of a step with each other. It depends on the model by vectors
/// alone, so that one micro-batch at a time needs memory for a backward pass.
pub trait JointLoss<Model, Batch> {
    /// The vectors `(n, d)` of a batch, in f32.
    fn vectors(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Tensor>;

    /// The loss of the training batches with these numbers, of which `vectors` are those of each.
    fn loss(&self, batches: Range<u64>, vectors: &[Tensor]) -> Result<Loss>;
}

/// A task in the list of [`TaskConfig`]: the functions that runs and commands need beside training.
pub trait RegisteredTask: Task + Sized {
    /// The scores of `model`, which is built without gradients, beside its baselines.
    fn report(&self, model: &Self::Model) -> Result<Report>;

    /// The answers of `model` to each example that it is tested on, for other programs; `None` if the task has no examples
    /// of symbols.
    fn answers(&self, _model: &Self::Model) -> Result<Option<Vec<Value>>> {
        Ok(None)
    }

    /// The cost of training `model`, with the parameters in `store`.
    fn cost(&self, model: &Self::Model, config: &ModelConfig, store: &ParamStore) -> Cost;

    /// Sizes that the data decides, for the manifest.
    fn sizes(&self) -> BTreeMap<String, u64>;

    /// Files that a run keeps, by name, such as the tokenizer: with them a trained model is used without its
    /// data.
    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(Vec::new())
    }

    /// The files that the data come from, with the hashes of what was read; none if the data are drawn.
    fn data_files(&self) -> Vec<DataFile> {
        Vec::new()
    }

    /// Remarks on the data for the user, such as the number of files that are left out; a line for each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The name of held-out picture `index`, and its attention maps by `model`, which is built without gradients; `None`
    /// if there is no such picture.
    fn picture_maps(
        &self,
        _model: &Self::Model,
        _index: usize,
    ) -> Result<Option<(String, PictureMaps)>> {
        Ok(None)
    }
}
