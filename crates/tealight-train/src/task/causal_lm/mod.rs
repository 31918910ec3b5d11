//! Causal language models (Radford et al. 2019): each token of a text is predicted from those before it.
//!
//! ```text
//! loss = − Σ_t log P(x_{t+1} | x_1 … x_t)
//! ```

mod config;
mod report;
mod samples;

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use tealight_model::cost::{Cost, Estimate};
use tealight_model::embedding::Input;
use tealight_model::models::causal_lm::{CausalLm as Model, CausalLmSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::{IGNORE_INDEX, cross_entropy, hits};
use tealight_ops::device::tensor_of;
use tealight_ops::embedding::embedding;
use tealight_ops::linear_cross_entropy::Scored;

pub use config::Config;

use crate::data::text::sequences::{Layout, Predicts, Rows, Sequence, Spec};
use crate::data::{DataFile, Split};
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::task::batch::token_labels;
use crate::task::context::TaskContext;
use crate::task::report::Report;
use crate::task::sample::Sample;
use crate::task::text::{TextSettings, Texts};
use crate::task::{
    Imitation, Inputs, Loss, Reading, RegisteredTask, RowMeanings, Task, TaskKind, TaskSettings,
};

/// The task: text as sequences of tokens.
#[derive(Debug)]
pub struct CausalLm {
    config: Config,
    texts: Texts,
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
    /// The places of these in `batch · seq_len`.
    labelled: Vec<u32>,
}

impl Batch {
    /// The places of the labels that are not ignored among `n`, on the device; `None` if these are all.
    fn places(&self, n: usize) -> Result<Option<Tensor>> {
        if self.labelled.len() == n {
            return Ok(None);
        }
        let places = tensor_of(self.labelled.clone(), self.labelled.len(), self.ids.device())?;
        Ok(Some(places))
    }
}

impl TaskKind for Config {
    type Task = CausalLm;

    fn build(&self, context: &TaskContext<'_>) -> Result<CausalLm> {
        self.validate()?;
        let settings = TextSettings {
            corpus: &self.corpus,
            tokenizer: &self.tokenizer,
            vocab_size: self.vocab_size,
            cache: self.cache.as_deref(),
            spec: Spec { layout: self.sequences, seq_len: self.seq_len, predicts: Predicts::Next },
            n_validation: self.n_validation,
        };
        Ok(CausalLm { config: self.clone(), texts: Texts::new(settings, context)? })
    }
}

impl CausalLm {
    /// The sizes that the model is built with.
    pub fn model_spec(&self) -> CausalLmSpec {
        CausalLmSpec {
            vocab_size: self.texts.vocab_size,
            seq_len: self.config.seq_len,
            packed: self.config.sequences == Layout::Packed,
        }
    }

    /// The batch of sequences that have one more token than the model reads.
    fn batch_of(&self, sequences: &[Sequence]) -> Result<Batch> {
        let device = &self.texts.device;
        let inputs: Vec<Sequence> = sequences.iter().map(without_last).collect();
        let rows = Rows::new(&inputs, self.texts.pad());
        let labels: Vec<Vec<i64>> = sequences.iter().map(successors).collect();
        let of_row = |(row, labels): (usize, &Vec<i64>)| {
            let is_labelled = |(_, label): &(usize, i64)| *label != IGNORE_INDEX;
            let places: Vec<_> = (0..).zip(labels.iter().copied()).filter(is_labelled).collect();
            places.into_iter().map(move |(at, _)| (row * rows.seq_len + at) as u32)
        };
        let labelled = (0..).zip(&labels).flat_map(of_row).collect::<Vec<u32>>();
        Ok(Batch {
            labels: token_labels(&labels, rows.seq_len, device)?,
            mask: self.texts.mask(&rows)?,
            n_labels: labelled.len(),
            labelled,
            ids: tensor_of(rows.ids, (sequences.len(), rows.seq_len), device)?,
        })
    }
}

/// The input of the model: all tokens but the last.
fn without_last(sequence: &Sequence) -> Sequence {
    let n = sequence.ids.len().saturating_sub(1);
    let segments = sequence.segments.as_ref().map(|segments| segments[..n].to_vec());
    Sequence { ids: sequence.ids[..n].to_vec(), segments }
}

/// The label of each token that is read: its successor, [`IGNORE_INDEX`] if that belongs to another piece.
fn successors(sequence: &Sequence) -> Vec<i64> {
    let goes_on = |at: usize| sequence.segments.as_ref().is_none_or(|of| of[at] == of[at - 1]);
    let label = |at: usize| if goes_on(at) { i64::from(sequence.ids[at]) } else { IGNORE_INDEX };
    (1..sequence.ids.len()).map(label).collect()
}

impl Imitation<Model, Batch> for CausalLm {
    fn outputs(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Option<Tensor>> {
        if batch.n_labels == 0 {
            return Ok(None);
        }
        let hidden = model.hidden(&batch.ids, &batch.mask, mode)?;
        let hidden = hidden.flatten_to(1)?; // (batch · seq_len, d_model)
        let hidden = match batch.places(hidden.dim(0)?)? {
            Some(places) => embedding(&hidden, &places)?,
            None => hidden,
        };
        Ok(Some(model.logits(&hidden)?.to_dtype(DType::F32)?))
    }

    fn loss_by_labels(&self, outputs: &Tensor, batch: &Batch) -> Result<Loss> {
        let labels = match batch.places(batch.labels.elem_count())? {
            Some(places) => batch.labels.index_select(&places, 0)?,
            None => batch.labels.clone(),
        };
        let (sum, hits) = (cross_entropy(outputs, &labels, 0.)?, hits(outputs, &labels)?);
        Ok(Loss::with_hits(sum, batch.n_labels, "accuracy", &hits))
    }

    fn transformer<'a>(&self, model: &'a Model) -> &'a Transformer {
        model.transformer()
    }

    fn readings<'a>(&self, batch: &'a Batch, mode: Mode) -> Vec<Reading<'a>> {
        vec![Reading { input: Input::tokens(&batch.ids), mask: batch.mask.clone(), mode }]
    }
}

