//! Tags of words: names of persons and places, parts of speech.
//!
//! ```text
//! [CLS] Anna   Mül  ##ler  lives  in  Kö  ##ln   [SEP]
//!       B-PER  I-PER  –    O      O   B-LOC  –              the first token of a word has its tag
//! ```
//!
//! Sentences that are longer than the model reads are read in pieces, so that no word is left out. A run keeps the
//! tokenizer and the tags: its model is used without the sentences.

mod batch;
mod config;
mod data;
mod remarks;
mod report;
mod rows;
mod scores;
mod splits;

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::models::tagger::{Tagger, TaggerSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use batch::Batch;
pub use config::{Config, DataConfig, Generated, SubWords};

use crate::data::text::tokenizer::Frame;
use crate::data::{BucketedOrder, DataFile, Split};
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::labels::Labels;
use crate::inference::tagger::WordTagger;
use crate::inference::text_classifier::MAX_TOKENS;
use crate::task::context::TaskContext;
use crate::task::metrics::{Metrics, by_name};
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample};
use crate::task::text::embedding_rows;
use crate::task::{
    Evaluated, Imitation, Inputs, Loss, Reading, RegisteredTask, RowMeanings, Task, TaskKind,
    TaskSettings,
};
use data::Data;
use rows::Row;

/// The task: sentences as token ids, with the tags of their words.
#[derive(Debug)]
pub struct Tag {
    config: Config,
    data: Data,
    frame: Frame,
    /// The order of the training rows.
    order: BucketedOrder,
    /// By tag; `None` if all words count as much.
    class_weights: Option<Vec<f32>>,
    /// Rows of the token embedding.
    vocab_size: usize,
    /// The most tokens of a row, special ones included.
    seq_len: usize,
    /// The length that the attention of the model requires.
    required_len: Option<usize>,
    device: Device,
    /// Whether a trained model is tested.
    is_test: bool,
}

impl TaskKind for Config {
    type Task = Tag;

    fn build(&self, context: &TaskContext<'_>) -> Result<Tag> {
        let TaskContext { seed, batch_size, model, device, kept, test, .. } = *context;
        self.validate()?;
        if kept.is_none() {
            model.refuse_vocabulary_output()?;
        }
        let required_len = model.required_len();
        let seq_len = required_len.map_or(self.seq_len, |len| len.min(self.seq_len));
        let data = if test.is_some() {
            Data::to_test(self, seq_len, seed, kept)?
        } else {
            Data::new(self, seq_len, seed, kept)?
        };
        let vocab_size = embedding_rows(&data.tokenizer, self.vocab_size)?;
        let lens = data.train.iter().map(|row| row.ids.len()).collect();
        let n_trained: u64 = data.frequencies.iter().sum();
        let class_weights =
            self.class_weights.by_label(&data.labels, &data.frequencies, n_trained as usize)?;
        Ok(Tag {
            config: self.clone(),
            frame: data.tokenizer.frame()?,
            order: BucketedOrder::new(seed, lens, batch_size),
            data,
            class_weights,
            vocab_size,
            seq_len,
            required_len,
            device: device.clone(),
            is_test: test.is_some(),
        })
    }
}

impl Tag {
    /// The tags in the order of the model's outputs.
    pub fn labels(&self) -> &Labels {
        &self.data.labels
    }

    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> TaggerSpec {
        TaggerSpec {
            vocab_size: self.vocab_size,
            n_token_types: self.config.n_token_types,
            pad_id: self.data.tokenizer.special().pad,
            seq_len: self.config.seq_len,
            n_classes: self.labels().names().len(),
        }
    }

    /// `model` with what reads its sentences.
    fn tagger<'a>(&'a self, model: &'a Tagger) -> WordTagger<'a> {
        WordTagger {
            model,
            tokenizer: &self.data.tokenizer,
            frame: &self.frame,
            labels: self.labels(),
            seq_len: self.seq_len,
            required_len: self.required_len,
            device: &self.device,
        }
    }

    fn batch_of(&self, rows: &[&Row]) -> Result<Batch> {
        let pad = self.data.tokenizer.special().pad.unwrap_or(0);
        Batch::new(rows, self.required_len.unwrap_or(0), pad, &self.device)
    }

    fn evaluation_batch(&self) -> usize {
        (MAX_TOKENS / self.seq_len).clamp(1, 256)
    }
}

impl Imitation<Tagger, Batch> for Tag {
    fn outputs(&self, model: &Tagger, batch: &Batch, mode: Mode) -> Result<Option<Tensor>> {
        let logits = batch.logits(model, mode)?;
        Ok(logits.map(|logits| logits.to_dtype(DType::F32)).transpose()?)
    }

    fn loss_by_labels(&self, outputs: &Tensor, batch: &Batch) -> Result<Loss> {
        batch.loss(Some(outputs), self.config.label_smoothing)
    }

