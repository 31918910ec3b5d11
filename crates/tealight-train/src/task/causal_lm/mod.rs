//! Causal language models (Radford et al. 2019): each token of a text is guessed from those before it.
//!
//! ```text
//! loss = − Σ_t log P(x_{t+1} | x_1 … x_t)
//! ```

mod config;
mod report;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::models::causal_lm::{self, CausalLmSpec};
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::IGNORE_INDEX;
use tealight_ops::device::tensor_of;
use tealight_ops::linear_cross_entropy::Scored;

pub use config::Config;
pub use report::Report;

use super::text::{Preparing, Settings, Texts, mask, readings};
use super::{Inputs, Loss, Reading, Reported, Split, Task};
use crate::config::RunConfig;
use crate::data::DataFile;
use crate::data::text::sequences::{Layout, Predicts, Rows, Sequence, Spec};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::inference::continuation::Continuer;
use crate::task::metrics::Measures;

/// The task: text as sequences of tokens.
#[derive(Debug)]
pub struct CausalLm {
    config: Config,
    texts: Texts,
    batch_size: usize,
    device: Device,
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// `(batch, seq_len)`
    ids: Tensor,
    mask: Mask,
    /// `(batch · seq_len)`: the token after each, [`IGNORE_INDEX`] where there is none.
    labels: Tensor,
    /// Labels that are not ignored.
    n_labels: usize,
}

impl CausalLm {
    /// Reads the text that `config`, the task of `run`, describes.
    pub fn new(
        config: &Config,
        run: &RunConfig,
        device: &Device,
        preparing: Preparing<'_>,
    ) -> Result<Self> {
        config.validate()?;
        let settings = Settings {
            corpus: &config.corpus,
            tokenizer: &config.tokenizer,
            cache: config.cache.as_deref(),
            spec: Spec {
                layout: config.sequences,
                seq_len: config.seq_len,
                predicts: Predicts::Next,
            },
            n_validation: config.n_validation,
            seed: run.seed,
        };
        let texts = Texts::new(&settings, preparing)?;
        texts.check_vocab_size(config.vocab_size)?;
        let (batch_size, device) = (run.training.batch_size, device.clone());
        Ok(Self { config: config.clone(), texts, batch_size, device })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.texts.tokenizer
    }

    /// What a model of this task is built for.
    pub fn model_spec(&self) -> CausalLmSpec {
        CausalLmSpec {
            vocab_size: self.config.vocab_size.unwrap_or(self.tokenizer().vocab_size()),
            seq_len: self.config.seq_len,
            packed: self.config.sequences == Layout::Packed,
        }
    }

    /// `model`, ready to continue texts.
    pub fn continuer<'a>(&'a self, model: &'a causal_lm::CausalLm) -> Continuer<'a> {
        Continuer { model, tokenizer: self.tokenizer(), device: &self.device }
    }

    /// Sequences of one more token than is read.
    fn cut(&self, sequences: &[Sequence]) -> Result<Batch> {
        let inputs: Vec<Sequence> = sequences.iter().map(without_last).collect();
        let pad = self.tokenizer().special().pad.unwrap_or(0);
        let rows = Rows::new(&inputs, pad);
        let labels: Vec<Vec<i64>> = sequences.iter().map(successors).collect();
        let is_label = |label: &&i64| **label != IGNORE_INDEX;
        let n_labels = labels.iter().flatten().filter(is_label).count();
        let filled = labels.iter().flat_map(|row| {
            let filler = std::iter::repeat_n(IGNORE_INDEX, rows.seq_len - row.len());
            row.iter().copied().chain(filler)
        });
        let filled: Vec<i64> = filled.collect();
        let n_positions = filled.len();
        Ok(Batch {
            labels: tensor_of(filled, n_positions, &self.device)?,
            mask: mask(&rows, &self.device)?,
            n_labels,
            ids: tensor_of(rows.ids, (sequences.len(), rows.seq_len), &self.device)?,
        })
    }
}

