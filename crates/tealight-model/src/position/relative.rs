//! Relative position biases in buckets (T5: Raffel et al. 2020, §2.1,
//! <https://arxiv.org/abs/1910.10683>).
//!
//! ```text
//! scores(h, i, j) ← scores(h, i, j) + b[bucket(j − i), h]
//! ```
//!
//! Half of the buckets hold one distance each; the widths of the other half grow logarithmically up to
//! `max_distance`, and the last one holds all larger distances. In a bidirectional stack, half of all
//! buckets is for j > i. All layers share one table, as in T5.

use std::ops::RangeInclusive;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::{Position, PositionKind, PositionSpec, ScoreBias};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult};
use crate::params::init::Initializer;

settings! {
    /// `[model.position] kind = "relative"`
    pub struct Config {
        /// Number of buckets: at least 2 in a causal model, even and at least 4 otherwise.
        pub n_buckets: usize = 32,
        /// All distances from this one on share the last bucket.
        pub max_distance: usize = 128,
    }
}

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        let Self { n_buckets, max_distance } = *self;
        let (n_sides, rule) = if spec.causal {
            (1, "at least 2")
        } else {
            (2, "even and at least 4: 2 for each side")
        };
        let on_a_side = n_buckets / n_sides;
        if n_buckets % n_sides != 0 || on_a_side < 2 {
            let key = "model.position.n_buckets";
            let message = format!("`{key}` = {n_buckets} must be {rule}");
            return Err(BuildError::config([key], message));
        }
        let exact = on_a_side / 2;
        if max_distance <= exact {
            let key = "model.position.max_distance";
            let message = format!(
                "`{key}` = {max_distance} must exceed {exact}, the number of distances that have a \
                 bucket of their own under `model.position.n_buckets` = {n_buckets}"
            );
            return Err(BuildError::config([key, "model.position.n_buckets"], message));
        }
        let values = Initializer::scaled_position(spec.d_model);
        let weight = vb.get_with_hints((n_buckets, spec.n_heads), "weight", values)?;
        let relative = Relative { weight, causal: spec.causal, n_buckets, max_distance };
        Ok(Position::from_score_bias(relative))
    }

    fn n_parameters(&self, _d_model: usize, n_heads: usize, _max_seq_len: usize) -> f64 {
        self.n_buckets as f64 * n_heads as f64
    }
}

/// The table `(n_buckets, n_heads)`.
#[derive(Debug)]
pub struct Relative {
    weight: Tensor,
    causal: bool,
    n_buckets: usize,
    max_distance: usize,
}

impl ScoreBias for Relative {
    fn bias(&self, q_len: usize, kv_len: usize) -> Result<Tensor> {
        let offset = kv_len.saturating_sub(q_len);
        let buckets: Vec<u32> = (offset..offset + q_len)
            .flat_map(|i| (0..kv_len).map(move |j| self.bucket(i, j)))
            .collect();
        let buckets = Tensor::from_vec(buckets, (q_len, kv_len), self.weight.device())?;
        let bias = tealight_ops::embedding::embedding(&self.weight, &buckets)?;
        bias.permute((2, 0, 1))?.contiguous() // (n_heads, q_len, kv_len)
    }

    fn of_distances(&self, distances: RangeInclusive<i64>) -> Result<Tensor> {
        let magnitude = |distance: i64| distance.unsigned_abs() as usize;
        let bucket = |distance: i64| match distance {
            0.. => self.bucket(magnitude(distance), 0),
            ..0 => self.bucket(0, magnitude(distance)),
        };
        let buckets: Vec<u32> = distances.map(bucket).collect();
        let buckets = Tensor::new(buckets, self.weight.device())?;
        tealight_ops::embedding::embedding(&self.weight, &buckets)?.t()?.contiguous()
    }
}

impl Relative {
    fn bucket(&self, query: usize, key: usize) -> u32 {
        let distance = query.abs_diff(key);
        if self.causal {
            // Later keys are masked; T5 assigns them bucket 0.
            return self.magnitude(if key > query { 0 } else { distance }, self.n_buckets);
        }
        let half = self.n_buckets / 2;
        let side = if key > query { half as u32 } else { 0 };
        side + self.magnitude(distance, half)
    }

    fn magnitude(&self, distance: usize, n_buckets: usize) -> u32 {
        let exact = n_buckets / 2;
        if distance < exact {
            return distance as u32;
        }
        let log = |x: usize| (x as f64 / exact as f64).ln();
        let beyond = log(distance) / log(self.max_distance) * (n_buckets - exact) as f64;
        (exact + beyond as usize).min(n_buckets - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn relative(causal: bool) -> Result<Relative> {
        let weight = Tensor::zeros((32, 3), DType::F32, &Device::Cpu)?;
        Ok(Relative { weight, causal, n_buckets: 32, max_distance: 128 })
    }

    /// Computed by hand from the formula with 32 buckets and a maximal distance of 128.
    #[test]
    fn buckets_are_exact_near_and_logarithmic_far() -> Result<()> {
        let both = relative(false)?;
        assert_eq!([both.bucket(0, 0), both.bucket(7, 0), both.bucket(0, 7)], [0, 7, 23]);
        assert_eq!([both.bucket(8, 0), both.bucket(0, 8)], [8, 24]);
        assert_eq!([both.bucket(20, 0), both.bucket(127, 0), both.bucket(999, 0)], [10, 15, 15]);
        let causal = relative(true)?;
        assert_eq!([causal.bucket(15, 0), causal.bucket(16, 0), causal.bucket(0, 5)], [15, 16, 0]);
        assert_eq!(causal.bucket(999, 0), 31);
        Ok(())
    }

    #[test]
    fn two_buckets_are_enough_for_a_side() -> Result<()> {
        let weight = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
        let causal = Relative { weight, causal: true, n_buckets: 2, max_distance: 2 };
        assert_eq!([0, 1, 2, 9].map(|query| causal.bucket(query, 0)), [0, 1, 1, 1]);
        let weight = Tensor::zeros((6, 3), DType::F32, &Device::Cpu)?;
        let both = Relative { weight, causal: false, n_buckets: 6, max_distance: 4 };
        assert_eq!([0, 1, 2, 4, 9].map(|query| both.bucket(query, 0)), [0, 1, 2, 2, 2]);
        assert_eq!([1, 2, 4, 9].map(|key| both.bucket(0, key)), [4, 5, 5, 5]);
        Ok(())
    }

    #[test]
    fn a_bias_is_a_function_of_the_distance() -> Result<()> {
        for causal in [true, false] {
            let weight = Tensor::arange(0_f64, 96., &Device::Cpu)?.reshape((32, 3))?;
            let relative = Relative { weight, ..relative(causal)? };
            let of_distances = relative.of_distances(-6..=6)?.to_vec2::<f64>()?;
            for (head, rows) in relative.bias(7, 7)?.to_vec3::<f64>()?.iter().enumerate() {
                for (query, row) in rows.iter().enumerate() {
                    let same = (0..7).map(|key| of_distances[head][6 + query - key]);
                    assert!(row.iter().copied().eq(same), "{query}: {row:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn one_bias_per_head() -> Result<()> {
        assert_eq!(relative(false)?.bias(5, 7)?.dims(), [3, 5, 7]);
        Ok(())
    }
}
