//! Batches of rows, and the vectors of their texts.

use std::cmp::Reverse;

use candle_core::{DType, Device, Result as TensorResult, Tensor};
use tealight_model::block::BlockInput;
use tealight_model::embedding::Input;
use tealight_model::models::read_out::mean_without_padding;
use tealight_model::{Mask, Mode};
use tealight_ops::device::tensor_of;

use super::loss::{Sides, Targets, unit};
use super::model::Model;
use crate::data::padded_to;
use crate::error::Result;
use crate::inference::embed::Pooling;
use crate::task::{self, Inputs};

/// Texts that are read together, in groups of similar lengths.
const MAX_GROUPS: usize = 4;
/// The fewest texts of a group: fewer make a forward pass slow.
const MIN_GROUP: usize = 16;

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// The texts, those of similar lengths together.
    pub(super) groups: Vec<Group>,
    /// `(n_texts)`: the places in the groups of all anchors, then all positives, then all hard negatives.
    order: Tensor,
    /// Rows.
    pub(super) n: usize,
    /// Hard negatives.
    n_negatives: usize,
    pub(super) targets: Targets,
    pub(super) n_tokens: u64,
}

/// The mode of the forward pass over group `at`: each has its own dropout.
fn mode_of(at: usize, mode: Mode) -> Mode {
    match mode {
        Mode::Train { stream, activations } => {
            Mode::Train { stream: stream.fork(at as u64), activations }
        }
        Mode::Eval => Mode::Eval,
    }
}

/// Texts that are read in one forward pass.
#[derive(Debug)]
pub(super) struct Group {
    /// `(batch, longest)`
    ids: Tensor,
    mask: Mask,
}

/// How texts become tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    /// The least length.
    pub(super) width: usize,
    /// Whether all are read together, so that the shapes of batches are alike.
    pub(super) one_group: bool,
    pub(super) pad: u32,
    pub(super) device: &'a Device,
}

/// How hidden states become vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) pooling: Pooling,
    pub(super) normalize: bool,
}

impl Batch {
    /// Rows of which these are the anchors, the positives and the hard negatives, as token ids.
    pub(super) fn new(
        [anchors, positives, negatives]: [&[&[u32]]; 3],
        targets: Targets,
        shape: Shape<'_>,
    ) -> Result<Self> {
        let texts = [anchors, positives, negatives].concat();
        let mut by_length: Vec<usize> = (0..texts.len()).collect();
        by_length.sort_by_key(|&at| Reverse(texts[at].len()));
        let n_groups = (texts.len() / MIN_GROUP).clamp(1, MAX_GROUPS);
        let n_groups = if shape.one_group { 1 } else { n_groups };
        let size = texts.len().div_ceil(n_groups).max(1);
        let groups = by_length.chunks(size).map(|group| {
            let rows: Vec<Vec<u32>> = group.iter().map(|&at| texts[at].to_vec()).collect();
            Group::new(&rows, shape)
        });
        let mut order = vec![0; texts.len()];
        for (place, &at) in (0_u32..).zip(&by_length) {
            order[at] = place;
        }
        Ok(Self {
            groups: groups.collect::<Result<_>>()?,
            order: tensor_of(order, texts.len(), shape.device)?,
            n: anchors.len(),
            n_negatives: negatives.len(),
            targets,
            n_tokens: texts.iter().map(|text| text.len() as u64).sum(),
        })
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        let groups = self
            .groups
            .iter()
            .flat_map(|group| [&group.ids].into_iter().chain(group.mask.tensors()));
        Inputs { tensors: groups.chain([&self.order]).collect(), count: self.n as f64 }
    }

    /// The vectors of all sides.
    pub(super) fn sides(&self, model: &Model, reading: Reading, mode: Mode) -> TensorResult<Sides> {
        let vectors =
            |(at, group): (usize, &Group)| group.vectors(model, reading, mode_of(at, mode));
        let vectors =
            self.groups.iter().enumerate().map(vectors).collect::<TensorResult<Vec<_>>>()?;
        let vectors = Tensor::cat(&vectors, 0)?.index_select(&self.order, 0)?;
        self.as_sides(&vectors.to_dtype(DType::F32)?)
    }

    /// What the encoder reads, group by group.
    pub(super) fn readings(&self, mode: Mode) -> Vec<task::Reading<'_>> {
        let readings = (0..).zip(&self.groups).map(|(at, group)| task::Reading {
            input: Input::tokens(&group.ids),
            mask: group.mask.clone(),
            mode: mode_of(at, mode),
        });
        readings.collect()
    }

    /// The sides of the vectors `(n_texts, d)` of all anchors, then all positives, then all hard negatives.
    pub(super) fn as_sides(&self, vectors: &Tensor) -> TensorResult<Sides> {
        let side = |first, len| vectors.narrow(0, first, len);
        Ok(Sides {
            anchors: side(0, self.n)?,
            positives: side(self.n, self.n)?,
            negatives: (self.n_negatives > 0)
                .then(|| side(2 * self.n, self.n_negatives))
                .transpose()?,
        })
    }
}

impl Group {
    /// Texts padded to the longest.
    pub(super) fn new(texts: &[Vec<u32>], shape: Shape<'_>) -> Result<Self> {
        let (ids, mut mask) = padded_to(shape.width, texts, shape.pad, shape.device)?;
        let width = ids.dim(1)?;
        if !shape.one_group && texts.iter().all(|text| text.len() == width) {
            mask = Mask::none();
        }
        Ok(Self { ids, mask })
    }

    /// `(batch, dim)`
    pub(super) fn vectors(
        &self,
        model: &Model,
        reading: Reading,
        mode: Mode,
    ) -> TensorResult<Tensor> {
        let (input, context) = (Input::tokens(&self.ids), BlockInput::new(&self.mask, mode));
        let vectors = match reading.pooling {
            Pooling::Cls => {
                let (batch, len) = self.ids.dims2()?;
                let first: Vec<u32> = (0..batch).map(|row| (row * len) as u32).collect();
                let first = Tensor::new(first, self.ids.device())?;
                model.encoder.forward_at(&input, &context, &first)?
            }
            Pooling::Mean => {
                mean_without_padding(&model.encoder.forward(&input, &context)?, &self.mask)?
            }
            Pooling::Max => {
                let hidden = model.encoder.forward(&input, &context)?;
                let hidden = match self.mask.key_padding_mask() {
                    None => hidden,
                    Some(padding) => {
                        let low =
                            padding.to_dtype(hidden.dtype())?.affine(-f64::from(f32::MAX), 0.)?;
                        hidden.broadcast_add(&low.unsqueeze(2)?)?
                    }
                };
                hidden.max(1)?
            }
        };
        let vectors = model.mapped(vectors)?;
        if reading.normalize { unit(&vectors) } else { Ok(vectors) }
    }
}
