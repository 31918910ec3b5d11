//! Losses of the order of scored pairs: CoSENT (Su 2022, <https://kexue.fm/archives/8847>) and AnglE (Li & Li 2023,
//! <https://arxiv.org/abs/2309.12871>).
//!
//! ```text
//! ln(1 + Σ_{y_i > y_j} e^{s (f_j − f_i)})      f_i = cos(a_i, p_i), or the angle
//! angle    f = |Σ (re + im)|,   re + i im = x ȳ / (‖x‖ ‖y‖) of the complex vectors x and y, of which the first half
//!          of the numbers is the real part; an odd number of them gets a 0 at the end
//! ```
//!
//! The sign of the exponent is that of the code by the authors of AnglE: equation 3 of the paper has the other one.

use candle_core::{Result as TensorResult, Tensor};

use super::{EmbeddingLoss, Sides, Summed, Targets, cosines, products, unit};
use crate::checks::check;
use crate::error::Result;
use crate::settings::settings;
use crate::task::embed::rows::Wants;

settings! {
    /// `[task.loss] kind = "cosent"`
    pub struct CoSent {
        /// s: the factor of the differences.
        pub scale: f64 = 20.,
    }

    /// `[task.loss] kind = "angle"`
    pub struct Angle {
        /// s: the factor of the differences.
        pub scale: f64 = 20.,
    }
}

impl EmbeddingLoss for CoSent {
    fn validate(&self) -> Result<()> {
        check_scale(self.scale)
    }

    fn wants(&self) -> Wants {
        Wants::scored()
    }

    fn is_joint(&self) -> bool {
        true
    }

    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed> {
        ranked(&cosines(&sides.anchors, &sides.positives)?, self.scale, targets)
    }
}

impl EmbeddingLoss for Angle {
    fn validate(&self) -> Result<()> {
        check_scale(self.scale)
    }

    fn wants(&self) -> Wants {
        Wants::scored()
    }

    fn is_joint(&self) -> bool {
        true
    }

    fn loss(&self, sides: &Sides, targets: &Targets) -> TensorResult<Summed> {
        ranked(&angles(&sides.anchors, &sides.positives)?, self.scale, targets)
    }
}

fn check_scale(scale: f64) -> Result<()> {
    let is_valid = |scale: f64| scale.is_finite() && scale > 0.;
    check("task.loss.scale", scale, is_valid, "must be positive")
}

/// |Σ (re + im)| of each row: `(n, d)`, `(n, d)` → `(n)`
fn angles(x: &Tensor, y: &Tensor) -> TensorResult<Tensor> {
    let d = x.dim(1)?;
    let (x, y) = (unit(x)?.pad_with_zeros(1, 0, d % 2)?, unit(y)?.pad_with_zeros(1, 0, d % 2)?);
    let half = d.div_ceil(2);
    let [a, b] = [x.narrow(1, 0, half)?, x.narrow(1, half, half)?];
    let [c, d] = [y.narrow(1, 0, half)?, y.narrow(1, half, half)?];
    // x ȳ = (ac + bd) + i (bc − ad)
    let real = products(&x, &y)?;
    let imaginary = (products(&b, &c)? - products(&a, &d)?)?;
    (real + imaginary)?.abs()
}

/// The loss of scores `(n)`. It has no mean over rows.
fn ranked(scores: &Tensor, scale: f64, targets: &Targets) -> TensorResult<Summed> {
    let labels = &targets.labels;
    let scores = (scores * scale)?;
    // By row i, column j: f_j − f_i, if y_i > y_j.
    let differences = scores.unsqueeze(0)?.broadcast_sub(&scores.unsqueeze(1)?)?;
    let is_higher =
        |&i: &f32| labels.iter().map(move |&j| if i > j { 0. } else { f32::NEG_INFINITY });
    let mask: Vec<f32> = labels.iter().flat_map(is_higher).collect();
    let n = labels.len();
    let mask = Tensor::from_vec(mask, (n, n), scores.device())?.to_dtype(scores.dtype())?;
    let exponents = (differences + mask)?.flatten_all()?;
    // e⁰ is the 1 in the logarithm.
    let exponents = exponents.pad_with_zeros(0, 1, 0)?;
    let highest = exponents.detach().max(0)?;
    let sum = exponents.broadcast_sub(&highest)?.exp()?.sum(0)?.log()?;
    Ok(((sum + highest)?, 1.))
}
