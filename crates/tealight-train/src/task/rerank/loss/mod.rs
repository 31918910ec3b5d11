//! Losses of the scores of passages. Each kind is a file here and a line in [`LossConfig`].
//!
//! An example is a query with its passages: one under losses of single scores, two under those of margins, all of them
//! under losses of lists. A loss is a sum, and what training divides it by.

mod lists;
mod margin_mse;
mod single;

use std::fmt;

use candle_core::{Result as TensorResult, Tensor};
use tealight_model::choice;

pub(super) use lists::ListNet;

use crate::error::Result;
use crate::inference::text_classifier::Activation;

choice! {
    /// `[task.loss]`: what scores are trained for.
    pub enum LossConfig: RankingLoss = "binary" {
        /// Whether a passage answers: the cross-entropy of σ(score) with a label from 0 to 1.
        "binary" => Binary(single::Binary),
        /// The score is the label.
        "mse" => Mse(single::Mse),
        /// The difference of two scores is that of a teacher (Hofstätter et al. 2020).
        "margin_mse" => MarginMse(margin_mse::Config),
        /// The softmax over the passages of a query is that of their labels (Cao et al. 2007).
        "list_net" => ListNet(lists::ListNet),
        /// Passages with a higher label get a higher score (Burges et al. 2005).
        "rank_net" => RankNet(lists::RankNet),
        /// As `rank_net`, each pair by its effect on nDCG (Wang et al. 2018).
        "lambda" => Lambda(lists::Lambda),
    }
}

/// How many passages an example has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passages {
    /// One.
    One,
    /// A positive and a negative.
    Two,
    /// All of a query.
    All,
}

/// The labels of the passages of each example of a batch, in the order of the scores.
pub(crate) type Lists = [Vec<f32>];

/// The sum of a loss, a scalar, and what it is divided by.
pub(crate) type Summed = (Tensor, f64);

/// A kind of loss.
pub(crate) trait RankingLoss: fmt::Debug {
    /// Checks the settings.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// How many passages an example has.
    fn passages(&self) -> Passages;

    /// Whether it depends on the differences of the scores of an example alone.
    fn is_of_differences(&self) -> bool {
        self.passages() != Passages::One
    }

    /// The function that makes a score of what the model returns.
    fn activation(&self) -> Activation {
        Activation::Identity
    }

    /// The least and the highest label.
    fn labels_in(&self) -> Option<(f64, f64)> {
        None
    }

    /// The loss of `scores (n)`.
    fn loss(&self, scores: &Tensor, lists: &Lists) -> TensorResult<Summed>;
}

/// All labels, like `scores (n)`.
fn labels(scores: &Tensor, lists: &Lists) -> TensorResult<Tensor> {
    Tensor::new(lists.concat(), scores.device())?.to_dtype(scores.dtype())
}
