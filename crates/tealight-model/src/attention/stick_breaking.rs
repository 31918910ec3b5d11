//! Stick-breaking attention (Tan et al. 2025, <https://arxiv.org/abs/2410.17980>).
//!
//! ```text
//! z_ij = σ(s_ij),   A_ij = z_ij Π_{j<k<i} (1 − z_ik),   o_i = Σ_{j<i} A_ij v_j
//! ```
//!
//! The nearest keys take their share first, so order needs no positions. A query does not read itself. What the keys leave,
//! 1 − Σ_j A_ij, is lost; with `rest` it goes to v_i, as in the tests of the authors' code, whose operation returns it
//! beside the output. The first position reads nothing and gives zeros, unless `rest`. What padding itself gives is not
//! specified: with `rest` it reads itself.
//!
//! Cost: O(T²·d_model) time; memory as in [`dense`](super::dense). The weights come from logarithms
//! ([`tealight_ops::stick_breaking`]).

use candle_core::{Result, Tensor};
use tealight_ops::stick_breaking::{Rest, stick_breaking};

use super::dense::DenseKind;
use super::score::Score;
use super::{AttentionSpec, RowSum};
use crate::choice::settings::settings;
use crate::error::BuildResult;

settings! {
    /// `[model.attention] kind = "stick_breaking"`
    pub struct Config {
        /// How similar a query is to a key.
        pub score: Score = Score::ScaledDot,
        /// Give the weight that is left to the position itself.
        pub rest: bool = false,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl DenseKind for Config {
    fn score(&self) -> Score {
        self.score
    }

    fn validate(&self, spec: &AttentionSpec<'_>) -> BuildResult<()> {
        spec.require_causal(
            "stick_breaking",
            "keys take their shares from the query's position backwards",
        )
    }

    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        stick_breaking(scores, if self.rest { Rest::Own } else { Rest::Lost })
    }

    fn row_sum(&self) -> RowSum {
        RowSum::AtMostOne
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}
