//! Losses of vectors. Each kind is a file here and a line in [`LossConfig`].
//!
//! Rows are anchors `a`, positives `p` and hard negatives `n`; `cos` is the cosine of two vectors, x / max(‖x‖, 10⁻¹²)
//! being the unit vector of x. A loss is the sum over rows, which training divides by their number; one that has no
//! mean over rows is divided by 1.

mod contrastive;
mod cosine;
mod margin_mse;
mod matryoshka;
mod multiple_negatives;
mod ranked;
mod triplet;

use std::fmt;

use candle_core::{Result as TensorResult, Tensor};
use tealight_model::choice;

pub(super) use matryoshka::Config as MatryoshkaConfig;
pub(super) use ranked::CoSent;

use crate::error::Result;
use crate::task::embed::rows::Wants;

choice! {
    /// `[task.loss]`: what vectors are trained for.
    pub enum LossConfig: EmbeddingLoss = "multiple_negatives" {
        /// Each anchor finds its positive among the positives and hard negatives of all rows of a step (Henderson et al.
        /// 2017, InfoNCE).
        "multiple_negatives" => MultipleNegatives(multiple_negatives::Config),
        /// Pairs with a higher label get a higher cosine (Su 2022).
        "cosent" => CoSent(ranked::CoSent),
        /// As `cosent`, with the angle between complex vectors (Li & Li 2023).
        "angle" => Angle(ranked::Angle),
        /// The cosine equals the label.
        "cosine" => Cosine(cosine::Config),
        /// The positive is nearer than the negative, by a margin (Schroff et al. 2015).
        "triplet" => Triplet(triplet::Config),
        /// Pairs with label 1 are near, pairs with label 0 at least a margin apart (Hadsell et al. 2006).
        "contrastive" => Contrastive(contrastive::Contrastive),
        /// As `contrastive`, of the pairs alone that are harder than the easiest of the other label.
        "online_contrastive" => OnlineContrastive(contrastive::Online),
        /// The difference of the products with positive and negative is that of a teacher (Hofstätter et al. 2020).
        "margin_mse" => MarginMse(margin_mse::Config),
    }
}

/// The vectors of rows.
#[derive(Clone, Debug)]
pub(crate) struct Sides {
    /// `(n, d)`
    pub(crate) anchors: Tensor,
    /// `(n, d)`
    pub(crate) positives: Tensor,
    /// `(m, d)`: the hard negatives of all rows, in their order; `None` if there are none.
    pub(crate) negatives: Option<Tensor>,
}

/// What a loss needs to know of rows besides their vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Targets {
    /// The label of each row; empty where rows have none.
    pub(crate) labels: Vec<f32>,
    /// By row, the number of its anchor's text: equal numbers are equal texts.
    pub(crate) anchors: Vec<u32>,
    /// By row, the number of its group.
    pub(crate) groups: Vec<Option<usize>>,
    /// By row, the number of its positive's text.
    pub(crate) positives: Vec<u32>,
    /// By hard negative, the number of its text.
    pub(crate) negatives: Vec<u32>,
    /// Whether a candidate that answers the row as well is left out: with the text of its positive, or of a row with the same
    /// anchor or group.
    pub(crate) masks_duplicates: bool,
}

/// The sum of a loss, a scalar, and what it is divided by.
pub(crate) type Summed = (Tensor, f64);

/// A kind of loss.
pub(crate) trait EmbeddingLoss: fmt::Debug {
    /// Checks the settings.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// What rows consist of.
    fn wants(&self) -> Wants;

    /// Whether rows are compared with each other: then the loss of a step is not a mean over its micro-batches.
    fn is_joint(&self) -> bool {
        false
    }

    /// The summed loss.
    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed>;
}

impl Sides {
    /// Each side with `f` applied.
    pub(crate) fn map(&self, f: impl Fn(&Tensor) -> TensorResult<Tensor>) -> TensorResult<Self> {
        Ok(Self {
            anchors: f(&self.anchors)?,
            positives: f(&self.positives)?,
            negatives: self.negatives.as_ref().map(&f).transpose()?,
        })
    }

    /// The sides with their names.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let negatives = self.negatives.as_ref().map(|side| ("negatives", side));
        [("anchors", &self.anchors), ("positives", &self.positives)].into_iter().chain(negatives)
    }

    /// The number of rows.
    fn n(&self) -> TensorResult<usize> {
        self.anchors.dim(0)
    }

    /// The hard negatives of a loss whose rows have one each.
    ///
    /// # Panics
    /// If there are none: [`Wants::triplets`] requires them.
    fn negatives(&self) -> &Tensor {
        self.negatives.as_ref().expect("invariant: each row has a negative")
    }
}

impl Targets {
    /// The labels as a tensor like `x`: `(n)`.
    fn labels(&self, x: &Tensor) -> TensorResult<Tensor> {
        Tensor::new(&*self.labels, x.device())?.to_dtype(x.dtype())
    }
}

/// The square below which a norm is that of this number: 10⁻²⁴ is the square of 10⁻¹².
const LEAST_SQUARE: f64 = 1e-24;

/// ‖x‖ of each row, at least 10⁻¹²: `(n, d)` → `(n, 1)`
fn norm(x: &Tensor) -> TensorResult<Tensor> {
    x.sqr()?.sum_keepdim(1)?.maximum(LEAST_SQUARE)?.sqrt()
}

/// x / max(‖x‖, 10⁻¹²) of each row.
pub(crate) fn unit(x: &Tensor) -> TensorResult<Tensor> {
    x.broadcast_div(&norm(x)?)
}

/// x·y of each row: `(n, d)`, `(n, d)` → `(n)`
fn products(x: &Tensor, y: &Tensor) -> TensorResult<Tensor> {
    (x * y)?.sum(1)
}

/// The cosine of each row: `(n, d)`, `(n, d)` → `(n)`
pub(crate) fn cosines(x: &Tensor, y: &Tensor) -> TensorResult<Tensor> {
    products(&unit(x)?, &unit(y)?)
}

#[cfg(test)]
mod tests;