impl Task for CausalLm {
    type Model = Model;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Model> {
        Ok(Model::build(config, &self.model_spec(), vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let Self { texts, .. } = self;
        let sequences = match split {
            Split::Train => {
                texts.places(index).map(|place| texts.train.random_window(place)).collect()
            }
            Split::Validation => texts.held_out_batch(index).1,
        };
        self.batch_of(&sequences)
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
        Model::estimate(config, &self.model_spec())
    }

    fn n_tokens(&self, batch: &Batch) -> Option<u64> {
        Some(batch.n_labels as u64)
    }

    fn inputs<'a>(&self, batch: &'a Batch) -> Inputs<'a> {
        let Batch { ids, mask, labels, n_labels, .. } = batch;
        Inputs {
            tensors: [ids, labels].into_iter().chain(mask.tensors()).collect(),
            count: *n_labels as f64,
        }
    }

    fn loss(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Loss> {
        let Batch { ids, mask, labels, n_labels, .. } = batch;
        if *n_labels == 0 {
            return Loss::zero(&self.texts.device);
        }
        let hidden = model.hidden(ids, mask, mode)?; // (batch, seq_len, d_model)
        let Scored { loss: sum, hits } = model.cross_entropy(&hidden, labels, 0.)?;
        Ok(Loss::with_hits(sum, *n_labels, "accuracy", &hits))
    }

    fn imitation(&self) -> Option<&dyn Imitation<Model, Batch>> {
        Some(self)
    }

    fn attention_maps(&self, model: &Model) -> Result<Vec<AttentionMap>> {
        let Batch { ids, mask, .. } = self.batch_of(&[self.texts.held_out(0)])?;
        let tokens: Vec<u32> = ids.flatten_all()?.to_vec1()?;
        let layers = model.attention_maps(&ids, &mask)?;
        Ok(AttentionMap::of_tokens(&self.texts.tokenizer, &tokens, layers))
    }

    fn samples(&self, model: &Model) -> Result<Vec<Sample>> {
        samples::samples(self, model)
    }
}

impl RegisteredTask for CausalLm {
    fn report(&self, model: &Model) -> Result<Report> {
        report::report(self, model)
    }

    fn sizes(&self) -> BTreeMap<String, u64> {
        self.texts.sizes()
    }

    fn cost(&self, _: &Model, config: &ModelConfig, store: &ParamStore) -> Cost {
        Model::cost(config, &self.model_spec(), store)
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
