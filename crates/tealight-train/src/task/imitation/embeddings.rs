//! Vectors of texts (Reimers & Gurevych 2020, <https://arxiv.org/abs/2004.09813>).
//!
//! ```text
//! mse      mean over rows and numbers of (s − t)²
//! cosine   mean over rows of 1 − cos(s, t)
//! ```

use candle_core::{Result as TensorResult, Tensor};
use tealight_model::names;

use super::OutputLoss;
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

impl OutputLoss for Config {
    fn imitated(&self) -> Imitated {
        Imitated::Vectors
    }

    fn loss(&self, outputs: &Tensor, of_teacher: &Tensor) -> TensorResult<Tensor> {
        let of_teacher = of_teacher.detach();
        match self.distance {
            Distance::Mse => (outputs - of_teacher)?.sqr()?.mean_all(),
            Distance::Cosine => cosines(outputs, &of_teacher)?.mean_all()?.affine(-1., 1.),
        }
    }
}
