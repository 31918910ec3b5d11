//! Linear maps whose outputs pass a short convolution and a SiLU.
//!
//! ```text
//! y_t = SiLU(Σᵢ wᵢ ⊙ (W x)_{t−size+1+i} + b)
//! ```

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::silu;
use tealight_ops::norm::rms_norm;

use super::{Call, split_heads};
use crate::attention::AttentionSpec;
use crate::attention::short_convolution::ShortConvolution;
use crate::layers::linear::{Bias, Linear};

/// A linear map, its convolution and the SiLU.
#[derive(Debug)]
pub(in crate::attention) struct ShortProjection {
    linear: Linear,
    convolution: Option<ShortConvolution>,
}

impl ShortProjection {
    /// Builds `name` and, if `size` is not 0, `name.convolution` with the `bias`.
    pub(in crate::attention) fn build(
        name: &'static str,
        width: usize,
        convolution: (usize, Bias),
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let linear = spec.linear(name, width, vb)?;
        Ok(Self { linear, convolution: ShortConvolution::build(name, width, convolution, vb)? })
    }

    /// The outputs of several maps, `(batch, len, width)` each.
    pub(in crate::attention) fn forward_all<const N: usize>(
        maps: [&Self; N],
        call: &mut Call<'_>,
    ) -> Result<[Tensor; N]> {
        let mut outputs = Linear::forward_all(maps.map(|map| &map.linear), call.x)?;
        for (map, output) in maps.into_iter().zip(&mut outputs) {
            let convolution = map.convolution.as_ref();
            let convolved = ShortConvolution::plain(convolution, output, &mut call.before())?;
            *output = silu(&convolved)?;
        }
        Ok(outputs)
    }
}

/// The unit vectors of each head, times a scale: a x / √(Σ x² + 10⁻⁶), as fla and `transformers` have it.
#[derive(Debug)]
pub(in crate::attention) struct Unit {
    /// a / √width, `(width)`
    gain: Tensor,
    epsilon: f64,
}

impl Unit {
    /// Of heads of this `width`.
    pub(in crate::attention) fn new(width: usize, scale: f64, vb: &VarBuilder<'_>) -> Result<Self> {
        Self::with_epsilon(width, scale, 1e-6, vb)
    }

    /// With another number than 10⁻⁶.
    pub(in crate::attention) fn with_epsilon(
        width: usize,
        scale: f64,
        epsilon: f64,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let gain = Tensor::ones(width, vb.dtype(), vb.device())?
            .affine(scale / (width as f64).sqrt(), 0.)?;
        Ok(Self { gain, epsilon: epsilon / width as f64 })
    }

    /// `(batch, len, n_heads·width)` → `(batch, len, n_heads, width)`
    pub(in crate::attention) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(&split_heads(x, self.gain.elem_count())?, &self.gain, self.epsilon)
    }
}
