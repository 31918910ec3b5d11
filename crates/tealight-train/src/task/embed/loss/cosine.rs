//! The cosine of a pair as its label.
//!
//! ```text
//! mean (cos(a, p) − y)²        y in −1 to 1
//! ```

use candle_core::Result as TensorResult;

use super::{EmbeddingLoss, Sides, Summed, Targets, cosines};
use crate::settings::settings;
use crate::task::embed::rows::Wants;

settings! {
    /// `[task.loss] kind = "cosine"`
    pub struct Config {}
}

impl EmbeddingLoss for Config {
    fn wants(&self) -> Wants {
        Wants { labels_in: Some((-1., 1.)), ..Wants::scored() }
    }

    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed> {
        let cosines = cosines(&sides.anchors, &sides.positives)?;
        let sum = (&cosines - targets.labels(&cosines)?)?.sqr()?.sum_all()?;
        Ok((sum, sides.n()? as f64))
    }
}
