//! Logits themselves (Ba & Caruana 2014, <https://arxiv.org/abs/1312.6184>).
//!
//! ```text
//! mean over rows and classes of (s − t)²
//! ```

use candle_core::Tensor;

use super::{Compared, ImitationLoss};
use crate::error::Result;
use crate::settings::settings;
use crate::task::Imitated;

settings! {
    /// `[teacher.loss] kind = "logits_mse"`
    pub struct Config {}
}

impl ImitationLoss for Config {
    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Logits)
    }

    fn loss(&self, compared: &dyn Compared) -> Result<Tensor> {
        let [outputs, of_teacher] = compared.outputs()?;
        Ok((outputs - of_teacher.detach())?.sqr()?.mean_all()?)
    }
}
