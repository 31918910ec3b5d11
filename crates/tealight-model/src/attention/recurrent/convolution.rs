//! Linear maps whose outputs pass a short convolution and a SiLU.
//!
//! ```text
//! y_t = SiLU(Σᵢ wᵢ ⊙ (W x)_{t−size+1+i} + b)
//! ```
//!
//! The convolution is causal, has one filter for each channel, skips padding, and begins anew at a document
//! ([`tealight_ops::short_convolution`]). Its initial values are those of PyTorch's `Conv1d`, U(±1/√size).

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder};
use tealight_ops::activation::silu;
use tealight_ops::broadcast::broadcast_add;
use tealight_ops::norm::rms_norm;
use tealight_ops::short_convolution::{short_convolution, short_convolution_after};

use super::{Call, split_heads};
use crate::attention::AttentionSpec;
use crate::layers::linear::{Bias, Linear};

/// A linear map, its convolution and the SiLU.
#[derive(Debug)]
pub(in crate::attention) struct ShortProjection {
    /// The name of the map, and of the convolution's past in a state.
    name: &'static str,
    linear: Linear,
    /// `(width, size)`; `None`: no convolution.
    weight: Option<Tensor>,
    /// `(width)`
    bias: Option<Tensor>,
}

impl ShortProjection {
    /// Builds `name` and, if `size` is not 0, `name.convolution` with the `bias`.
    pub(in crate::attention) fn build(
        name: &'static str,
        width: usize,
        (size, bias): (usize, Bias),
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let linear = spec.linear(name, width, vb)?;
        let vb = vb.pp(name).pp("convolution");
        let bound = 1. / (size as f64).sqrt();
        let init = Init::Uniform { lo: -bound, up: bound };
        let weight = (size > 0).then(|| vb.get_with_hints((width, size), "weight", init));
        let bias = (size > 0 && bias == Bias::With).then(|| vb.get_with_hints(width, "bias", init));
        Ok(Self { name, linear, weight: weight.transpose()?, bias: bias.transpose()? })
    }

    /// The outputs of several maps, `(batch, len, width)` each.
    pub(in crate::attention) fn forward_all<const N: usize>(
        maps: [&Self; N],
        call: &mut Call<'_>,
    ) -> Result<[Tensor; N]> {
        let mut outputs = Linear::forward_all(maps.map(|map| &map.linear), call.x)?;
        for (map, output) in maps.into_iter().zip(&mut outputs) {
            *output = silu(&map.convolved(output, call)?)?;
        }
        Ok(outputs)
    }

    fn convolved(&self, x: &Tensor, call: &mut Call<'_>) -> Result<Tensor> {
        let Some(weight) = &self.weight else { return Ok(x.clone()) };
        let y = match &mut call.past {
            None => short_convolution(x, weight, call.tokens)?,
            Some(past) => {
                let [y, next] =
                    short_convolution_after(past.get(self.name), x, weight, call.tokens)?;
                past.insert(self.name, next);
                y
            }
        };
        match &self.bias {
            Some(bias) => broadcast_add(&y, bias),
            None => Ok(y),
        }
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
