//! Logits themselves (Ba & Caruana 2014, <https://arxiv.org/abs/1312.6184>).
//!
//! ```text
//! mean over rows and classes of (s − t)²
//! ```

use candle_core::{Result as TensorResult, Tensor};

use super::OutputLoss;
use crate::settings::settings;
use crate::task::Imitated;

settings! {
    /// `[teacher.loss] kind = "logits_mse"`
    pub struct Config {}
}

impl OutputLoss for Config {
    fn imitated(&self) -> Imitated {
        Imitated::Logits
    }

    fn loss(&self, outputs: &Tensor, of_teacher: &Tensor) -> TensorResult<Tensor> {
        (outputs - of_teacher.detach())?.sqr()?.mean_all()
    }
}
