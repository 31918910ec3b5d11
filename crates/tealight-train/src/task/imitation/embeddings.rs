//! Vectors of texts (Reimers & Gurevych 2020, <https://arxiv.org/abs/2004.09813>).
//!
//! ```text
//! mse      mean over rows and numbers of (s − t)²
//! cosine   mean over rows of 1 − cos(s, t)
//! ```

use candle_core::Tensor;
use tealight_model::names;

use super::{Compared, ImitationLoss};
use crate::error::Result;
use crate::settings::settings;
use crate::task::Imitated;
use crate::task::embed::cosines;

settings! {
    /// `[teacher.loss] kind = "embeddings"`
    pub struct Config {
        /// How far two vectors are apart.
        pub distance: Distance = Distance::Mse,
    }
}

names! {
    /// How far two vectors are apart.
    pub enum Distance {
        /// The mean square of their differences.
        "mse" => Mse,
        /// 1 less their cosine.
        "cosine" => Cosine,
    }
}

impl ImitationLoss for Config {
    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Vectors)
    }

    fn loss(&self, compared: &dyn Compared) -> Result<Tensor> {
        let [outputs, of_teacher] = compared.outputs()?;
        let of_teacher = of_teacher.detach();
        Ok(match self.distance {
            Distance::Mse => (outputs - of_teacher)?.sqr()?.mean_all()?,
            Distance::Cosine => cosines(&outputs, &of_teacher)?.mean_all()?.affine(-1., 1.)?,
        })
    }
}
