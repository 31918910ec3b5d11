//! The margins of a teacher (Hofstätter et al. 2020, <https://arxiv.org/abs/2010.02666>).
//!
//! ```text
//! mean ((a·p − a·n) − t)²       t: the teacher's score of the positive less that of the negative
//! ```

use candle_core::Result as TensorResult;

use super::{EmbeddingLoss, Sides, Summed, Targets, products};
use crate::settings::settings;
use crate::task::embed::rows::Wants;

settings! {
    /// `[task.loss] kind = "margin_mse"`
    pub struct Config {}
}

impl EmbeddingLoss for Config {
    fn wants(&self) -> Wants {
        Wants { margins: true, ..Wants::triplets() }
    }

    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed> {
        let Sides { anchors, positives, .. } = sides;
        let margins = (products(anchors, positives)? - products(anchors, sides.negatives())?)?;
        let sum = (&margins - targets.labels(&margins)?)?.sqr()?.sum_all()?;
        Ok((sum, sides.n()? as f64))
    }
}
