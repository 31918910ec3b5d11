//! Classes of texts or of pairs of texts, such as the topic of a sentence; several labels at once; or a number.
//!
//! ```text
//! [CLS] a sunny walk to the harbour [SEP]                      →  "travel"
//! [CLS] the harbour is sunny [SEP] it rains in town [SEP]      →  "not_equivalent"
//! ```
//!
//! The texts and their labels come from a file. A run keeps the tokenizer and the labels: its model is used
//! without the texts.

mod batch;
mod config;
mod data;
mod encoder;
mod file;
mod report;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::json;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use batch::Batch;
pub use config::{Config, DataConfig};
pub use file::{Example, Label, Text};

use crate::data::text::tokenizer::{Specials, Tokenizer};
use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::batches::Batching;
use crate::inference::{check_finite, probabilities};
use crate::task::attention_map::{AttentionMap, SequenceMaps};
use crate::task::context::TaskContext;
use crate::task::labels::{Classified, Labels, Objective};
use crate::task::metrics::{Metrics, by_name};
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::text::embedding_rows;
use crate::task::{Evaluated, Inputs, Loss, RegisteredTask, Task, TaskKind, TaskSettings};
use batch::{Rows, values};
use data::{Data, Item, Target};
use encoder::{Encoder, Tokens};

/// Tokens in one forward pass of an evaluation.
const EVALUATION_TOKENS: usize = 1 << 14;

/// The task: texts as token ids, with their targets.
#[derive(Debug)]
pub struct Classify {
    config: Config,
    data: Data,
    /// The order of the training texts; `None` without data.
    order: Option<ShuffledOrder>,
    /// Rows of the token embedding.
    vocab_size: usize,
    batch_size: usize,
    /// The length that the attention of the model requires.
    only_len: Option<usize>,
    device: Device,
}

impl TaskKind for Config {
    type Task = Classify;

    fn build(&self, context: &TaskContext<'_>) -> Result<Classify> {
        let TaskContext { seed, batch_size, model, device, kept, inference_only, .. } = *context;
        if let (Some(run), true) = (kept, inference_only) {
            let (tokenizer, labels) = (Tokenizer::from_folder(run)?, Labels::read(run)?);
            return Classify::without_data(self, tokenizer, labels, model, device);
        }
        self.validate()?;
        if kept.is_none() {
            // Runs of versions that ignored these settings have them.
            model.refuse_vocabulary_output()?;
        }
        let only_len = model.only_len();
        let data = Data::new(self, longest(self, only_len), seed, kept)?;
        let vocab_size = embedding_rows(&data.encoder.tokenizer, self.vocab_size)?;
        let order = Some(ShuffledOrder::new(seed, data.train.len()));
        let (config, device) = (self.clone(), device.clone());
        Ok(Classify { config, data, order, vocab_size, batch_size, only_len, device })
    }
}

/// The most tokens of a text.
fn longest(config: &Config, only_len: Option<usize>) -> usize {
    only_len.map_or(config.seq_len, |len| len.min(config.seq_len))
}

impl Classify {
    /// The task without texts, for this `model`.
    pub(crate) fn without_data(
        config: &Config,
        tokenizer: Tokenizer,
        labels: Labels,
        model: &ModelConfig,
        device: &Device,
    ) -> Result<Self> {
        let vocab_size = config.vocab_size.unwrap_or(tokenizer.vocab_size());
        let only_len = model.only_len();
        let encoder = Encoder::new(tokenizer, longest(config, only_len), config.n_token_types)?;
        let (train, validation, files) = (Vec::new(), Vec::new(), Vec::new());
        let data = Data { train, validation, labels, encoder, files };
        let (config, device) = (config.clone(), device.clone());
        Ok(Self { config, data, order: None, vocab_size, batch_size: 1, only_len, device })
    }

    /// The labels in the order of the model's outputs.
    pub fn labels(&self) -> &Labels {
        &self.data.labels
    }

