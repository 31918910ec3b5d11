//! Linear maps of pooled vectors, as sentence-transformers' module `Dense`.
//!
//! ```text
//! y = φ(W x + b)
//! ```

use candle_core::{Device, Tensor};
use tealight_model::models::pooling::{DenseActivation, DenseMap};

use crate::error::Result;

/// The name of the map's matrix among the parameters of a model, `(n_out, n_in)`.
pub(crate) const WEIGHT: &str = "dense.weight";
/// The name of its bias, `(n_out)`.
pub(crate) const BIAS: &str = "dense.bias";

/// A linear map behind the pooling.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// `n_out` rows of `n_in` numbers.
    pub(crate) weight: Vec<f32>,
    /// `n_out` numbers.
    pub(crate) bias: Option<Vec<f32>>,
    /// The length of a vector before it.
    pub n_in: usize,
    /// The length of a vector behind it.
    pub n_out: usize,
    /// φ
    pub activation: DenseActivation,
}

impl Dense {
    /// The same map, with tensors.
    pub(crate) fn map(&self) -> Result<DenseMap> {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu);
        Ok(DenseMap {
            weight: tensor(&self.weight)?.reshape((self.n_out, self.n_in))?,
            bias: self.bias.as_deref().map(tensor).transpose()?,
            activation: self.activation,
        })
    }

    /// `(n_in)` → `(n_out)`
    pub(super) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let rows = self.weight.chunks_exact(self.n_in).enumerate();
        let output = |(at, row): (usize, &[f32])| {
            let bias = self.bias.as_ref().map_or(0., |bias| bias[at]);
            let product: f32 = row.iter().zip(x).map(|(w, x)| w * x).sum();
            match self.activation {
                DenseActivation::Identity => product + bias,
                DenseActivation::Tanh => (product + bias).tanh(),
                DenseActivation::Relu => (product + bias).max(0.),
            }
        };
        rows.map(output).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_that_of_its_formula() {
        let of = |activation, bias: Option<Vec<f32>>| {
            let weight = vec![1., 2., -3., 0.5, 0., 0.];
            Dense { weight, bias, n_in: 2, n_out: 3, activation }.apply(&[2., -1.])
        };
        assert_eq!(of(DenseActivation::Identity, None), [0., -6.5, 0.]);
        let bias = Some(vec![1., 6., -2.]);
        assert_eq!(of(DenseActivation::Identity, bias.clone()), [1., -0.5, -2.]);
        assert_eq!(of(DenseActivation::Relu, bias.clone()), [1., 0., 0.]);
        let tanh = [1_f32, -0.5, -2.].map(f32::tanh);
        assert_eq!(of(DenseActivation::Tanh, bias), tanh);
    }
}
