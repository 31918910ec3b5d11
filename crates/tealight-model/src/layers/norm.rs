//! Normalisation of the vector at each position.
//!
//! ```text
//! LayerNorm(x) = (x − mean x) / √(var x + ε) · w + b        Ba et al. 2016, eq. (3)
//! RMSNorm(x)   = x / √(mean x² + ε) · w                     Zhang & Sennrich 2019, eq. (4)
//! ```
//!
//! LayerNorm: <https://arxiv.org/abs/1607.06450>. RMSNorm: <https://arxiv.org/abs/1910.07467>.
//!
//! Both use `tealight_ops::norm`, because Candle's own layers have no backward on contiguous input.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::norm::{layer_norm, rms_norm};

use crate::choice::choice;
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult};

choice! {
    /// `[model.norm]`: the normalisation of the residual stream.
    pub enum NormConfig = "layer_norm" {
        /// Zero mean, unit variance, then scale and shift (Ba et al. 2016).
        "layer_norm" => LayerNorm(LayerNormConfig),
        /// Unit root mean square, then scale (Zhang & Sennrich 2019).
        "rms_norm" => RmsNorm(RmsNormConfig),
        /// No normalisation.
        "none" => None,
    }
}

settings! {
    /// `[model.norm] kind = "layer_norm"`
    pub struct LayerNormConfig {
        /// ε under the root.
        pub epsilon: f64 = 1e-5,
        /// Add a learnt shift.
        pub bias: bool = true,
    }

    /// `[model.norm] kind = "rms_norm"`
    pub struct RmsNormConfig {
        /// ε under the root.
        pub epsilon: f64 = 1e-6,
    }
}

/// A built normalisation.
#[derive(Debug)]
pub(crate) enum Norm {
    Layer { weight: Tensor, bias: Option<Tensor>, epsilon: f64 },
    Rms { weight: Tensor, epsilon: f64 },
    Identity,
}

impl Norm {
    /// `(.., d_model)` → `(.., d_model)`
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Layer { weight, bias, epsilon } => layer_norm(x, weight, bias.as_ref(), *epsilon),
            Self::Rms { weight, epsilon } => rms_norm(x, weight, *epsilon),
            Self::Identity => Ok(x.clone()),
        }
    }
}

impl NormConfig {
    /// Builds the normalisation of vectors of width `d_model`.
    pub(crate) fn build(&self, d_model: usize, vb: &VarBuilder<'_>) -> BuildResult<Norm> {
        let weight = || vb.get_with_hints(d_model, "weight", init::ONE);
        Ok(match *self {
            Self::None => Norm::Identity,
            Self::LayerNorm(LayerNormConfig { epsilon, bias }) => {
                check_epsilon("model.norm.epsilon", epsilon)?;
                let shift = || vb.get_with_hints(d_model, "bias", init::ZERO);
                let bias = bias.then(shift).transpose()?;
                Norm::Layer { weight: weight()?, bias, epsilon }
            }
            Self::RmsNorm(RmsNormConfig { epsilon }) => {
                check_epsilon("model.norm.epsilon", epsilon)?;
                Norm::Rms { weight: weight()?, epsilon }
            }
        })
    }
}

/// Refuses an ε, the setting `key`, that is not positive.
pub(crate) fn check_epsilon(key: &str, epsilon: f64) -> BuildResult<()> {
    // A smaller ε rounds to zero in f32, and the norm of a constant row is then 0 / 0.
    let least = f64::from(f32::MIN_POSITIVE);
    if epsilon.is_finite() && epsilon >= least {
        return Ok(());
    }
    let message = format!(
        "`{key}` = {epsilon} must be positive: finite, and at least {least:e}, the smallest number of f32"
    );
    Err(BuildError::config([key], message))
}
