//! Weighted means that grow position by position: the decoding state of linear attention, RWKV and
//! AFT-simple, whose size does not depend on the length of the past.
//!
//! ```text
//! N = Σⱼ e^(lⱼ − m) vⱼ,   D = Σⱼ e^(lⱼ − m),   m = maxⱼ lⱼ,   mean = N / D
//! ```
//!
//! lⱼ is the logarithm of the weight of value vⱼ. Relative to m no exponential overflows.

use candle_core::{Result, Tensor};

/// N, D and m; m and D have the same shape, or one that broadcasts to that of N.
#[derive(Clone, Debug)]
pub(super) struct RunningMean {
    /// m
    pub(super) max: Tensor,
    /// N
    pub(super) numerator: Tensor,
    /// D
    pub(super) denominator: Tensor,
}

impl RunningMean {
    /// Of one value for each log weight, of the same shape.
    pub(super) fn from_value(log_weight: &Tensor, value: &Tensor) -> Result<Self> {
        let (max, numerator) = (log_weight.clone(), value.clone());
        Ok(Self { max, numerator, denominator: log_weight.ones_like()? })
    }

    /// Of the values of both.
    pub(super) fn merged(&self, other: &Self) -> Result<Self> {
        let max = self.max.maximum(&other.max)?;
        let own = (&self.max - &max)?.exp()?;
        let others = (&other.max - &max)?.exp()?;
        Ok(Self {
            numerator: (self.numerator.broadcast_mul(&own)?
                + other.numerator.broadcast_mul(&others)?)?,
            denominator: ((&self.denominator * &own)? + (&other.denominator * &others)?)?,
            max,
        })
    }

    /// Of the same values with all weights multiplied by e^exponent.
    pub(super) fn scaled(&self, exponent: &Tensor) -> Result<Self> {
        Ok(Self { max: self.max.broadcast_add(exponent)?, ..self.clone() })
    }

    /// N / D
    pub(super) fn mean(&self) -> Result<Tensor> {
        &self.numerator / &self.denominator
    }

    /// All three, to be reordered.
    pub(super) fn tensors_mut(&mut self) -> [&mut Tensor; 3] {
        [&mut self.max, &mut self.numerator, &mut self.denominator]
    }
}
