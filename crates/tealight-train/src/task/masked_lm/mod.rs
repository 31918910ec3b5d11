//! Masked language models (Devlin et al. 2019, <https://arxiv.org/abs/1810.04805>): some tokens of a text
//! are hidden, and predicted from all the others.
//!
//! ```text
//! loss = − Σ over hidden t  log P(x_t | the text with the hidden tokens masked)
//! ```
//!
//! Only hidden positions go through the last feed-forward network and the output layer.

mod config;
mod report;
mod samples;

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::Input;
use tealight_model::models::masked_lm::{MaskedLm as Model, MaskedLmSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::{IGNORE_INDEX, cross_entropy, hits};
use tealight_ops::device::tensor_of;
use tealight_ops::linear_cross_entropy::Scored;

pub use config::Config;

use crate::data::text::corpus::CorpusConfig;
use crate::data::text::diary::Diary;
use crate::data::text::masking::{Masked, Masking};
use crate::data::text::sequences::{Layout, Predicts, Rows, Sequence, Spec};
use crate::data::{DataFile, Split};
use crate::error::{Error, Result};
use crate::inference::attention_map::AttentionMap;
use crate::inference::fill_mask::MaskFiller;
use crate::task::context::TaskContext;
use crate::task::report::Report;
use crate::task::sample::Sample;
use crate::task::text::{TextSettings, Texts};
use crate::task::{
    Imitation, Inputs, Loss, Reading, RegisteredTask, RowMeanings, Task, TaskKind, TaskSettings,
};

/// The task: text as sequences of tokens, some of which are hidden.
#[derive(Debug)]
pub struct MaskedLm {
    config: Config,
    texts: Texts,
    masking: Masking,
    /// The corpus, if it consists of drawn diaries.
    diary: Option<Diary>,
    /// The model: fill-mask pads to the one length that some kinds of attention need.
    model: ModelConfig,
    /// Training batches are padded with ignored labels, so that most have one shape.
    fixed_shapes: bool,
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// `(batch, seq_len)`
    ids: Tensor,
    mask: Mask,
    /// `(n)`: the positions of the hidden tokens in `batch · seq_len`.
    positions: Tensor,
    /// `(n)`: the hidden tokens; [`IGNORE_INDEX`] is padding.
    labels: Tensor,
    /// Hidden tokens.
    n_masked: usize,
    n_tokens: u64,
}

impl TaskKind for Config {
    type Task = MaskedLm;

    fn build(&self, context: &TaskContext<'_>) -> Result<MaskedLm> {
        self.validate()?;
        let TaskContext { seed, model, fixed_shapes, .. } = *context;
        let settings = TextSettings {
            corpus: &self.corpus,
            tokenizer: &self.tokenizer,
            vocab_size: self.vocab_size,
            cache: self.cache.as_deref(),
            spec: Spec {
                layout: self.sequences,
                seq_len: self.seq_len,
                predicts: Predicts::Masked,
            },
            n_validation: self.n_validation,
        };
        let texts = Texts::new(settings, context)?;
        let diary = match &self.corpus {
            CorpusConfig::Diary(diary) => Some(Diary::new(diary, seed)?),
            CorpusConfig::Files(_) => None,
        };
        let masking = Masking::new(&self.masking, &texts.tokenizer, seed)?;
        let (config, model) = (self.clone(), model.clone());
        let task = MaskedLm { config, texts, masking, diary, model, fixed_shapes };
        task.check_masking()?;
        Ok(task)
    }
}

impl MaskedLm {
    /// Checks that both splits have tokens that can be masked. Special tokens cannot, and a tokenizer without
    /// the words of the text makes nothing but unknown ones, which are special.
    fn check_masking(&self) -> Result<()> {
        let is_ordinary = |id: &u32| !self.texts.tokenizer.is_special(*id);
        let has_ordinary = |sequence: Sequence| sequence.ids.iter().any(is_ordinary);
        let mut train = (0..self.texts.train.n()).map(|number| self.texts.train.at(number));
        let mut held_out = (0..self.texts.n_validation).map(|index| self.texts.held_out(index));
        let side = match (train.any(has_ordinary), held_out.any(has_ordinary)) {
            (true, true) => return Ok(()),
            (false, _) => "to train on",
            (true, false) => "that is held out",
        };
        let message = format!(
            "no token of the text {side} can be masked: `task.tokenizer` makes nothing but special tokens \
             of it, such as unknown ones"
        );
        Err(Error::config(["task.tokenizer", "task.corpus"], message))
    }

    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> MaskedLmSpec {
        MaskedLmSpec {
            vocab_size: self.texts.vocab_size,
            n_token_types: self.config.n_token_types,
            pad_id: self.texts.tokenizer.special().pad,
            seq_len: self.config.seq_len,
            packed: self.config.sequences == Layout::Packed,
        }
    }

    /// `model` with its tokenizer, to fill masks.
    pub fn fill_mask<'a>(&'a self, model: &'a Model) -> MaskFiller<'a> {
        MaskFiller::new(model, &self.model, &self.texts.tokenizer, &self.texts.device)
    }

    fn rows(&self, sequences: &[Sequence]) -> Rows {
        let len = self.model.required_len().unwrap_or(0);
        Rows::with_min_len(sequences, self.texts.pad(), len)
    }

    fn held_out(&self, index: u64) -> (Rows, Masked) {
        let (first, sequences) = self.texts.held_out_batch(index);
        let rows = self.rows(&sequences);
        let masked = self.masking.evaluation(&rows, first);
        (rows, masked)
    }

    /// The padded number of labels: four standard deviations above the mean for this many tokens, which few
    /// batches exceed.
    fn padded_labels(&self, n_tokens: usize, n_masked: usize) -> usize {
        let expected = self.config.masking.mlm_probability * n_tokens as f64;
        let enough = (expected + 4. * expected.sqrt()).ceil() as usize;
        n_masked.max(enough).next_multiple_of(16)
    }

    fn training(&self, index: u64) -> (Rows, Masked) {
        let places = self.texts.places(index);
        let first = places.start;
        let sequences = places.map(|place| self.texts.train.shuffled(place));
        let rows = self.rows(&sequences.collect::<Vec<_>>());
        let masked = self.masking.train(&rows, first);
        (rows, masked)
    }
}

impl Imitation<Model, Batch> for MaskedLm {
    fn outputs(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Option<Tensor>> {
        let Batch { ids, mask, positions, n_masked, .. } = batch;
        if *n_masked == 0 {
            return Ok(None);
        }
        let positions = positions.narrow(0, 0, *n_masked)?;
        let hidden = model.hidden_at(&Input::tokens(ids), mask, &positions, mode)?; // (n, d_model)
        Ok(Some(model.logits(&hidden)?.to_dtype(DType::F32)?))
    }

    fn loss_by_labels(&self, outputs: &Tensor, batch: &Batch) -> Result<Loss> {
        let labels = batch.labels.narrow(0, 0, batch.n_masked)?;
        let (sum, hits) = (cross_entropy(outputs, &labels, 0.)?, hits(outputs, &labels)?);
        Ok(Loss::with_hits(sum, batch.n_masked, "accuracy", &hits))
    }

    fn transformer<'a>(&self, model: &'a Model) -> &'a Transformer {
        model.transformer()
    }

    fn readings<'a>(&self, batch: &'a Batch, mode: Mode) -> Vec<Reading<'a>> {
        vec![Reading { input: Input::tokens(&batch.ids), mask: batch.mask.clone(), mode }]
    }
}

