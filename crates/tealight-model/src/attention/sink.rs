//! A score beside those of the keys, which takes weight and has no value (Agarwal et al. 2025, "gpt-oss",
//! <https://arxiv.org/abs/2508.10925>; Miller 2023, "Attention is off by one",
//! <https://www.evanmiller.org/attention-is-off-by-one.html>).
//!
//! ```text
//! p_ij = e^(s_ij) / (e^z + Σ_j e^(s_ij))              z of each head, not scaled; z = 0: off by one
//! ```
//!
//! A query that finds nothing worth reading may then read nothing: its weights sum to less than 1. It equals softmax
//! attention times σ(ln Σ e^s − z). Learnt sinks begin at 0, as in `transformers`' `granite_swa`; gpt-oss does not say.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};

use super::{AttentionSpec, RowSum};
use crate::choice::names::names;

names! {
    /// What takes weight beside the keys.
    pub enum Sink {
        /// Nothing: the weights of a query sum to 1.
        "none" => None,
        /// A learnt score of each head (gpt-oss).
        "learnt" => Learnt,
        /// A score of 0: 1 is added to the sum of exponentials (off by one).
        "one" => One,
    }
}

impl Sink {
    /// z `(n_heads)`, a parameter `sink` if it is learnt.
    pub(super) fn build(
        self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Option<Tensor>> {
        Ok(match self {
            Self::None => None,
            Self::Learnt => Some(vb.get_with_hints(spec.n_heads, "sink", init::ZERO)?),
            Self::One => Some(Tensor::zeros(spec.n_heads, vb.dtype(), vb.device())?),
        })
    }

    /// The number of parameters.
    pub(super) fn n_parameters(self, spec: &AttentionSpec<'_>) -> f64 {
        if self == Self::Learnt { spec.n_heads as f64 } else { 0. }
    }

    /// What the weights of a query sum to.
    pub(super) fn row_sum(self) -> RowSum {
        if self == Self::None { RowSum::One } else { RowSum::AtMostOne }
    }
}
