//! Classes of texts or of pairs of texts, such as the topic of a sentence; several labels at once; or a number.
//!
//! ```text
//! [CLS] a sunny walk to the harbour [SEP]                      →  "travel"
//! [CLS] the harbour is sunny [SEP] it rains in town [SEP]      →  "not_equivalent"
//! ```
//!
//! The texts and their labels come from a file. A run keeps the tokenizer and the labels: its model is used
//! without the texts.

mod annotate;
mod batch;
mod config;
mod data;
mod file;
mod linear;
mod loss;
mod remarks;
mod report;
mod split;
mod texts;
mod token_dropout;

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{Mode, ModelConfig, ParamStore};

pub use crate::inference::text_classifier::Text;
pub use crate::task::calibration::Calibration;
pub use annotate::annotated;
pub use batch::Batch;
pub use config::{Config, DataConfig};
pub use file::{Example, Label};
pub use loss::{ClassWeights, EffectiveConfig, FocalConfig, ListedConfig, LossConfig};
pub use split::SplitBy;
pub use texts::{BrokenRows, TableTexts, texts};

use crate::data::shown::on_one_line;
use crate::data::text::tokenizer::Specials;
use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::attention_map::AttentionMap;
use crate::inference::labels::{Classified, Labels, Objective};
use crate::inference::text_classifier::{MAX_TOKENS, TextClassifier};
use crate::task::context::TaskContext;
use crate::task::metrics::{Metrics, by_name};
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample, likeliest};
use crate::task::scores::Frequencies;
use crate::task::text::embedding_rows;
use crate::task::{
    Evaluated, Imitation, Inputs, Loss, Reading, RegisteredTask, RowMeanings, Task, TaskKind,
    TaskSettings,
};
use data::{Data, Item, Target};
use token_dropout::TokenDropout;

/// The task: texts as token ids, with their targets.
#[derive(Debug)]
pub struct Classify {
    config: Config,
    data: Data,
    /// The order of the training texts.
    order: ShuffledOrder,
    /// How often each class, or each of several labels, occurs.
    frequencies: Frequencies,
    /// By label; `None` if all texts count as much.
    class_weights: Option<Vec<f32>>,
    token_dropout: Option<TokenDropout>,
    /// Rows of the token embedding.
    vocab_size: usize,
    batch_size: usize,
    /// The length that the attention of the model requires.
    required_len: Option<usize>,
    device: Device,
    /// Whether a trained model is tested.
    is_test: bool,
}

impl TaskKind for Config {
    type Task = Classify;

    fn build(&self, context: &TaskContext<'_>) -> Result<Classify> {
        let TaskContext { seed, batch_size, model, device, kept, test, .. } = *context;
        self.validate()?;
        if kept.is_none() {
            // Runs of versions that ignored these settings have them.
            model.refuse_vocabulary_output()?;
        }
        let required_len = model.required_len();
        let seq_len = longest(self, required_len);
        let data = if test.is_some() {
            Data::to_test(self, seq_len, seed, kept)?
        } else {
            Data::new(self, seq_len, seed, kept)?
        };
        let vocab_size = embedding_rows(&data.encoder.tokenizer, self.vocab_size)?;
        let order = ShuffledOrder::new(seed, data.train.len());
        let classes = |items: &[Item]| -> Vec<usize> {
            items.iter().flat_map(|item| item.target.classes()).collect()
        };
        let n_classes = data.labels.names().len();
        let frequencies =
            Frequencies::new(n_classes, classes(&data.train), classes(&data.validation));
        if let (Some(aim), Objective::Classes, 3..) = (&self.threshold, self.objective, n_classes) {
            let message = format!(
                "`task.threshold` = \"{aim}\" decides between two classes, and there are {n_classes}"
            );
            return Err(Error::config(["task.threshold"], message));
        }
        let class_weights =
            self.class_weights.by_label(&data.labels, &frequencies.trained, data.train.len())?;
        let token_dropout = TokenDropout::new(self.token_dropout, seed);
        let (config, device) = (self.clone(), device.clone());
        Ok(Classify {
            config,
            data,
            order,
            frequencies,
            class_weights,
            token_dropout,
            vocab_size,
            batch_size,
            required_len,
            device,
            is_test: test.is_some(),
        })
    }
}

/// The most tokens of a text.
fn longest(config: &Config, required_len: Option<usize>) -> usize {
    required_len.map_or(config.seq_len, |len| len.min(config.seq_len))
}

impl Classify {
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

    /// The labels that `model`, which is built without gradients, gives to texts, in their order.
    ///
    /// # Errors
    /// If a text is empty, or if the scores of the model are not finite.
    pub fn classify(&self, model: &Classifier, texts: &[Text]) -> Result<Vec<Classified>> {
        self.classifier(model).classify(texts)
    }

    /// `model` with what reads its texts.
    fn classifier<'a>(&'a self, model: &'a Classifier) -> TextClassifier<'a> {
        let Self { data: Data { encoder, labels, .. }, required_len, device, .. } = self;
        TextClassifier { model, encoder, labels, required_len: *required_len, device }
    }

