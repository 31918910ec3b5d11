//! Classes of texts: what a review thinks, what a sentence is about.
//!
//! ```text
//! [CLS] a sunny walk to the harbour [SEP]  →  "travel"
//! ```
//!
//! The texts and their labels come from a file. A run keeps the tokenizer and the labels, so that its model
//! is used without the texts.

mod config;
mod data;
mod file;
mod labels;
mod report;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::Input;
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use config::{Config, DataConfig};
pub use file::Example;
pub use labels::Labels;
pub use report::{LabelScore, Report};

use super::labelled::{Batch, probabilities};
use super::text::{check_vocab_size, readings};
use super::{Inputs, Loss, Reading, Reported, Split, Task};
use crate::config::RunConfig;
use crate::data::text::tokenizer::Tokenizer;
use crate::data::{DataFile, ShuffledOrder};
use crate::error::{Error, Result};
use data::{Data, Encoder, Item};

/// Tokens in one forward pass of an evaluation.
const EVALUATION_TOKENS: usize = 1 << 14;

/// The task: texts as tokens, and how a batch is made.
#[derive(Debug)]
pub struct Classify {
    config: Config,
    data: Data,
    order: Option<ShuffledOrder>,
    batch_size: usize,
    device: Device,
}

/// What a model makes of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Classified {
    /// The likeliest label.
    pub label: String,
    /// `(n_classes)`: the probability of each label, in their order.
    pub probabilities: Vec<f64>,
}

impl Classify {
    /// Reads the texts that `config`, the task of `run`, names; the directory of a run that was `kept` has
    /// their tokenizer already.
    pub fn new(
        config: &Config,
        run: &RunConfig,
        device: &Device,
        kept: Option<&Path>,
    ) -> Result<Self> {
        config.validate()?;
        let data = Data::new(config, run.seed, kept)?;
        check_vocab_size(&data.encoder.tokenizer, config.vocab_size)?;
        let order = Some(ShuffledOrder::new(run.seed, data.train.len()));
        let (batch_size, device) = (run.training.batch_size, device.clone());
        Ok(Self { config: config.clone(), data, order, batch_size, device })
    }