impl Task for MaskedLm {
    type Model = Model;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Model> {
        Ok(Model::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let (rows, masked) = match split {
            Split::Train => self.training(index),
            Split::Validation => self.held_out(index),
        };
        let Masked { ids, mut positions, labels } = masked;
        let (shape, n_masked) = ((rows.lens.len(), rows.seq_len), positions.len());
        let mut labels: Vec<i64> = labels.into_iter().map(i64::from).collect();
        let n = if self.fixed_shapes && split == Split::Train {
            self.padded_labels(ids.len(), n_masked)
        } else {
            n_masked
        };
        positions.resize(n, 0);
        labels.resize(n, IGNORE_INDEX);
        let device = &self.texts.device;
        Ok(Batch {
            ids: tensor_of(ids, shape, device)?,
            mask: self.texts.mask(&rows)?,
            positions: tensor_of(positions, n, device)?,
            labels: tensor_of(labels, n, device)?,
            n_masked,
            n_tokens: rows.n_tokens() as u64,
        })
    }

    fn n_evaluation_batches(&self) -> u64 {
        self.texts.n_held_out_batches()
    }

    fn seq_len(&self) -> usize {
        self.config.seq_len
    }

    fn row_meanings(&self, _config: &ModelConfig) -> RowMeanings<'_> {
        RowMeanings { tokenizer: Some(&self.texts.tokenizer), ..RowMeanings::default() }
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        Model::estimate(config, &self.model_spec(), self.config.masking.mlm_probability)
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.n_tokens)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        let Batch { ids, mask, positions, labels, n_masked, .. } = batch;
        let tensors = [ids, positions, labels].into_iter().chain(mask.tensors());
        Inputs { tensors: tensors.collect(), count: *n_masked as f64 }
    }

    fn loss(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Loss> {
        let Batch { ids, mask, positions, labels, n_masked, .. } = batch;
        if *n_masked == 0 {
            return Loss::zero(&self.texts.device);
        }
        let hidden = model.hidden_at(&Input::tokens(ids), mask, positions, mode)?; // (n, d_model)
        let Scored { loss: sum, hits } = model.cross_entropy(&hidden, labels)?;
        Ok(Loss::with_hits(sum, *n_masked, "accuracy", &hits))
    }

    fn imitation(&self) -> Option<&dyn Imitation<Model, Batch>> {
        Some(self)
    }

    fn attention_maps(&self, model: &Model) -> Result<Vec<AttentionMap>> {
        let rows = self.rows(&[self.texts.held_out(0)]);
        let shape = (1, rows.seq_len);
        let input = Tensor::from_vec(rows.ids.clone(), shape, &self.texts.device)?;
        let layers = model.attention_maps(&Input::tokens(&input), &self.texts.mask(&rows)?)?;
        Ok(AttentionMap::of_tokens(&self.texts.tokenizer, &rows.ids, layers))
    }

    fn samples(&self, model: &Model) -> Result<Vec<Sample>> {
        samples::samples(self, model)
    }
}

impl RegisteredTask for MaskedLm {
    fn report(&self, model: &Model) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        let mut sizes = self.texts.sizes();
        sizes.insert("n_token_types".to_owned(), self.config.n_token_types as u64);
        sizes
    }

    fn cost(&self, _: &Model, config: &ModelConfig, store: &ParamStore) -> Cost {
        Model::cost(config, &self.model_spec(), self.config.masking.mlm_probability, store)
    }

    fn kept_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        self.texts.tokenizer.files()
    }

    fn data_files(&self) -> Vec<DataFile> {
        self.texts.data_files.clone()
    }

    fn notes(&self) -> Vec<String> {
        self.texts.notes.clone()
    }
}

#[cfg(test)]
mod tests;
