//! Normalised queries and keys, which bound the scores (Henry et al. 2020, <https://arxiv.org/abs/2010.04245>; Dehghani et
//! al. 2023, <https://arxiv.org/abs/2302.05442>).
//!
//! ```text
//! q ← g_q ⊙ q / √(mean(q²) + ε),   k ← g_k ⊙ k / √(mean(k²) + ε)
//! ```
//!
//! The mean is that of one head, and its gains are those of all heads; or the mean is that of all heads, and each has
//! gains of its own (OLMo 2, 2025, <https://arxiv.org/abs/2501.00656>). Henry et al. divide by the length and learn one
//! scale for the scores; Dehghani et al. use LayerNorm. Here it is the root mean square.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::norm::rms_norm;
use tealight_ops::reshape;

use super::AttentionSpec;
use crate::choice::names::names;
use crate::error::BuildResult;
use crate::layers::norm::check_epsilon;

names! {
    /// The features over which the mean of a norm of queries or keys is taken.
    pub enum NormOver {
        /// Those of one head; all heads share the gains.
        "head" => Head,
        /// Those of all heads, each with its own gains.
        "all_heads" => AllHeads,
    }
}

impl NormOver {
    /// The number of gains of queries and keys with these widths of a head, and of all heads.
    pub(super) fn n_parameters(self, head_dim: f64, [width, kv_width]: [f64; 2]) -> f64 {
        match self {
            Self::Head => 2. * head_dim,
            Self::AllHeads => width + kv_width,
        }
    }
}

/// The settings of the norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QkNorm {
    pub(crate) epsilon: f64,
    pub(crate) over: NormOver,
}

/// g, and ε.
#[derive(Debug)]
pub(super) struct Gain {
    /// `(head_dim)` or `(n_heads·head_dim)`
    weight: Tensor,
    epsilon: f64,
}

impl QkNorm {
    /// Builds `query_norm` and `key_norm`, for these numbers of heads.
    pub(super) fn build(
        self,
        n_heads: [usize; 2],
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<[Gain; 2]> {
        let Self { epsilon, over } = self;
        check_epsilon(&format!("{}.qk_norm_epsilon", spec.key), epsilon)?;
        let gain = |name, n_heads| {
            let width = match over {
                NormOver::Head => spec.head_dim(),
                NormOver::AllHeads => spec.head_dim().saturating_mul(n_heads),
            };
            let weight = vb.pp(name).get_with_hints(width, "weight", init::ONE)?;
            BuildResult::Ok(Gain { weight, epsilon })
        };
        Ok([gain("query_norm", n_heads[0])?, gain("key_norm", n_heads[1])?])
    }
}

impl Gain {
    /// `x (batch, len, width)`, normalised, in heads: `(batch, len, n_heads, head_dim)`
    pub(super) fn forward(&self, x: &Tensor, n_heads: usize) -> Result<Tensor> {
        let (batch, len, width) = x.dims3()?;
        let n_parts = width / self.weight.elem_count();
        let in_parts = |x: &Tensor, n| reshape(x, (batch, len, n, width / n));
        let parts = rms_norm(&in_parts(x, n_parts)?, &self.weight, self.epsilon)?;
        if n_parts == n_heads { Ok(parts) } else { in_parts(&parts, n_heads) }
    }
}
