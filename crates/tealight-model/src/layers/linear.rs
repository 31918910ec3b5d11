//! The linear map y = x Wᵀ + b, with the parameter names `weight (out, in)` and `bias (out)`.

use std::sync::{Arc, OnceLock};

use candle_core::{DType, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder, init};
use tealight_ops::activation::Function;
use tealight_ops::cross_entropy::{cross_entropy, hits};
use tealight_ops::int8_linear::{self, int8_linears};
use tealight_ops::linear::{Map, linear, linears};
use tealight_ops::linear_cross_entropy::{Scored, linear_cross_entropy};
use tealight_ops::{ProductPrecision, product_precision};

/// A linear map over the last axis.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    /// The weight in bytes, once it has been asked for; `None` if it cannot be rounded.
    int8: OnceLock<Option<Arc<int8_linear::Weight>>>,
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
        Ok(Self { weight, bias, int8: OnceLock::new() })
    }

    /// `(.., n_in)` → `(.., n_out)`
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self.forward_int8(x, None)? {
            Some(y) => Ok(y),
            None => linear(x, &self.weight, self.bias.as_ref()),
        }
    }

    /// The outputs, followed by `function`, where the map is computed in int8; `None` elsewhere.
    pub(crate) fn forward_int8(
        &self,
        x: &Tensor,
        function: Option<Function>,
    ) -> Result<Option<Tensor>> {
        let map = self.int8(x, function)?;
        map.map(|map| Ok(int8_linears(x, &[map])?.remove(0))).transpose()
    }

    /// The outputs of several maps of the same `x (.., n_in)`; faster than separate calls.
    pub fn forward_all<const N: usize>(maps: [&Self; N], x: &Tensor) -> Result<[Tensor; N]> {
        let in_int8 =
            maps.iter().map(|map| map.int8(x, None)).collect::<Result<Option<Vec<_>>>>()?;
        let Some(in_int8) = in_int8 else { return linears(x, maps.map(Self::map)) };
        let Ok(outputs) = int8_linears(x, &in_int8)?.try_into() else {
            bail!("expected a result of each of {N} maps")
        };
        Ok(outputs)
    }

    /// The map in int8, followed by `function`, if this thread asks for it, nothing is trained, and the weight can be
    /// rounded. The weight is rounded at the first call, and must not change afterwards.
    fn int8<'a>(
        &'a self,
        x: &Tensor,
        function: Option<Function>,
    ) -> Result<Option<int8_linear::Map<'a>>> {
        let is_trained = x.track_op() || self.weight.track_op();
        if product_precision() != ProductPrecision::Int8 || is_trained {
            return Ok(None);
        }
        let weight = if let Some(weight) = self.int8.get() {
            weight
        } else {
            let weight = int8_linear::Weight::from_tensor(&self.weight)?.map(Arc::new);
            self.int8.get_or_init(|| weight)
        };
        let bias = self.bias.as_ref();
        Ok(weight.as_ref().map(|weight| int8_linear::Map { weight, bias, function }))
    }

    /// The cross-entropy of `labels (n)` under the logits that the map computes from `x (n, n_in)`.
    pub fn cross_entropy(
        &self,
        x: &Tensor,
        labels: &Tensor,
        label_smoothing: f64,
    ) -> Result<Scored> {
        if x.dim(0)? > 0 && self.int8(x, None)?.is_some() {
            return self.cross_entropy_int8(x, labels, label_smoothing);
        }
        linear_cross_entropy(x, self.map(), labels, label_smoothing)
    }

    /// The same of logits that are computed in int8, in chunks of rows.
    fn cross_entropy_int8(
        &self,
        x: &Tensor,
        labels: &Tensor,
        label_smoothing: f64,
    ) -> Result<Scored> {
        const ROWS: usize = 256;
        let mut scores = Vec::new();
        for start in (0..x.dim(0)?).step_by(ROWS) {
            let n = ROWS.min(x.dim(0)? - start);
            let (logits, labels) =
                (self.forward(&x.narrow(0, start, n)?)?, labels.narrow(0, start, n)?);
            let loss = cross_entropy(&logits, &labels, label_smoothing)?;
            scores.push((loss, hits(&logits, &labels)?));
        }
        let (losses, hits): (Vec<_>, Vec<_>) = scores.into_iter().unzip();
        Ok(Scored {
            loss: Tensor::stack(&losses, 0)?.sum(0)?,
            hits: Tensor::stack(&hits, 0)?.sum(0)?,
        })
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
