//! The linear map y = x Wᵀ + b, with the parameter names `weight (out, in)` and `bias (out)`.

use candle_core::{DType, Result, Tensor};
use candle_nn::{Init, VarBuilder, init};
use tealight_ops::linear::{Map, linear, linears};
use tealight_ops::linear_cross_entropy::{Scored, linear_cross_entropy};

/// A linear map over the last axis.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

/// Whether a linear map adds a bias: `[model] bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// y = x Wᵀ + b.
    With,
    /// y = x Wᵀ.
    Without,
}

impl Linear {
    /// A map from `n_in` to `n_out` features; `weight` comes from [`crate::init`].
    pub fn build(
        [n_in, n_out]: [usize; 2],
        bias: Bias,
        weight: Init,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        Self::with_weight(vb.get_with_hints((n_out, n_in), "weight", weight)?, bias, vb)
    }

    /// A map with the given `weight (n_out, n_in)`.
    pub(crate) fn with_weight(weight: Tensor, bias: Bias, vb: &VarBuilder<'_>) -> Result<Self> {
        let (n_out, _n_in) = weight.dims2()?;
        let bias = match bias {
            Bias::With => Some(vb.get_with_hints(n_out, "bias", init::ZERO)?),
            Bias::Without => None,
        };
        Ok(Self { weight, bias })
    }

    /// `(.., n_in)` → `(.., n_out)`
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        linear(x, &self.weight, self.bias.as_ref())
    }

    /// The outputs of several maps of the same `x (.., n_in)`; faster than separate calls.
    pub fn forward_all<const N: usize>(maps: [&Self; N], x: &Tensor) -> Result<[Tensor; N]> {
        linears(x, maps.map(Self::map))
    }

    /// The cross-entropy of `labels (n)` under the logits that the map computes from `x (n, n_in)`.
    pub fn cross_entropy(
        &self,
        x: &Tensor,
        labels: &Tensor,
        label_smoothing: f64,
    ) -> Result<Scored> {
        linear_cross_entropy(x, self.map(), labels, label_smoothing)
    }

    /// The dtype of the weights.
    pub(crate) fn dtype(&self) -> DType {
        self.weight.dtype()
    }

    /// W and b, as operations take them.
    pub(crate) fn map(&self) -> Map<'_> {
        Map { weight: &self.weight, bias: self.bias.as_ref() }
    }
}