    /// A text with the labels that the model gives it.
    fn sample(&self, model: &Classifier, Item { tokens, target }: &Item) -> Result<Sample> {
        let names = self.labels().names();
        let scores = self.classifier(model).scores(&[tokens])?.into_iter().flatten();
        let scores: Vec<(String, f64)> = names.iter().cloned().zip(scores).collect();
        let is_right = match target {
            Target::Labels(flags) => {
                Some(scores.iter().zip(flags).all(|((_, score), &has)| (*score > 0.5) == has))
            }
            Target::Class(_) | Target::Number(_) => None,
        };
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
            is_right,
            ..Sample::default()
        })
    }

    fn batch_of(&self, items: &[Item]) -> Result<Batch> {
        let width = self.required_len.unwrap_or(0);
        Batch::new(items, self.labels(), width, self.data.encoder.pad(), &self.device)
    }

    fn evaluation_batch(&self) -> usize {
        (MAX_TOKENS / self.config.seq_len).clamp(1, 256)
    }
}

/// Logits `(batch, n_classes)` of the labels.
fn logits(model: &Classifier, batch: &Batch, mode: Mode) -> Result<Tensor> {
    Ok(model.forward(&batch.rows.input(), &batch.rows.mask, mode)?)
}

impl Imitation<Classifier, Batch> for Classify {
    fn outputs(&self, model: &Classifier, batch: &Batch, mode: Mode) -> Result<Option<Tensor>> {
        Ok(Some(logits(model, batch, mode)?.to_dtype(DType::F32)?))
    }

    fn loss_by_labels(&self, outputs: &Tensor, batch: &Batch) -> Result<Loss> {
        batch.loss(outputs, self.config.label_smoothing)
    }

    fn transformer<'a>(&self, model: &'a Classifier) -> &'a Transformer {
        model.transformer()
    }

    fn readings<'a>(&self, batch: &'a Batch, mode: Mode) -> Vec<Reading<'a>> {
        vec![Reading { input: batch.rows.input(), mask: batch.rows.mask.clone(), mode }]
    }
}

impl Task for Classify {
    type Model = Classifier;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Classifier> {
        Ok(Classifier::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let Data { train, validation, .. } = &self.data;
        match split {
            Split::Train => {
                let first = index * self.batch_size as u64;
                let places = self.order.examples(first, self.batch_size);
                let mut items: Vec<Item> = places.into_iter().map(|at| train[at].clone()).collect();
                if let Some(dropout) = self.token_dropout {
                    let tokenizer = &self.data.encoder.tokenizer;
                    for (example, item) in (first..).zip(&mut items) {
                        dropout.apply(&mut item.tokens, |id| tokenizer.is_special(id), example);
                    }
                }
                let batch = self.batch_of(&items)?;
                match (&self.config.loss, &self.class_weights) {
                    (LossConfig::Focal(FocalConfig { gamma }), weights) => {
                        let equal = || vec![1.; self.labels().names().len()];
                        let by_class = weights.clone().unwrap_or_else(equal);
                        batch.focal(&items, &by_class, *gamma)
                    }
                    (LossConfig::CrossEntropy, Some(by_label)) => {
                        batch.weighted(&items, by_label, self.config.label_smoothing)
                    }
                    (LossConfig::CrossEntropy, None) => Ok(batch),
                }
            }
            Split::Validation => {
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

    fn row_meanings(&self, _config: &ModelConfig) -> RowMeanings<'_> {
        RowMeanings {
            tokenizer: Some(&self.data.encoder.tokenizer),
            labels: Some(self.labels()),
            ..RowMeanings::default()
        }
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

    fn imitation(&self) -> Option<&dyn Imitation<Classifier, Batch>> {
        self.config.imitated().map(|_| self as _)
    }

    fn attention_maps(&self, model: &Classifier) -> Result<Vec<AttentionMap>> {
        let first = self.data.validation.first();
        first.map_or(Ok(Vec::new()), |item| self.classifier(model).attention_maps(&item.tokens))
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
        for (name, value) in report::of_outputs(self, outputs) {
            metrics.add(name, value, 1.);
        }
        metrics
    }

    fn remark(&self, metrics: &BTreeMap<String, f64>) -> Option<String> {
        report::remark(self, metrics)
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

    fn notes(&self) -> Vec<String> {
        let of_training = self.class_weights.iter().filter(|_| !self.is_test);
        let weights = of_training.map(|weights| {
            let labels = self.labels().names().iter().zip(weights);
            let labels =
                labels.map(|(label, weight)| format!("\"{}\" {weight:.4}", on_one_line(label)));
            format!("class weights: {}", labels.collect::<Vec<_>>().join(", "))
        });
        self.data.remarks.iter().cloned().chain(weights).collect()
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let mut files = self.data.encoder.tokenizer.files()?;
        files.push(self.labels().file()?);
        Ok(files)
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.files.clone()
    }
}
