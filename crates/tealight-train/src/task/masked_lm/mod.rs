//! Masked language models (Devlin et al. 2019, <https://arxiv.org/abs/1810.04805>): some tokens of a text
//! are hidden, and guessed from all the others.
//!
//! ```text
//! loss = − Σ over hidden t  log P(x_t | the text with the hidden tokens masked)
//! ```
//!
//! Only hidden positions go through the output layer.

mod config;
mod report;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::Input;
use tealight_model::models::masked_lm::{self, MaskedLmSpec};
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::IGNORE_INDEX;
use tealight_ops::device::tensor_of;
use tealight_ops::linear_cross_entropy::Scored;

pub use config::Config;
pub use report::{Baseline, Example, Report, Weather};

use super::text::{Preparing, Settings, Texts, mask, readings};
use super::{Inputs, Loss, Reading, Reported, Split, Task};
use crate::config::RunConfig;
use crate::data::DataFile;
use crate::data::text::corpus::CorpusConfig;
use crate::data::text::diary::Diary;
use crate::data::text::masking::{Masked, Masking};
use crate::data::text::sequences::{Layout, Predicts, Rows, Sequence, Spec};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::inference::fill_mask::FillMask;
use crate::task::metrics::Measures;

/// The task: text as sequences of tokens, and what is hidden of them.
#[derive(Debug)]
pub struct MaskedLm {
    config: Config,
    texts: Texts,
    masking: Masking,
    diary: Option<Diary>,
    /// The model, which fill-mask needs to know.
    model: ModelConfig,
    batch_size: usize,
    /// Batches are filled up with positions of which nothing is to be guessed, so that most are of one shape.
    fills: bool,
    device: Device,
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// `(batch, seq_len)`
    ids: Tensor,
    mask: Mask,
    /// `(n)`: the places of what is hidden, in `batch · seq_len`.
    positions: Tensor,
    /// `(n)`: what is hidden there; [`IGNORE_INDEX`] where that is nothing.
    labels: Tensor,
    /// How much is hidden.
    n_masked: usize,
    n_tokens: u64,
}

impl MaskedLm {
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
                predicts: Predicts::Masked,
            },
            n_validation: config.n_validation,
            seed: run.seed,
        };
        let texts = Texts::new(&settings, preparing)?;
        texts.check_vocab_size(config.vocab_size)?;
        let diary = match &config.corpus {
            CorpusConfig::Diary(diary) => Some(Diary::new(diary, run.seed)?),
            CorpusConfig::Files(_) => None,
        };
        let task = Self {
            config: config.clone(),
            masking: Masking::new(&config.masking, &texts.tokenizer, run.seed)?,
            texts,
            diary,
            model: run.model.clone(),
            batch_size: run.training.batch_size,
            fills: run.training.records_passes() && device.is_cuda(),
            device: device.clone(),
        };
        task.check_masking()?;
        Ok(task)
    }

    /// Checks that there is anything to hide: text of which the tokenizer knows nothing is unknown tokens,
    /// which are special.
    fn check_masking(&self) -> Result<()> {
        let is_ordinary = |id: &u32| !self.tokenizer().is_special(*id);
        let has_ordinary = |sequence: Sequence| sequence.ids.iter().any(is_ordinary);
        let train = self.texts.train();
        let side = if !(0..train.n()).map(|number| train.at(number)).any(has_ordinary) {
            "to train on"
        } else if !self.texts.all_held_out().any(has_ordinary) {
            "that is held out"
        } else {
            return Ok(());
        };
        let message = format!(
            "no token of the text {side} can be masked: `task.tokenizer` makes nothing but special tokens \
             of it, such as unknown ones"
        );
        Err(Error::config(["task.tokenizer", "task.corpus"], message))
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.texts.tokenizer
    }

    /// The diaries that are learnt, if they are.
    pub fn diary(&self) -> Option<&Diary> {
        self.diary.as_ref()
    }

    /// What a model of this task is built for.
    pub fn model_spec(&self) -> MaskedLmSpec {
        MaskedLmSpec {
            vocab_size: self.config.vocab_size.unwrap_or(self.tokenizer().vocab_size()),
            n_token_types: self.config.n_token_types,
            pad_id: self.tokenizer().special().pad,
            seq_len: self.config.seq_len,
            packed: self.config.sequences == Layout::Packed,
        }
    }

    /// `model`, ready to fill masks.
    pub fn fill_mask<'a>(&'a self, model: &'a masked_lm::MaskedLm) -> FillMask<'a> {
        FillMask::new(model, &self.model, self.tokenizer(), &self.device)
    }

    fn readings_in(&self, model: &masked_lm::MaskedLm, sequence: Sequence) -> Result<Vec<Reading>> {
        let rows = self.rows(&[sequence]);
        let shape = (1, rows.seq_len);
        let input = Tensor::from_vec(rows.ids.clone(), shape, &self.device)?;
        let layers = model.maps(&Input::tokens(&input), &mask(&rows, &self.device)?)?;
        Ok(readings(self.tokenizer(), &rows.ids, layers))
    }

    /// The held-out labels, batch by batch.
    fn validation_labels(&self) -> impl Iterator<Item = u32> {
        (0..self.n_evaluation_batches()).flat_map(|index| self.held_out(index).1.labels)
    }

    fn rows(&self, sequences: &[Sequence]) -> Rows {
        let pad = self.tokenizer().special().pad.unwrap_or(0);
        Rows::of_len(sequences, pad, self.model.attention.only_len().unwrap_or(0))
    }

    fn held_out(&self, index: u64) -> (Rows, Masked) {
        let (first, sequences) = self.texts.held_out_batch(index);
        let rows = self.rows(&sequences);
        let masked = self.masking.evaluation(&rows, first);
        (rows, masked)
    }

    /// To how many positions a batch is filled up: four standard deviations above what is expected of this many
    /// tokens, which hardly any batch exceeds.
    fn filled(&self, n_tokens: usize, n_masked: usize) -> usize {
        let expected = self.config.masking.mlm_probability * n_tokens as f64;
        let enough = (expected + 4. * expected.sqrt()).ceil() as usize;
        n_masked.max(enough).next_multiple_of(16)
    }

    fn trained_on(&self, index: u64) -> (Rows, Masked) {
        let first = index * self.batch_size as u64;
        let places = first..first + self.batch_size as u64;
        let sequences = places.map(|place| self.texts.train().shuffled(place));
        let rows = self.rows(&sequences.collect::<Vec<_>>());
        let masked = self.masking.train(&rows, first);
        (rows, masked)
    }
}