    /// The task without texts, for using a model with what its `run` has kept.
    pub fn without_data(config: &Config, run: &Path, device: &Device) -> Result<Self> {
        let tokenizer = Tokenizer::from_folder(run)?;
        let encoder = Encoder::new(tokenizer, config.seq_len)?;
        let data = Data::nothing(Labels::read(run)?, encoder);
        Ok(Self {
            config: config.clone(),
            data,
            order: None,
            batch_size: 1,
            device: device.clone(),
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The labels in the order of the model's outputs.
    pub fn labels(&self) -> &Labels {
        &self.data.labels
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.data.encoder.tokenizer
    }

    /// What a model of this task is built for.
    pub fn model_spec(&self) -> ClassifierSpec {
        let Config { seq_len, read_out, n_token_types, vocab_size, .. } = self.config;
        let tokenizer = self.tokenizer();
        ClassifierSpec {
            vocab_size: vocab_size.unwrap_or(tokenizer.vocab_size()),
            n_token_types,
            pad_id: tokenizer.special().pad,
            seq_len,
            n_classes: self.labels().names().len(),
            read_out,
        }
    }

    /// What `model` makes of texts, in their order.
    pub fn classify(&self, model: &Classifier, texts: &[String]) -> Result<Vec<Classified>> {
        let mut classified = Vec::with_capacity(texts.len());
        for texts in texts.chunks(self.evaluation_batch()) {
            let items = texts.iter().map(|text| self.item(text)).collect::<Result<Vec<_>>>()?;
            for probabilities in probabilities(&logits(model, &self.cut(&items)?, Mode::Eval)?)? {
                let label = self.labels().names()[report::likeliest(&probabilities)].clone();
                classified.push(Classified { label, probabilities });
            }
        }
        Ok(classified)
    }

    /// What the layers of `model` read in a text.
    pub fn readings_of(&self, model: &Classifier, text: &str) -> Result<Vec<Reading>> {
        self.readings_of_ids(model, &self.item(text)?.ids)
    }

    /// A text whose class is not known.
    fn item(&self, text: &str) -> Result<Item> {
        if text.trim().is_empty() {
            return Err(Error::config([], "a text is empty: there is nothing to classify"));
        }
        Ok(Item { ids: self.data.encoder.encode(text)?, class: 0 })
    }

    fn readings_of_ids(&self, model: &Classifier, ids: &[u32]) -> Result<Vec<Reading>> {
        let batch = self.cut(&[Item { ids: ids.to_vec(), class: 0 }])?;
        let layers = model.maps(&Input::tokens(&batch.ids), &batch.mask)?;
        Ok(readings(self.tokenizer(), ids, layers))
    }

    /// The class that is the most frequent in training; the first of equals.
    fn majority(&self) -> u32 {
        let mut counts = vec![0_u32; self.labels().names().len()];
        for item in &self.data.train {
            counts[item.class as usize] += 1;
        }
        let classes = (0..counts.len()).rev();
        classes.max_by_key(|&class| counts[class]).unwrap_or(0) as u32
    }

    fn cut(&self, items: &[Item]) -> Result<Batch> {
        let rows: Vec<Vec<u32>> = items.iter().map(|item| item.ids.clone()).collect();
        let classes = items.iter().map(|item| item.class).collect();
        let pad = self.tokenizer().special().pad.unwrap_or(0);
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

    fn build(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Classifier> {
        Ok(Classifier::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let Data { train, validation, .. } = &self.data;
        match (split, &self.order) {
            (Split::Train, Some(order)) => {
                let places = order.examples(index * self.batch_size as u64, self.batch_size);
                let items: Vec<Item> = places.into_iter().map(|at| train[at].clone()).collect();
                self.cut(&items)
            }
            (Split::Train, None) => self.cut(&[]),
            (Split::Validation, _) => {
                let n = self.evaluation_batch();
                let start = index as usize * n;
                self.cut(&validation[start..validation.len().min(start + n)])
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.data.validation.len().div_ceil(self.evaluation_batch()) as u64
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let ClassifierSpec { vocab_size, seq_len, n_classes, .. } = self.model_spec();
        let sizes = [
            ("vocab_size", vocab_size),
            ("seq_len", seq_len),
            ("n_classes", n_classes),
            ("n_train", self.data.train.len()),
            ("n_validation", self.data.validation.len()),
        ];
        sizes.into_iter().map(|(name, size)| (name.to_owned(), size as u64)).collect()
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Classifier::estimate(config, &self.model_spec())
    }

    fn batch_size(&self) -> usize {
        self.batch_size
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

    fn readings(&self, model: &Classifier) -> Result<Vec<Reading>> {
        match self.data.validation.first() {
            Some(item) => self.readings_of_ids(model, &item.ids),
            None => Ok(Vec::new()),
        }
    }
}

impl Reported for Classify {
    type Report = Report;

    fn report(&self, model: &Classifier) -> Result<Report> {
        Report::new(self, model)
    }

    fn metrics(report: &Report) -> BTreeMap<String, f64> {
        let Report { accuracy, macro_f1, nll, .. } = *report;
        let metrics = [("accuracy", accuracy), ("macro_f1", macro_f1), ("nll", nll)];
        BTreeMap::from(metrics.map(|(name, value)| (name.to_owned(), value)))
    }

    fn cost(&self, _: &Classifier, config: &ModelConfig, store: &ParamStore) -> Cost {
        Classifier::cost(config, &self.model_spec(), store)
    }

    fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let mut files = self.tokenizer().files()?;
        files.push((labels::FILE, self.labels().to_json()?));
        Ok(files)
    }

    fn data(&self) -> Vec<DataFile> {
        self.data.files.clone()
    }
}
