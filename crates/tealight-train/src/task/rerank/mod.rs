//! Scores of passages for a query, by a model that reads both together (Nogueira & Cho 2019,
//! <https://arxiv.org/abs/1901.04085>).
//!
//! ```text
//! [CLS] how tall is the tower [SEP] The tower has 300 metres . [SEP]   ─► classifier with one output ─► score
//! ```
//!
//! The model is that of [`classify`](super::classify) with one output, so exported folders are cross-encoders of
//! sentence-transformers.

mod config;
mod data;
mod loss;
mod report;
mod rows;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use config::Config;
pub use loss::LossConfig;
pub use source::{DataConfig, Generated};

use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::labels::{Labels, Objective, UNNAMED};
use crate::inference::text_classifier::MAX_TOKENS;
use crate::inference::text_classifier::encoder::Tokens;
use crate::inference::text_classifier::rows::Rows;
use crate::task::context::TaskContext;
use crate::task::metrics::{Measures, Metrics, by_name};
use crate::task::parts::PATH;
use crate::task::report::Report;
use crate::task::sample::Sample;
use crate::task::text::embedding_rows;
use crate::task::{
    Evaluated, Inputs, Loss, RegisteredTask, RowMeanings, Task, TaskKind, TaskSettings as _,
};
use data::{Data, Example};
use report::Named;

/// The task: queries with their passages as token ids.
#[derive(Debug)]
pub struct Rerank {
    config: Config,
    data: Data,
    labels: Labels,
    /// The order of the training examples.
    order: ShuffledOrder,
    /// The held-out queries of each batch of an evaluation.
    evaluation: Vec<Range<usize>>,
    batch_size: usize,
    /// Rows of the token embedding.
    vocab_size: usize,
    /// The length that the attention of the model requires.
    required_len: Option<usize>,
    device: Device,
    /// The metrics of counting words, when they have been asked for.
    of_words: OnceLock<Named>,
}

/// Examples on the device.
#[derive(Debug)]
pub struct Batch {
    rows: Rows,
    /// By example, the labels of its passages.
    lists: Vec<Vec<f32>>,
}

impl TaskKind for Config {
    type Task = Rerank;

    fn build(&self, context: &TaskContext<'_>) -> Result<Rerank> {
        let TaskContext { seed, batch_size, model, device, kept, test, .. } = *context;
        self.validate()?;
        if kept.is_none() {
            model.refuse_vocabulary_output()?;
        }
        let required_len = model.required_len();
        let seq_len = required_len.map_or(self.seq_len, |len| len.min(self.seq_len));
        let data = Data::new(self, seq_len, seed, kept, test.is_some())?;
        if data.train.is_empty() && test.is_none() {
            let message = format!(
                "`{PATH}`: no query has passages with different labels, which `task.loss.kind` = \"{}\" compares",
                self.loss.kind()
            );
            return Err(Error::config([PATH, "task.loss.kind"], message));
        }
        let vocab_size = embedding_rows(&data.encoder.tokenizer, self.vocab_size)?;
        Ok(Rerank {
            config: self.clone(),
            labels: Labels::new(Objective::Regression, vec![UNNAMED.to_owned()]),
            order: ShuffledOrder::new(seed, data.train.len().max(1)),
            evaluation: evaluation_batches(&data.validation),
            data,
            batch_size,
            vocab_size,
            required_len,
            device: device.clone(),
            of_words: OnceLock::new(),
        })
    }
}

impl Rerank {
    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> ClassifierSpec {
        let Config { seq_len, read_out, n_token_types, .. } = self.config;
        ClassifierSpec {
            vocab_size: self.vocab_size,
            n_token_types,
            pad_id: self.data.encoder.tokenizer.special().pad,
            seq_len,
            n_classes: 1,
            read_out,
        }
    }

    fn batch_of(&self, examples: &[&Example]) -> Result<Batch> {
        let pairs: Vec<&Tokens> = examples.iter().flat_map(|one| &one.pairs).collect();
        let width = self.required_len.unwrap_or(0);
        let rows = Rows::new(&pairs, width, self.data.encoder.pad(), &self.device)?;
        Ok(Batch { rows, lists: examples.iter().map(|one| one.labels.clone()).collect() })
    }
}

