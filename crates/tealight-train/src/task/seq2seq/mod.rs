//! Sequences to sequences: the model reads a source and writes a target, token by token.
//!
//! ```text
//! encoder input       x₁ … x_n <end>
//! decoder input       <begin> y₁ … y_m                      (teacher forcing)
//! labels              y₁ … y_m <end>
//! ```
//!
//! Shorter sequences of a batch are padded; padding is masked and carries no loss.

mod config;
mod data;
mod pairs;
mod report;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::generation::Strategy;
use tealight_model::models::seq2seq::{Seq2Seq as Model, Seq2SeqSpec, Tokens};
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::linear_cross_entropy::Scored;

pub use crate::inference::symbols::{Level, Vocabulary};
pub use config::{Config, SourceConfig};
pub use pairs::Pair;
pub use pairs::file::FileConfig;
pub use pairs::symbols::{Reverse, Sort};

use crate::data::{DataFile, Split, padded};
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::or_default_if_not_finite;
use crate::inference::symbols::SymbolTranslator;
use crate::inference::symbols::vocabulary::{BEGIN, END, PAD};
use crate::task::batch::token_labels;
use crate::task::context::TaskContext;
use crate::task::metrics::{Metrics, by_name};
use crate::task::report::Report;
use crate::task::sample::{N_SAMPLES, Sample};
use crate::task::{Inputs, Loss, RegisteredTask, Task, TaskKind, TaskSettings};
use data::{Data, Training};

/// The task: pairs of sequences and their vocabulary.
#[derive(Debug)]
pub struct Seq2Seq {
    config: Config,
    data: Data,
    vocabulary: Vocabulary,
    /// The most tokens of a source and of a target, without the marks at their ends.
    max_lens: (usize, usize),
    batch_size: usize,
    device: Device,
    /// Whether a trained model is tested.
    is_test: bool,
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    source: Tensor,
    source_mask: Mask,
    target: Tensor,
    target_mask: Mask,
    /// `(batch · target_len)`; padding is ignored.
    labels: Tensor,
    /// Labels without padding.
    n_labels: usize,
}

impl TaskKind for Config {
    type Task = Seq2Seq;

    fn build(&self, context: &TaskContext<'_>) -> Result<Seq2Seq> {
        self.validate()?;
        let TaskContext { seed, batch_size, device, kept, test, .. } = *context;
        let (data, vocabulary) = match (test, kept) {
            (Some(path), Some(run)) => {
                let vocabulary = Vocabulary::read(run)?;
                (Data::to_test(self, path, &vocabulary)?, vocabulary)
            }
            _ => Data::new(self, seed)?,
        };
        let (config, device) = (self.clone(), device.clone());
        let max_lens = self.source.max_lens();
        let is_test = test.is_some();
        Ok(Seq2Seq { config, data, vocabulary, max_lens, batch_size, device, is_test })
    }
}

impl Seq2Seq {
    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> Seq2SeqSpec {
        let (source_len, target_len) = self.max_lens;
        // With the end of the source, and the beginning of the target.
        let (source_len, target_len) = (source_len + 1, target_len + 1);
        Seq2SeqSpec { vocab_size: self.vocabulary.size(), source_len, target_len }
    }

    /// `model` with the vocabulary of its sources and targets.
    fn translator<'a>(&'a self, model: &'a Model) -> SymbolTranslator<'a> {
        let (vocabulary, device) = (&self.vocabulary, &self.device);
        SymbolTranslator { model, spec: self.model_spec(), vocabulary, device }
    }

    /// The output for each source of `pairs`, by greedy decoding; none if the outputs of the model are not finite.
    fn outputs(&self, model: &Model, pairs: &[Pair]) -> Result<Vec<String>> {
        let sources: Vec<&str> = pairs.iter().map(|pair| pair.source.as_str()).collect();
        let written = self.translator(model).translate(&sources, &Strategy::Greedy, None);
        let written = or_default_if_not_finite(written)?;
        Ok(written.into_iter().flatten().map(|output| output.text).collect())
    }

    /// Pairs in one forward pass of an evaluation: 256, or fewer if they are longer than 64 tokens.
    fn evaluation_batch(&self) -> usize {
        (256 * 64 * 64 / self.seq_len().pow(2)).clamp(1, 256)
    }

