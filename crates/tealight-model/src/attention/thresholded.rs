//! Thresholded attention: softmax attention without its small weights.
//!
//! ```text
//! cut_renormalized  Pᵢⱼ / Σ of the weights kept in row i, where Pᵢⱼ > threshold, else 0
//! cut               Pᵢⱼ where Pᵢⱼ > threshold, else 0                     P = softmax(S)
//! score_cut         softmax over the keys of scores Sᵢⱼ > threshold, 0 elsewhere
//! ```
//!
//! There is no one paper; these are the readings of "a softmax with the small weights set to zero". A
//! row of which nothing is left reads nothing and gives zeros. A threshold for weights should be
//! below 1 / kv_len: a row that is spread evenly, as rows are at the beginning of training, would
//! otherwise vanish as a whole, and the layer would have no gradient to learn from.
//!
//! Cost: that of softmax attention.

use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};
use tealight_ops::truncated_softmax::Truncation;

use super::dense;
use super::score::Score;
use super::{Attention, AttentionCost, AttentionKind, AttentionSpec};
use crate::choice::names::names;
use crate::error::BuildResult;

/// `[model.attention] kind = "thresholded"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What is not above it is cut: a weight, in [0, 1), or with `score_cut` a score, any finite number.
    pub threshold: f64,
    /// What is compared, and what becomes of the rest.
    pub rule: Rule,
    /// How much a query has to do with a key.
    pub score: Score,
}

names! {
    /// What is compared with the threshold, and what becomes of the rest.
    pub enum Rule {
        /// Weights; those that are kept are divided by their sum.
        "cut_renormalized" => CutRenormalized,
        /// Weights; those that are kept stay as they are.
        "cut" => Cut,
        /// Scores; softmax is over those that are kept.
        "score_cut" => ScoreCut,
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { threshold: 0.001, rule: Rule::CutRenormalized, score: Score::ScaledDot }
    }
}

impl Config {
    fn truncation(&self, spec: &AttentionSpec<'_>) -> BuildResult<Truncation> {
        let threshold = self.threshold;
        // As it is written in the TOML, and not with 300 zeros.
        let refused =
            |rule: &str| Err(spec.invalid("threshold", &format!("= {threshold:?} {rule}")));
        match self.rule {
            Rule::CutRenormalized | Rule::Cut if !(0. ..1.).contains(&threshold) => {
                refused("must be at least 0 and below 1, as weights are")
            }
            Rule::ScoreCut if !threshold.is_finite() => refused("must be finite"),
            Rule::CutRenormalized => Ok(Truncation::CutRenormalized(threshold)),
            Rule::Cut => Ok(Truncation::Cut(threshold)),
            Rule::ScoreCut => Ok(Truncation::ScoreCut(threshold)),
        }
    }
}

impl AttentionKind for Config {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        dense::build(spec, vb, self.score, self.truncation(spec)?)
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        dense::cost(spec, self.score, q_len, kv_len)
    }
}