/// The held-out queries of each batch of an evaluation: as many as have a limited number of tokens.
fn evaluation_batches(examples: &[Example]) -> Vec<Range<usize>> {
    let (mut batches, mut first) = (Vec::new(), 0);
    while first < examples.len() {
        let (mut n_pairs, mut longest) = (0, 0);
        let fits = |example: &&Example| {
            n_pairs += example.pairs.len();
            longest = example.pairs.iter().map(|pair| pair.ids.len()).fold(longest, usize::max);
            n_pairs * longest <= MAX_TOKENS
        };
        let n = examples[first..].iter().take_while(fits).count().max(1);
        batches.push(first..first + n);
        first += n;
    }
    batches
}

/// The scores `(n)` of all pairs of a batch, before any activation, in f32.
fn scores(model: &Classifier, batch: &Batch, mode: Mode) -> Result<Tensor> {
    let logits = model.forward(&batch.rows.input(), &batch.rows.mask, mode)?; // (n, 1)
    Ok(logits.squeeze(1)?.to_dtype(DType::F32)?)
}

impl Task for Rerank {
    type Model = Classifier;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Classifier> {
        Ok(Classifier::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        match split {
            Split::Train => {
                let first = index * self.batch_size as u64;
                let places = self.order.examples(first, self.batch_size);
                self.batch_of(
                    &places.into_iter().map(|at| &self.data.train[at]).collect::<Vec<_>>(),
                )
            }
            Split::Validation => {
                let examples = self.evaluation.get(index as usize).cloned().unwrap_or_default();
                self.batch_of(&self.data.validation[examples].iter().collect::<Vec<_>>())
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.evaluation.len() as u64
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn row_meanings(&self, _config: &ModelConfig) -> RowMeanings<'_> {
        RowMeanings {
            tokenizer: Some(&self.data.encoder.tokenizer),
            labels: Some(&self.labels),
            ..RowMeanings::default()
        }
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Classifier::estimate(config, &self.model_spec())
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.rows.n_tokens)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        let Rows { ids, type_ids, mask, .. } = &batch.rows;
        let tensors = [ids].into_iter().chain(type_ids).chain(mask.tensors());
        Inputs { tensors: tensors.collect(), count: batch.lists.len() as f64 }
    }

    fn loss(&self, model: &Classifier, batch: &Batch, mode: Mode) -> Result<Loss> {
        let scores = scores(model, batch, mode)?;
        let (sum, count) = self.config.loss.settings().loss(&scores, &batch.lists)?;
        Ok(Loss { sum, count, metrics: Measures::default() })
    }

    fn evaluate_batch(&self, model: &Classifier, batch: &Batch) -> Result<Evaluated> {
        let scores = scores(model, batch, Mode::Eval)?;
        let (sum, count) = self.config.loss.settings().loss(&scores, &batch.lists)?;
        let measures = Loss { sum, count, metrics: Measures::default() }.measures();
        let outputs = scores.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()?;
        Ok(Evaluated { measures, outputs })
    }

    fn score(&self, outputs: &[f64]) -> Metrics {
        let mut metrics = Metrics::default();
        for (name, value) in report::metrics(self, outputs) {
            metrics.add(name, value, 1.);
        }
        metrics
    }

    fn remark(&self, metrics: &BTreeMap<String, f64>) -> Option<String> {
        report::remark(self, metrics)
    }

    fn samples(&self, model: &Classifier) -> Result<Vec<Sample>> {
        report::samples(self, model)
    }
}

impl RegisteredTask for Rerank {
    fn report(&self, model: &Classifier) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let ClassifierSpec { vocab_size, seq_len, .. } = self.model_spec();
        by_name([
            ("vocab_size", vocab_size as u64),
            ("seq_len", seq_len as u64),
            ("n_train", self.data.train.len() as u64),
            ("n_validation", self.data.validation.len() as u64),
        ])
    }

    fn cost(&self, _: &Classifier, config: &ModelConfig, store: &ParamStore) -> Cost {
        Classifier::cost(config, &self.model_spec(), store)
    }

    fn notes(&self) -> Vec<String> {
        self.data.remarks.clone()
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let mut files = self.data.encoder.tokenizer.files()?;
        files.push(self.labels.file()?);
        Ok(files)
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.files.clone()
    }
}