impl Task for MaskedLm {
    type Model = masked_lm::MaskedLm;
    type Batch = Batch;

    fn build(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<masked_lm::MaskedLm> {
        Ok(masked_lm::MaskedLm::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let (rows, masked) = match split {
            Split::Train => self.trained_on(index),
            Split::Validation => self.held_out(index),
        };
        let Masked { ids, mut positions, labels } = masked;
        let (shape, n_masked) = ((rows.lens.len(), rows.seq_len), positions.len());
        let mut labels: Vec<i64> = labels.into_iter().map(i64::from).collect();
        let n = if self.fills && split == Split::Train {
            self.filled(ids.len(), n_masked)
        } else {
            n_masked
        };
        positions.resize(n, 0);
        labels.resize(n, IGNORE_INDEX);
        Ok(Batch {
            ids: tensor_of(ids, shape, &self.device)?,
            mask: mask(&rows, &self.device)?,
            positions: tensor_of(positions, n, &self.device)?,
            labels: tensor_of(labels, n, &self.device)?,
            n_masked,
            n_tokens: rows.n_tokens() as u64,
        })
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.texts.n_held_out_batches()
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let MaskedLmSpec { vocab_size, n_token_types, seq_len, .. } = self.model_spec();
        let sizes = [
            ("vocab_size", vocab_size as u64),
            ("n_token_types", n_token_types as u64),
            ("seq_len", seq_len as u64),
        ];
        let sizes = sizes.into_iter().chain(self.texts.sizes());
        sizes.map(|(name, size)| (name.to_owned(), size)).collect()
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        masked_lm::MaskedLm::estimate(config, &self.model_spec())
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.n_tokens)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        let Batch { ids, mask, positions, labels, n_masked, .. } = batch;
        let tensors = [ids, positions, labels].into_iter().chain(mask.tensors());
        Inputs { tensors: tensors.collect(), count: *n_masked }
    }

    fn loss(&self, model: &masked_lm::MaskedLm, batch: &Batch, mode: Mode) -> Result<Loss> {
        let Batch { ids, mask, positions, labels, n_masked, .. } = batch;
        if *n_masked == 0 {
            return Loss::nothing(&self.device);
        }
        let hidden = model.hidden(&Input::tokens(ids), mask, mode)?; // (batch, seq_len, d_model)
        let Scored { loss: sum, hits } = model.scored(&hidden, positions, labels)?;
        let count = *n_masked as f64;
        let mut others = Measures::default();
        others.add("accuracy", &hits, count);
        Ok(Loss { sum, count, others })
    }

    fn readings(&self, model: &masked_lm::MaskedLm) -> Result<Vec<Reading>> {
        self.readings_in(model, self.texts.held_out(0))
    }
}

impl Reported for MaskedLm {
    type Report = Report;

    fn report(&self, model: &masked_lm::MaskedLm) -> Result<Report> {
        Report::new(self, model)
    }

    fn metrics(report: &Report) -> BTreeMap<String, f64> {
        report.metrics()
    }

    fn cost(&self, _: &masked_lm::MaskedLm, config: &ModelConfig, store: &ParamStore) -> Cost {
        masked_lm::MaskedLm::cost(config, &self.model_spec(), store)
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