/// What is read: all but the last token.
fn without_last(sequence: &Sequence) -> Sequence {
    let n = sequence.ids.len().saturating_sub(1);
    let segments = sequence.segments.as_ref().map(|segments| segments[..n].to_vec());
    Sequence { ids: sequence.ids[..n].to_vec(), segments }
}

/// What follows each token that is read; nothing where the next one belongs to another piece.
fn successors(sequence: &Sequence) -> Vec<i64> {
    let goes_on = |at: usize| sequence.segments.as_ref().is_none_or(|of| of[at] == of[at - 1]);
    let label = |at: usize| if goes_on(at) { i64::from(sequence.ids[at]) } else { IGNORE_INDEX };
    (1..sequence.ids.len()).map(label).collect()
}

impl Task for CausalLm {
    type Model = causal_lm::CausalLm;
    type Batch = Batch;

    fn build(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<causal_lm::CausalLm> {
        Ok(causal_lm::CausalLm::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let sequences: Vec<Sequence> = match split {
            Split::Train => {
                let first = index * self.batch_size as u64;
                let places = first..first + self.batch_size as u64;
                places.map(|place| self.texts.train().anywhere(place)).collect()
            }
            Split::Validation => self.texts.held_out_batch(index).1,
        };
        self.cut(&sequences)
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.texts.n_held_out_batches()
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let CausalLmSpec { vocab_size, seq_len, .. } = self.model_spec();
        let sizes = [("vocab_size", vocab_size as u64), ("seq_len", seq_len as u64)];
        let sizes = sizes.into_iter().chain(self.texts.sizes());
        sizes.map(|(name, size)| (name.to_owned(), size)).collect()
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        causal_lm::CausalLm::estimate(config, &self.model_spec())
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.n_labels as u64)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        let Batch { ids, mask, labels, n_labels } = batch;
        Inputs {
            tensors: [ids, labels].into_iter().chain(mask.tensors()).collect(),
            count: *n_labels,
        }
    }

    fn loss(&self, model: &causal_lm::CausalLm, batch: &Batch, mode: Mode) -> Result<Loss> {
        let Batch { ids, mask, labels, n_labels } = batch;
        if *n_labels == 0 {
            return Loss::nothing(&self.device);
        }
        let hidden = model.hidden(ids, mask, mode)?; // (batch, seq_len, d_model)
        let Scored { loss: sum, hits } = model.scored(&hidden, labels, 0.)?;
        let count = *n_labels as f64;
        let mut others = Measures::default();
        others.add("accuracy", &hits, count);
        Ok(Loss { sum, count, others })
    }

    fn readings(&self, model: &causal_lm::CausalLm) -> Result<Vec<Reading>> {
        let Batch { ids, mask, .. } = self.cut(&[self.texts.held_out(0)])?;
        let tokens: Vec<u32> = ids.flatten_all()?.to_vec1()?;
        Ok(readings(self.tokenizer(), &tokens, model.maps(&ids, &mask)?))
    }
}

impl Reported for CausalLm {
    type Report = Report;

    fn report(&self, model: &causal_lm::CausalLm) -> Result<Report> {
        Report::new(self, model)
    }

    fn metrics(report: &Report) -> BTreeMap<String, f64> {
        let Report { loss, perplexity, bits_per_byte, accuracy, .. } = *report;
        let metrics = [
            ("loss", loss),
            ("perplexity", perplexity),
            ("bits_per_byte", bits_per_byte),
            ("accuracy", accuracy),
        ];
        BTreeMap::from(metrics.map(|(name, value)| (name.to_owned(), value)))
    }

    fn cost(&self, _: &causal_lm::CausalLm, config: &ModelConfig, store: &ParamStore) -> Cost {
        causal_lm::CausalLm::cost(config, &self.model_spec(), store)
    }

    fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        self.texts.files()
    }

    fn data(&self) -> Vec<DataFile> {
        self.texts.data().to_vec()
    }
}

#[cfg(test)]
mod tests;
