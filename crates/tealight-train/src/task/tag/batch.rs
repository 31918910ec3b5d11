//! Batches of sentences with the tags of their words.

use candle_core::{Device, Tensor};
use tealight_model::Mode;
use tealight_model::models::tagger::Tagger;
use tealight_ops::cross_entropy::{IGNORE_INDEX, cross_entropy, cross_entropy_soft, hits};
use tealight_ops::device::tensor_of;

use super::rows::Row;
use crate::error::Result;
use crate::inference::text_classifier::encoder::Tokens;
use crate::inference::text_classifier::rows::Rows;
use crate::task::{Inputs, Loss};

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    pub(super) rows: Rows,
    /// `(n)`: the positions of tokens with a tag in `batch · seq_len`.
    positions: Tensor,
    /// `(n)`: their tags; [`IGNORE_INDEX`] of one that the model does not have.
    tags: Tensor,
    /// Tokens with a tag that the model has.
    n_tagged: usize,
    /// `(n, n_classes)`: what the loss asks for, times weights; and what the sum is divided by. `None`: no weights.
    weighted: Option<(Tensor, f64)>,
}

impl Batch {
    /// Rows padded with `pad` to the longest, and to `width` at least.
    pub(super) fn new(rows: &[&Row], width: usize, pad: u32, device: &Device) -> Result<Self> {
        let tokens: Vec<Tokens> =
            rows.iter().map(|row| Tokens { ids: row.ids.clone(), type_ids: Vec::new() }).collect();
        let tensors = Rows::new(&tokens.iter().collect::<Vec<_>>(), width, pad, device)?;
        let len = tensors.ids.dim(1)? as u32;
        let targets =
            || (0..).zip(rows).flat_map(|(at, row)| row.targets.iter().map(move |one| (at, one)));
        let positions: Vec<u32> = targets().map(|(at, one)| at * len + one.position).collect();
        let tags: Vec<i64> = targets().map(|(_, one)| one.class).collect();
        let (n, n_tagged) = (tags.len(), tags.iter().filter(|&&tag| tag != IGNORE_INDEX).count());
        Ok(Self {
            rows: tensors,
            positions: tensor_of(positions, n, device)?,
            tags: tensor_of(tags, n, device)?,
            n_tagged,
            weighted: None,
        })
    }

    /// This batch with a weight of each tag in its loss.
    pub(super) fn weighted(
        mut self,
        rows: &[&Row],
        by_tag: &[f32],
        label_smoothing: f64,
    ) -> Result<Self> {
        let smoothing = label_smoothing as f32;
        let spread = smoothing / by_tag.len() as f32;
        let (mut asked, mut total) = (Vec::new(), 0.);
        for target in rows.iter().flat_map(|row| &row.targets) {
            let own = usize::try_from(target.class).ok();
            total += own.map_or(0., |own| f64::from(by_tag[own]));
            asked.extend(by_tag.iter().enumerate().map(|(class, weight)| match own {
                None => 0.,
                Some(own) if class == own => weight * (1. - smoothing + spread),
                Some(_) => weight * spread,
            }));
        }
        let shape = (asked.len() / by_tag.len(), by_tag.len());
        self.weighted = Some((tensor_of(asked, shape, self.tags.device())?, total));
        Ok(self)
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        let Self { rows, positions, tags, .. } = self;
        let weighted = self.weighted.iter().map(|(asked, _)| asked);
        let tensors = [&rows.ids, positions, tags].into_iter().chain(rows.mask.tensors());
        Inputs { tensors: tensors.chain(weighted).collect(), count: self.count() }
    }

    /// What the summed loss is divided by.
    fn count(&self) -> f64 {
        self.weighted.as_ref().map_or(self.n_tagged as f64, |(_, total)| *total)
    }

    /// The logits `(n, n_classes)` of the tagged tokens; `None` if there are none.
    pub(super) fn logits(&self, model: &Tagger, mode: Mode) -> Result<Option<Tensor>> {
        let Self { rows, positions, .. } = self;
        if positions.elem_count() == 0 {
            return Ok(None);
        }
        Ok(Some(model.forward_at(&rows.input(), &rows.mask, positions, mode)?))
    }

    /// The loss of these logits, and the accuracy of the tags.
    pub(super) fn loss(&self, logits: Option<&Tensor>, label_smoothing: f64) -> Result<Loss> {
        let Some(logits) = logits.filter(|_| self.n_tagged > 0) else {
            return Loss::zero(self.tags.device());
        };
        let sum = match &self.weighted {
            Some((asked, _)) => cross_entropy_soft(logits, asked)?,
            None => cross_entropy(logits, &self.tags, label_smoothing)?,
        };
        let hits = hits(logits, &self.tags)?;
        Ok(Loss { count: self.count(), ..Loss::with_hits(sum, self.n_tagged, "accuracy", &hits) })
    }
}