    fn batch_of(&self, pairs: &[Pair]) -> Result<Batch> {
        let ids = |text: &str| self.vocabulary.encode(text);
        let (mut sources, mut inputs, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for Pair { source, target } in pairs {
            let target = ids(target)?;
            sources.push([ids(source)?, vec![END]].concat());
            inputs.push([&[BEGIN], &target[..]].concat());
            labels.push(target.into_iter().chain([END]).map(i64::from).collect::<Vec<_>>());
        }
        let (source, source_mask) = padded(&sources, PAD, &self.device)?;
        let (target, target_mask) = padded(&inputs, PAD, &self.device)?;
        let (_batch, target_len) = target.dims2()?;
        let n_labels = labels.iter().map(Vec::len).sum();
        let labels = token_labels(&labels, target_len, &self.device)?;
        Ok(Batch { source, source_mask, target, target_mask, labels, n_labels })
    }
}

impl Task for Seq2Seq {
    type Model = Model;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Model> {
        Ok(Model::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        match split {
            Split::Train => self.batch_of(&self.data.train.pairs(index, self.batch_size)?),
            Split::Validation => {
                let validation = &self.data.validation;
                let mut batches = validation.chunks(self.evaluation_batch());
                self.batch_of(batches.nth(index as usize).unwrap_or_default())
            }
        }
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.data.validation.chunks(self.evaluation_batch()).len() as u64
    }

    fn seq_len(&self) -> usize {
        let Seq2SeqSpec { source_len, target_len, .. } = self.model_spec();
        source_len.max(target_len)
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Model::estimate(config, &self.model_spec())
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        let Batch { source, source_mask, target, target_mask, labels, n_labels } = batch;
        let masks = source_mask.tensors().chain(target_mask.tensors());
        Inputs {
            tensors: [source, target, labels].into_iter().chain(masks).collect(),
            count: *n_labels as f64,
        }
    }

    fn loss(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Loss> {
        let Batch { source, source_mask, target, target_mask, labels, n_labels } = batch;
        let source = Tokens { ids: source, mask: source_mask };
        let target = Tokens { ids: target, mask: target_mask };
        let hidden = model.hidden(source, target, mode)?; // (batch, target_len, d_model)
        let smoothing = if mode == Mode::Eval { 0. } else { self.config.label_smoothing };
        let Scored { loss: sum, hits } = model.cross_entropy(&hidden, labels, smoothing)?;
        Ok(Loss::with_hits(sum, *n_labels, "token_accuracy", &hits))
    }

    fn attention_maps(&self, model: &Model) -> Result<Vec<AttentionMap>> {
        let first = self.data.validation.first();
        first.map_or(Ok(Vec::new()), |pair| {
            or_default_if_not_finite(self.translator(model).attention_maps(&pair.source))
        })
    }

    fn samples(&self, model: &Model) -> Result<Vec<Sample>> {
        let pairs = &self.data.validation[..self.data.validation.len().min(N_SAMPLES)];
        let sample = |(Pair { source, target }, output): (&Pair, String)| Sample {
            input: source.clone(),
            truth: vec![target.clone()],
            text: Some(output),
            ..Sample::default()
        };
        Ok(pairs.iter().zip(self.outputs(model, pairs)?).map(sample).collect())
    }

    /// `exact_match` of the first `n_decoded` sources.
    fn measure(&self, model: &Model) -> Result<Metrics> {
        let n = self.config.n_decoded.min(self.data.validation.len());
        let pairs = &self.data.validation[..n];
        let outputs = self.outputs(model, pairs)?;
        let n_right =
            pairs.iter().zip(outputs).filter(|(pair, output)| pair.target == *output).count();
        let mut metrics = Metrics::default();
        metrics.add("exact_match", n_right as f64, n as f64);
        Ok(metrics)
    }
}

impl RegisteredTask for Seq2Seq {
    fn report(&self, model: &Model) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let Seq2SeqSpec { vocab_size, source_len, target_len } = self.model_spec();
        let n_train = match &self.data.train {
            Training::Fixed { pairs, .. } => Some(("n_train", pairs.len() as u64)),
            Training::Drawn { .. } => None,
        };
        let sizes = [
            ("vocab_size", vocab_size as u64),
            ("source_len", source_len as u64),
            ("target_len", target_len as u64),
            ("n_validation", self.data.validation.len() as u64),
        ];
        by_name(sizes.into_iter().chain(n_train))
    }

    fn cost(&self, _: &Model, config: &ModelConfig, store: &ParamStore) -> Cost {
        Model::cost(config, &self.model_spec(), store)
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(vec![self.vocabulary.file()?])
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.data.file.iter().cloned().collect()
    }

    fn notes(&self) -> Vec<String> {
        self.data.notes.clone()
    }
}