    fn transformer<'a>(&self, model: &'a Tagger) -> &'a Transformer {
        model.transformer()
    }

    fn readings<'a>(&self, batch: &'a Batch, mode: Mode) -> Vec<Reading<'a>> {
        vec![Reading { input: batch.rows.input(), mask: batch.rows.mask.clone(), mode }]
    }
}

impl Task for Tag {
    type Model = Tagger;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Tagger> {
        Ok(Tagger::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let Data { train, validation, .. } = &self.data;
        match split {
            Split::Train => {
                let rows: Vec<&Row> =
                    self.order.batch(index).into_iter().map(|at| &train[at]).collect();
                let batch = self.batch_of(&rows)?;
                match &self.class_weights {
                    Some(by_tag) => batch.weighted(&rows, by_tag, self.config.label_smoothing),
                    None => Ok(batch),
                }
            }
            Split::Validation => {
                let mut batches = validation.chunks(self.evaluation_batch());
                let rows = batches.nth(index as usize).unwrap_or_default();
                self.batch_of(&rows.iter().collect::<Vec<_>>())
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.data.validation.chunks(self.evaluation_batch()).len() as u64
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn row_meanings(&self, _config: &ModelConfig) -> RowMeanings<'_> {
        RowMeanings {
            tokenizer: Some(&self.data.tokenizer),
            labels: Some(self.labels()),
            ..RowMeanings::default()
        }
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Tagger::estimate(config, &self.model_spec())
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.rows.n_tokens)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        batch.inputs()
    }

    fn loss(&self, model: &Tagger, batch: &Batch, mode: Mode) -> Result<Loss> {
        let smoothing = if mode == Mode::Eval { 0. } else { self.config.label_smoothing };
        batch.loss(batch.logits(model, mode)?.as_ref(), smoothing)
    }

    fn imitation(&self) -> Option<&dyn Imitation<Tagger, Batch>> {
        Some(self)
    }

    fn evaluate_batch(&self, model: &Tagger, batch: &Batch) -> Result<Evaluated> {
        report::evaluated(model, batch)
    }

    fn score(&self, outputs: &[f64]) -> Metrics {
        let tally = report::tally(&self.data, &self.data.predicted(outputs));
        let mut metrics = Metrics::default();
        for (name, value) in tally.scores(self.data.scheme) {
            metrics.add(name, value, 1.);
        }
        metrics
    }

    fn remark(&self, metrics: &BTreeMap<String, f64>) -> Option<String> {
        report::remark(self, metrics)
    }

    fn attention_maps(&self, model: &Tagger) -> Result<Vec<AttentionMap>> {
        let first = self.data.held_out.first();
        first.map_or(Ok(Vec::new()), |one| self.tagger(model).attention_maps(&one.text))
    }

    fn samples(&self, model: &Tagger) -> Result<Vec<Sample>> {
        let held_out = &self.data.held_out;
        let has_entities = |tags: &[String]| !self.data.scheme.entities(tags).is_empty();
        let chosen = held_out.iter().filter(|one| has_entities(&one.tags)).take(N_SAMPLES);
        let sample = |one| {
            let tags = report::tags_of(self, model, one)?;
            let [truth, found] =
                [&one.tags, &tags].map(|tags| report::spans(self.data.scheme, one, tags));
            Ok(Sample {
                input: one.text.clone(),
                is_right: Some(truth == found),
                truth: vec![truth],
                text: Some(found),
                ..Sample::default()
            })
        };
        chosen.map(sample).collect()
    }
}

impl RegisteredTask for Tag {
    fn report(&self, model: &Tagger) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let TaggerSpec { vocab_size, seq_len, n_classes, .. } = self.model_spec();
        by_name([
            ("vocab_size", vocab_size as u64),
            ("seq_len", seq_len as u64),
            ("n_classes", n_classes as u64),
            ("n_train", self.data.n_train as u64),
            ("n_validation", self.data.held_out.len() as u64),
        ])
    }

    fn cost(&self, _: &Tagger, config: &ModelConfig, store: &ParamStore) -> Cost {
        Tagger::cost(config, &self.model_spec(), store)
    }

    fn notes(&self) -> Vec<String> {
        let of_training = self.class_weights.iter().filter(|_| !self.is_test);
        let weights = of_training.map(|weights| {
            let labels = self.labels().names().iter().zip(weights);
            let labels = labels.map(|(label, weight)| format!("\"{label}\" {weight:.4}"));
            format!("class weights: {}", labels.collect::<Vec<_>>().join(", "))
        });
        self.data.remarks.iter().cloned().chain(weights).collect()
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let mut files = self.data.tokenizer.files()?;
        files.push(self.labels().file()?);
        Ok(files)
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.files.clone()
    }
}

#[cfg(test)]
mod tests;
