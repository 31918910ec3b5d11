//! Vectors whose first numbers are vectors, too (Kusupati et al. 2022, <https://arxiv.org/abs/2205.13147>).
//!
//! ```text
//! Σ_d w_d loss(first d numbers of each vector, of length 1 again)
//! ```

use candle_core::Result as TensorResult;

use super::{EmbeddingLoss, Sides, Summed, Targets, unit};
use crate::error::{Error, Result};
use crate::settings::settings;

settings! {
    /// `[task.matryoshka]`
    pub struct Config {
        /// How many first numbers of a vector are trained: each by a loss of its own, the width of the model for whole vectors.
        /// None trains whole vectors alone.
        pub dims: Vec<usize> = Vec::new(),
        /// The weight of each; 1 when empty.
        pub weights: Vec<f64> = Vec::new(),
    }
}

/// The setting of the dimensions.
const DIMS: &str = "task.matryoshka.dims";

impl Config {
    pub(crate) fn validate(&self) -> Result<()> {
        let Self { dims, weights } = self;
        let message = if dims.iter().enumerate().any(|(at, dim)| dims[..at].contains(dim)) {
            format!("`{DIMS}` = {dims:?} has a number twice")
        } else if dims.contains(&0) {
            format!("`{DIMS}` = {dims:?}: each number must be at least 1")
        } else if !weights.is_empty() && weights.len() != dims.len() {
            format!(
                "`task.matryoshka.weights` has {} numbers, and `{DIMS}` has {}: each has a weight",
                weights.len(),
                dims.len()
            )
        } else if weights.iter().any(|weight| !weight.is_finite() || *weight < 0.) {
            format!("`task.matryoshka.weights` = {weights:?} must be finite and not negative")
        } else {
            return Ok(());
        };
        Err(Error::config([DIMS, "task.matryoshka.weights"], message))
    }

    /// # Errors
    /// If a vector of `width` numbers has not so many.
    pub(crate) fn check_width(&self, width: usize) -> Result<()> {
        match self.dims.iter().find(|&&dim| dim > width) {
            None => Ok(()),
            Some(dim) => {
                let message =
                    format!("`{DIMS}` has {dim}, and a vector has `model.d_model` = {width}");
                Err(Error::config([DIMS, "model.d_model"], message))
            }
        }
    }

    /// The loss of `sides`, or the sum over all dimensions, divided by what one loss is divided by.
    pub(crate) fn loss(
        &self,
        loss: &dyn EmbeddingLoss,
        sides: &Sides,
        targets: &Targets,
    ) -> TensorResult<Summed> {
        let mut total: Option<Summed> = None;
        for (at, &dim) in self.dims.iter().enumerate() {
            let first = sides.map(|side| unit(&side.narrow(1, 0, dim)?))?;
            let (sum, count) = loss.loss(&first, targets)?;
            let sum = (sum * self.weights.get(at).copied().unwrap_or(1.))?;
            total = Some(match total {
                None => (sum, count),
                Some((total, _)) => ((total + sum)?, count),
            });
        }
        total.map_or_else(|| loss.loss(sides, targets), Ok)
    }
}
