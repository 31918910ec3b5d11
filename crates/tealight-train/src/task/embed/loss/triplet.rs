//! Triplets (Schroff et al. 2015, <https://arxiv.org/abs/1503.03832>).
//!
//! ```text
//! mean max(0, d(a, p) − d(a, n) + margin)       d = ‖x − y‖, or 1 − cos
//! ```

use candle_core::{Result as TensorResult, Tensor};
use tealight_model::names;

use super::{EmbeddingLoss, Sides, Summed, Targets, cosines, norm};
use crate::checks::check;
use crate::error::Result;
use crate::settings::settings;
use crate::task::embed::rows::Wants;

settings! {
    /// `[task.loss] kind = "triplet"`
    pub struct Config {
        /// How far apart two vectors are.
        pub distance: Distance = Distance::Euclidean,
        /// How much farther the negative should be than the positive; below 2 with cosines, for which 0.5 is usual.
        pub margin: f64 = 5.,
    }
}

names! {
    /// How far apart two vectors are.
    pub enum Distance {
        /// ‖x − y‖
        "euclidean" => Euclidean,
        /// 1 − cos
        "cosine" => Cosine,
    }
}

impl EmbeddingLoss for Config {
    fn validate(&self) -> Result<()> {
        let (limit, rule) = match self.distance {
            Distance::Euclidean => (f64::MAX, "must be positive"),
            Distance::Cosine => (2., "must be positive and below 2, the largest distance"),
        };
        check("task.loss.margin", self.margin, |margin| margin > 0. && margin < limit, rule)
    }

    fn wants(&self) -> Wants {
        Wants::triplets()
    }

    fn loss(&self, sides: &Sides, _: &Targets) -> TensorResult<Summed> {
        let Sides { anchors, positives, .. } = sides;
        let to_positive = self.distance.of(anchors, positives)?;
        let to_negative = self.distance.of(anchors, sides.negatives())?;
        let sum = ((to_positive - to_negative)? + self.margin)?.relu()?.sum_all()?;
        Ok((sum, sides.n()? as f64))
    }
}

impl Distance {
    /// Of each row: `(n, d)`, `(n, d)` → `(n)`
    fn of(self, x: &Tensor, y: &Tensor) -> TensorResult<Tensor> {
        match self {
            Self::Euclidean => norm(&(x - y)?)?.squeeze(1),
            Self::Cosine => cosines(x, y)?.affine(-1., 1.),
        }
    }
}
