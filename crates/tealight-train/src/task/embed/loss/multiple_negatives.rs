//! Multiple negatives (Henderson et al. 2017, <https://arxiv.org/abs/1705.00652>; InfoNCE, van den Oord et al. 2018,
//! <https://arxiv.org/abs/1807.03748>).
//!
//! ```text
//! mean_i −ln softmax_j(s cos(a_i, c_j))_i      c = (p_1 … p_n, then all hard negatives of the step)
//! symmetric: half of that + half of the same from p_i to a_1 … a_n
//! ```

use candle_core::{Device, Result as TensorResult, Tensor};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::linear::linear;

use super::{EmbeddingLoss, Sides, Summed, Targets, unit};
use crate::checks::check;
use crate::error::Result;
use crate::settings::settings;
use crate::task::embed::rows::Wants;

settings! {
    /// `[task.loss] kind = "multiple_negatives"`
    pub struct Config {
        /// s: the factor of the cosines, which is 1 / temperature.
        pub scale: f64 = 20.,
        /// Whether positives also find their anchors.
        pub symmetric: bool = false,
    }
}

impl EmbeddingLoss for Config {
    fn validate(&self) -> Result<()> {
        let is_valid = |scale: f64| scale.is_finite() && scale > 0.;
        check("task.loss.scale", self.scale, is_valid, "must be positive")
    }

    fn wants(&self) -> Wants {
        Wants::pairs()
    }

    fn is_joint(&self) -> bool {
        true
    }

    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed> {
        let n = sides.n()?;
        let sides = sides.map(unit)?;
        let candidates = match &sides.negatives {
            Some(negatives) => Tensor::cat(&[&sides.positives, negatives], 0)?,
            None => sides.positives.clone(),
        };
        let scores = (linear(&sides.anchors, &candidates, None)? * self.scale)?; // (n, n + m)
        let scores = targets.masked(&scores)?;
        let labels = Tensor::arange(0, n as u32, scores.device())?;
        let mut sum = cross_entropy(&scores, &labels, 0.)?;
        if self.symmetric {
            let back = (linear(&sides.positives, &sides.anchors, None)? * self.scale)?; // (n, n)
            let back = targets.masked(&back)?;
            sum = ((sum + cross_entropy(&back, &labels, 0.)?)? * 0.5)?;
        }
        Ok((sum, n as f64))
    }
}

impl Targets {
    /// `scores (n, n or more)` of anchors and candidates, with −∞ where a candidate that is no positive of the row answers
    /// it as well, if such candidates are left out.
    fn masked(&self, scores: &Tensor) -> TensorResult<Tensor> {
        let (n, width) = scores.dims2()?;
        let is_copy = |row: usize, at: usize| match at.checked_sub(n) {
            Some(negative) => self.negatives[negative] == self.positives[row],
            None => at != row && self.are_alike(row, at),
        };
        let places = || (0..n).flat_map(|row| (0..width).map(move |at| (row, at)));
        if !self.masks_duplicates || !places().any(|(row, at)| is_copy(row, at)) {
            return Ok(scores.clone());
        }
        let mask = places().map(|(row, at)| if is_copy(row, at) { f32::NEG_INFINITY } else { 0. });
        let mask = Tensor::from_vec(mask.collect(), (n, width), &Device::Cpu)?;
        scores + mask.to_dtype(scores.dtype())?.to_device(scores.device())?
    }

    /// Whether two rows have an anchor, a positive or a group in common.
    fn are_alike(&self, a: usize, b: usize) -> bool {
        let group = self.groups[a];
        self.positives[a] == self.positives[b]
            || self.anchors[a] == self.anchors[b]
            || (group.is_some() && group == self.groups[b])
    }
}
