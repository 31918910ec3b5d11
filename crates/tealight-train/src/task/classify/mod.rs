//! Classes of texts, such as the topic of a sentence.
//!
//! ```text
//! [CLS] a sunny walk to the harbour [SEP]  →  "travel"
//! ```
//!
//! The texts and their labels come from a file. A run keeps the tokenizer and the labels: its model is used
//! without the texts.

mod config;
mod data;
mod file;
mod labels;
mod report;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::json;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::Input;
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use config::{Config, DataConfig};
pub use file::Example;
pub use labels::Labels;
pub use report::{LabelScore, Report};

use crate::data::text::tokenizer::Tokenizer;
use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::probabilities;
use crate::task::attention_map::{AttentionMap, SequenceMaps};
use crate::task::batch::{Batch, likeliest};
use crate::task::context::TaskContext;
use crate::task::metrics::by_name;
use crate::task::text::embedding_rows;
use crate::task::{Inputs, Loss, RegisteredTask, Task, TaskKind, TaskSettings};
use data::{Data, Encoder, Item};

/// Tokens in one forward pass of an evaluation.
const EVALUATION_TOKENS: usize = 1 << 14;

/// The task: texts as tokens with classes.
#[derive(Debug)]
pub struct Classify {
    config: Config,
    data: Data,
    /// The order of the training texts; `None` without data.
    order: Option<ShuffledOrder>,
    /// Rows of the token embedding.
    vocab_size: usize,
    batch_size: usize,
    device: Device,
}

/// The prediction for a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Classified {
    /// The likeliest label.
    pub label: String,
    /// `(n_classes)`: the probability of each label, in their order.
    pub probabilities: Vec<f64>,
}

impl TaskKind for Config {
    type Task = Classify;

    fn build(&self, context: &TaskContext<'_>) -> Result<Classify> {
        let TaskContext { seed, batch_size, device, kept, inference_only, .. } = *context;
        if let (Some(run), true) = (kept, inference_only) {
            return Classify::without_data(self, run, device);
        }
        self.validate()?;
        let data = Data::new(self, seed, kept)?;
        let vocab_size = embedding_rows(&data.encoder.tokenizer, self.vocab_size)?;
        let order = Some(ShuffledOrder::new(seed, data.train.len()));
        let (config, device) = (self.clone(), device.clone());
        Ok(Classify { config, data, order, vocab_size, batch_size, device })
    }
}

impl Classify {
    /// The task without texts, with the tokenizer and the labels in the directory `run`.
    pub(crate) fn without_data(config: &Config, run: &Path, device: &Device) -> Result<Self> {
        let tokenizer = Tokenizer::from_folder(run)?;
        let vocab_size = config.vocab_size.unwrap_or(tokenizer.vocab_size());
        let encoder = Encoder::new(tokenizer, config.seq_len)?;
        let labels = Labels::read(run)?;
        let (train, validation, files) = (Vec::new(), Vec::new(), Vec::new());
        let data = Data { train, validation, labels, encoder, files };
        let (config, device) = (config.clone(), device.clone());
        Ok(Self { config, data, order: None, vocab_size, batch_size: 1, device })
    }

    /// The labels in the order of the model's outputs.
    pub fn labels(&self) -> &Labels {
        &self.data.labels
    }

    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> ClassifierSpec {
        let Config { seq_len, read_out, n_token_types, .. } = self.config;
        ClassifierSpec {
            vocab_size: self.vocab_size,
            n_token_types,
            pad_id: self.data.encoder.tokenizer.special().pad,
            seq_len,
            n_classes: self.labels().names().len(),
            read_out,
        }
    }

    /// The predictions of `model` for texts, in their order.
    pub fn classify(&self, model: &Classifier, texts: &[String]) -> Result<Vec<Classified>> {
        let mut classified = Vec::with_capacity(texts.len());
        for texts in texts.chunks(self.evaluation_batch()) {
            let items = texts.iter().map(|text| self.item(text)).collect::<Result<Vec<_>>>()?;
            for probabilities in self.probabilities(model, &items)? {
                let label = self.labels().names()[likeliest(&probabilities)].clone();
                classified.push(Classified { label, probabilities });
            }
        }
        Ok(classified)
    }

    /// A text without a class.
    fn item(&self, text: &str) -> Result<Item> {
        if text.trim().is_empty() {
            return Err(Error::config([], "a text is empty: there is nothing to classify"));
        }
        Ok(Item { ids: self.data.encoder.encode(text)?, class: 0 })
    }