    /// The tokenizer of the texts.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.data.encoder.tokenizer
    }

    /// The number of tokens, special ones included, to which longer texts and pairs are truncated.
    pub fn max_seq_len(&self) -> usize {
        self.data.encoder.seq_len
    }

    /// The number of `texts` that have more tokens, and lose the rest.
    pub fn n_truncated(&self, texts: &[Text]) -> Result<usize> {
        let truncated = texts.iter().map(|text| self.data.encoder.truncates(text));
        let truncated = truncated.collect::<Result<Vec<bool>>>()?;
        Ok(truncated.into_iter().filter(|&is_truncated| is_truncated).count())
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

    /// The texts of a `.jsonl` or `.csv` file, in the fields of `[task.data]`.
    pub fn texts_of(&self, path: &Path) -> Result<Vec<Text>> {
        file::texts(path, &self.config.data)
    }

    /// The labels that `model` gives to texts, in their order: as the pipeline `text-classification` of `transformers`.
    ///
    /// # Errors
    /// If a text is empty, or if the scores of the model are not finite.
    pub fn classify(&self, model: &Classifier, texts: &[Text]) -> Result<Vec<Classified>> {
        let tokens = texts.iter().map(|text| self.tokens(text)).collect::<Result<Vec<_>>>()?;
        let lens: Vec<usize> = tokens.iter().map(|text| text.ids.len()).collect();
        let batching = match self.only_len {
            Some(_) => Batching::OneByOne,
            None => Batching::OneLength { max_positions: EVALUATION_TOKENS },
        };
        let (names, objective) = (self.labels().names(), self.labels().objective());
        let mut classified = vec![None; texts.len()];
        for batch in batching.batches(&lens) {
            let rows: Vec<_> = batch.iter().map(|&at| &tokens[at]).collect();
            let scores = self.scores(model, &self.rows(&rows)?)?;
            check_finite(scores.iter().flatten())?;
            for (at, scores) in batch.into_iter().zip(scores) {
                classified[at] = Some(Classified::new(names, objective, &scores));
            }
        }
        Ok(classified.into_iter().flatten().collect())
    }

    /// The tokens of a text that a user gives.
    fn tokens(&self, text: &Text) -> Result<Tokens> {
        let tokens = self.data.encoder.encode(text)?;
        if tokens.ids.is_empty() {
            return Err(Error::input("a text is empty: there is nothing to classify"));
        }
        Ok(tokens)
    }

    fn attention_maps_of(&self, model: &Classifier, tokens: &Tokens) -> Result<Vec<AttentionMap>> {
        let rows = self.rows(&[tokens])?;
        let layers = model.attention_maps(&rows.input(), &rows.mask)?;
        let (tokenizer, pad) = (&self.data.encoder.tokenizer, self.pad());
        let mut ids = Cow::Borrowed(&tokens.ids);
        if let Some(len) = self.only_len {
            ids.to_mut().resize(len, pad);
        }
        Ok(AttentionMap::of_tokens(tokenizer, &ids, layers))
    }

    /// The scores of the outputs for each row.
    fn scores(&self, model: &Classifier, rows: &Rows) -> Result<Vec<Vec<f64>>> {
        let logits = model.forward(&rows.input(), &rows.mask, Mode::Eval)?;
        let sigmoid = |x: f64| 1. / (1. + (-x).exp());
        Ok(match self.labels().objective() {
            Objective::Classes => probabilities(&logits)?,
            Objective::Labels => {
                let rows = values(&logits)?.into_iter();
                rows.map(|row| row.into_iter().map(sigmoid).collect()).collect()
            }
            Objective::Regression => values(&logits)?,
        })
    }

    /// A text with the labels that the model gives it.
    fn sample(&self, model: &Classifier, Item { tokens, target }: &Item) -> Result<Sample> {
        let names = self.labels().names();
        let scores = self.scores(model, &self.rows(&[tokens])?)?.into_iter().flatten();
        let scores: Vec<(String, f64)> = names.iter().cloned().zip(scores).collect();
        let of_flags = |flags: &[bool]| {
            names
                .iter()
                .zip(flags)
                .filter(|(_, has)| **has)
                .map(|(name, _)| name.clone())
                .collect::<Vec<_>>()
        };
        let (truth, is_number) = match target {
            Target::Class(class) => {
                (names.get(*class as usize).cloned().unwrap_or_default(), false)
            }
            Target::Labels(flags) => (of_flags(flags).join(", "), false),
            Target::Number(number) => (format!("{number:.3}"), true),
        };
        let number = scores.first().filter(|_| is_number).map(|(_, score)| format!("{score:.3}"));
        Ok(Sample {
            input: self.data.encoder.tokenizer.decode(&tokens.ids, Specials::Skip)?,
            truth: vec![truth],
            text: number,
            candidates: if is_number { Vec::new() } else { vec![likeliest(scores)] },
        })
    }

    fn rows(&self, tokens: &[&Tokens]) -> Result<Rows> {
        Rows::new(tokens, self.only_len.unwrap_or(0), self.pad(), &self.device)
    }

    fn batch_of(&self, items: &[Item]) -> Result<Batch> {
        let width = self.only_len.unwrap_or(0);
        Batch::new(items, self.labels(), width, self.pad(), &self.device)
    }

    fn pad(&self) -> u32 {
        self.data.encoder.tokenizer.special().pad.unwrap_or(0)
    }

    fn evaluation_batch(&self) -> usize {
        (EVALUATION_TOKENS / self.config.seq_len).clamp(1, 256)
    }
}

/// Logits `(batch, n_classes)` of the labels.
fn logits(model: &Classifier, batch: &Batch, mode: Mode) -> Result<Tensor> {
    Ok(model.forward(&batch.rows.input(), &batch.rows.mask, mode)?)
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
        Some(batch.n_tokens())
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
        first.map_or(Ok(Vec::new()), |item| self.attention_maps_of(model, &item.tokens))
    }

    fn samples(&self, model: &Classifier) -> Result<Vec<Sample>> {
        // Sorted by length: those of medium length.
        let validation = &self.data.validation;
        validation
            .iter()
            .skip(validation.len() / 2)
            .take(N_SAMPLES)
            .map(|item| self.sample(model, item))
            .collect()
    }

    fn evaluate_batch(&self, model: &Classifier, batch: &Batch) -> Result<Evaluated> {
        let logits = logits(model, batch, Mode::Eval)?;
        let measures = batch.loss(&logits, 0.)?.measures();
        Ok(Evaluated { measures, outputs: batch.predictions(&logits)? })
    }

    fn score(&self, outputs: &[f64]) -> Metrics {
        let mut metrics = Metrics::default();
        for (name, value) in report::of_outputs(&self.data.validation, self.labels(), outputs) {
            metrics.add(name, value, 1.);
        }
        metrics
    }
}

impl RegisteredTask for Classify {
    fn report(&self, model: &Classifier) -> Result<Report> {
        report::report(self, model)
    }

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
        let typed = Text { text: text.to_owned(), text_pair: None };
        let maps = self.attention_maps_of(model, &self.tokens(&typed)?)?;
        Ok(SequenceMaps { sequence: json!({ "text": text }), maps })
    }
}
