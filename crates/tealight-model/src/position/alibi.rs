//! Attention with linear biases (Press et al. 2022, <https://arxiv.org/abs/2108.12409>).
//!
//! ```text
//! scores(h, i, j) ← scores(h, i, j) − m_h·|i − j|,   m_h = 2^(−8h/n_heads),   h = 1 … n_heads
//! ```
//!
//! The paper's models are causal, where |i − j| = i − j; bidirectional models use the symmetric form.
//! If the number of heads is not a power of two, two geometric sequences are interleaved, as in the
//! paper's code.

use std::ops::RangeInclusive;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

use super::{Position, PositionKind, PositionSpec, ScoreBias, constant_dtype};
use crate::choice::settings::settings;
use crate::error::BuildResult;

settings! {
    /// `[model.position] kind = "alibi"`
    pub struct Config {}
}

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        let (dtype, device) = (constant_dtype(vb.dtype()), vb.device().clone());
        Ok(Position::from_score_bias(Alibi { slopes: slopes(spec.n_heads), dtype, device }))
    }
}

/// The slopes m_h, and the dtype and device of the bias.
#[derive(Debug)]
pub struct Alibi {
    slopes: Vec<f64>,
    dtype: DType,
    device: Device,
}

impl ScoreBias for Alibi {
    fn bias(&self, q_len: usize, kv_len: usize) -> Result<Tensor> {
        let offset = kv_len.saturating_sub(q_len);
        let mut values = Vec::with_capacity(self.slopes.len() * q_len * kv_len);
        for slope in &self.slopes {
            for i in offset..offset + q_len {
                values.extend((0..kv_len).map(|j| -slope * i.abs_diff(j) as f64));
            }
        }
        let shape = (self.slopes.len(), q_len, kv_len);
        Tensor::from_vec(values, shape, &self.device)?.to_dtype(self.dtype)
    }

    fn of_distances(&self, distances: RangeInclusive<i64>) -> Result<Tensor> {
        let of_head =
            |slope: &f64| distances.clone().map(|x| -slope * x.abs() as f64).collect::<Vec<_>>();
        let rows = self.slopes.iter().map(of_head).collect::<Vec<_>>();
        Tensor::new(rows, &self.device)?.to_dtype(self.dtype)
    }
}

fn slopes(n_heads: usize) -> Vec<f64> {
    let geometric = |n: usize| (1..=n).map(move |h| 2_f64.powf(-8. * h as f64 / n as f64));
    let below = if n_heads.is_power_of_two() { n_heads } else { n_heads.next_power_of_two() / 2 };
    geometric(below).chain(geometric(2 * below).step_by(2)).take(n_heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_the_paper_s() {
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        let three = slopes(3);
        assert_eq!(three[..2], [0.0625, 0.003_906_25]);
        assert_eq!(three[2], 0.25);
    }

    #[test]
    fn the_bias_falls_with_distance_on_both_sides() -> Result<()> {
        let alibi = Alibi { slopes: vec![0.5], dtype: DType::F64, device: Device::Cpu };
        let bias = alibi.bias(2, 3)?.to_vec3::<f64>()?;
        assert_eq!(bias, [[[-0.5, -0., -0.5], [-1., -0.5, -0.]]]);
        assert_eq!(alibi.of_distances(-2..=1)?.to_vec2::<f64>()?, [[-1., -0.5, -0., -0.5]]);
        Ok(())
    }
}
