//! Near and far pairs (Hadsell, Chopra & LeCun 2006, <https://doi.org/10.1109/CVPR.2006.100>).
//!
//! ```text
//! mean ½ (y d² + (1 − y) max(0, margin − d)²)       d = 1 − cos(a, p), y = 0 or 1
//!
//! online: Σ d² of the pairs with y = 1 and d > min d of those with y = 0
//!       + Σ max(0, margin − d)² of the pairs with y = 0 and d < max d of those with y = 1
//! ```
//!
//! The second is that of sentence-transformers: a sum, and where the other label has fewer than two pairs, the mean of
//! the own label takes the place of its extreme.

use candle_core::{DType, Device, Result as TensorResult, Tensor};

use super::{EmbeddingLoss, Sides, Summed, Targets, cosines};
use crate::checks::check;
use crate::error::Result;
use crate::settings::settings;
use crate::task::embed::rows::Wants;

settings! {
    /// `[task.loss] kind = "contrastive"`
    pub struct Contrastive {
        /// The distance beyond which a pair with label 0 has no loss.
        pub margin: f64 = 0.5,
    }

    /// `[task.loss] kind = "online_contrastive"`
    pub struct Online {
        /// The distance beyond which a pair with label 0 has no loss.
        pub margin: f64 = 0.5,
    }
}

impl EmbeddingLoss for Contrastive {
    fn validate(&self) -> Result<()> {
        check_margin(self.margin)
    }

    fn wants(&self) -> Wants {
        Wants::binary()
    }

    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed> {
        let distances = distances(sides)?;
        let near = targets.labels(&distances)?;
        let sum = summed(&distances, &near, &near.affine(-1., 1.)?, self.margin)?;
        Ok(((sum * 0.5)?, sides.n()? as f64))
    }
}

impl EmbeddingLoss for Online {
    fn validate(&self) -> Result<()> {
        check_margin(self.margin)
    }

    fn wants(&self) -> Wants {
        Wants::binary()
    }

    fn is_joint(&self) -> bool {
        true
    }

    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed> {
        let distances = distances(sides)?;
        let on_host = distances.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let on_host: Vec<f64> = on_host.to_vec1()?;
        let of_label = |label: f32| -> Vec<f64> {
            let both = on_host.iter().zip(&targets.labels);
            both.filter(|(_, own)| **own == label).map(|(d, _)| *d).collect()
        };
        let (near, far) = (of_label(1.), of_label(0.));
        let mean = |own: &[f64]| own.iter().sum::<f64>() / own.len().max(1) as f64;
        let nearest = if far.len() > 1 { least(&far) } else { mean(&near) };
        let farthest = if near.len() > 1 {
            -least(&near.iter().map(|d| -d).collect::<Vec<_>>())
        } else {
            mean(&far)
        };
        let chosen = |label: f32, is_hard: &dyn Fn(f64) -> bool| {
            let both = on_host.iter().zip(&targets.labels);
            let flags = both.map(|(&d, own)| f32::from(u8::from(*own == label && is_hard(d))));
            let flags: Vec<f32> = flags.collect();
            Tensor::new(flags, distances.device())?.to_dtype(distances.dtype())
        };
        let (near, far) = (chosen(1., &|d| d > nearest)?, chosen(0., &|d| d < farthest)?);
        Ok((summed(&distances, &near, &far, self.margin)?, 1.))
    }
}

fn check_margin(margin: f64) -> Result<()> {
    let rule = "must be positive and at most 2, the largest distance";
    check("task.loss.margin", margin, |margin| margin > 0. && margin <= 2., rule)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// 1 − cos of each pair: `(n)`
fn distances(sides: &Sides) -> TensorResult<Tensor> {
    cosines(&sides.anchors, &sides.positives)?.affine(-1., 1.)
}

/// Σ near d² + far max(0, margin − d)²
fn summed(distances: &Tensor, near: &Tensor, far: &Tensor, margin: f64) -> TensorResult<Tensor> {
    let of_near = (near * distances.sqr()?)?;
    let of_far = (far * distances.affine(-1., margin)?.relu()?.sqr()?)?;
    (of_near + of_far)?.sum_all()
}