    fn attention_maps_of(&self, model: &Classifier, item: &Item) -> Result<Vec<AttentionMap>> {
        let batch = self.batch_of(std::slice::from_ref(item))?;
        let layers = model.attention_maps(&Input::tokens(&batch.ids), &batch.mask)?;
        Ok(AttentionMap::of_tokens(&self.data.encoder.tokenizer, &item.ids, layers))
    }

    /// The probabilities of the classes for each item.
    fn probabilities(&self, model: &Classifier, items: &[Item]) -> Result<Vec<Vec<f64>>> {
        probabilities(&logits(model, &self.batch_of(items)?, Mode::Eval)?)
    }

    /// The most frequent class in training; the first of equals.
    fn majority(&self) -> u32 {
        let mut counts = vec![0_u32; self.labels().names().len()];
        for item in &self.data.train {
            counts[item.class as usize] += 1;
        }
        let classes = (0..counts.len()).rev();
        classes.max_by_key(|&class| counts[class]).unwrap_or(0) as u32
    }

    fn batch_of(&self, items: &[Item]) -> Result<Batch> {
        let rows: Vec<Vec<u32>> = items.iter().map(|item| item.ids.clone()).collect();
        let classes = items.iter().map(|item| item.class).collect();
        let pad = self.data.encoder.tokenizer.special().pad.unwrap_or(0);
        Batch::new(&rows, classes, pad, &self.device)
    }

    fn evaluation_batch(&self) -> usize {
        (EVALUATION_TOKENS / self.config.seq_len).clamp(1, 256)
    }
}

/// Logits `(batch, n_classes)` of the labels.
fn logits(model: &Classifier, batch: &Batch, mode: Mode) -> Result<Tensor> {
    Ok(model.forward(&Input::tokens(&batch.ids), &batch.mask, mode)?)
}

impl Task for Classify {
    type Model = Classifier;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Classifier> {
        Ok(Classifier::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let Data { train, validation, .. } = &self.data;
        match (split, &self.order) {
            (Split::Train, Some(order)) => {
                let places = order.examples(index * self.batch_size as u64, self.batch_size);
                let items: Vec<Item> = places.into_iter().map(|at| train[at].clone()).collect();
                self.batch_of(&items)
            }
            (Split::Train, None) => self.batch_of(&[]),
            (Split::Validation, _) => {
                let mut batches = validation.chunks(self.evaluation_batch());
                self.batch_of(batches.nth(index as usize).unwrap_or_default())
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.data.validation.chunks(self.evaluation_batch()).len() as u64
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Classifier::estimate(config, &self.model_spec())
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.n_tokens)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        batch.inputs()
    }

    fn loss(&self, model: &Classifier, batch: &Batch, mode: Mode) -> Result<Loss> {
        let smoothing = if mode == Mode::Eval { 0. } else { self.config.label_smoothing };
        batch.loss(&logits(model, batch, mode)?, smoothing)
    }

    fn attention_maps(&self, model: &Classifier) -> Result<Vec<AttentionMap>> {
        let first = self.data.validation.first();
        first.map_or(Ok(Vec::new()), |item| self.attention_maps_of(model, item))
    }
}

impl RegisteredTask for Classify {
    type Report = Report;

    fn sizes(&self) -> BTreeMap<String, u64> {
        let ClassifierSpec { vocab_size, seq_len, n_classes, .. } = self.model_spec();
        by_name([
            ("vocab_size", vocab_size as u64),
            ("seq_len", seq_len as u64),
            ("n_classes", n_classes as u64),
            ("n_train", self.data.train.len() as u64),
            ("n_validation", self.data.validation.len() as u64),
        ])
    }

    fn cost(&self, _: &Classifier, config: &ModelConfig, store: &ParamStore) -> Cost {
        Classifier::cost(config, &self.model_spec(), store)
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let mut files = self.data.encoder.tokenizer.files()?;
        files.push(self.labels().file()?);
        Ok(files)
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.files.clone()
    }

    fn attend(&self, model: &Classifier, text: &str) -> Result<SequenceMaps> {
        let maps = self.attention_maps_of(model, &self.item(text)?)?;
        Ok(SequenceMaps { sequence: json!({ "text": text }), maps })
    }
}
