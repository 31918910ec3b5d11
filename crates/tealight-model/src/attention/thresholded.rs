//! Thresholded attention: softmax attention without its small weights.
//!
//! ```text
//! cut_renormalized  Pᵢⱼ / Σ of the weights kept in row i, where Pᵢⱼ > threshold, else 0
//! cut               Pᵢⱼ where Pᵢⱼ > threshold, else 0                     P = softmax(S)
//! score_cut         softmax over the keys of scores Sᵢⱼ > threshold, 0 elsewhere
//! ```
//!
//! No single paper defines it; these are three ways to set the small weights of a softmax to zero. A row
//! without any weight left gives zeros. A threshold on weights should be below 1 / kv_len: at the beginning
//! of training weights are nearly uniform, and a higher threshold would remove whole rows, with their
//! gradient.
//!
//! Cost: that of softmax attention with a matrix of scores.

use candle_core::{Result, Tensor};
use tealight_ops::truncated_softmax::{Truncation, truncated_softmax};

use super::dense::DenseKind;
use super::onnx::dense::Scores;
use super::reduces_to::ReducesTo;
use super::score::Score;
use super::{AttentionSpec, RowSum};
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{FORBIDDEN, Value};

settings! {
    /// `[model.attention] kind = "thresholded"`
    pub struct Config {
        /// Weights not above this threshold become zero; it lies in [0, 1). Under `score_cut` it applies to
        /// scores and is any finite number.
        pub threshold: f64 = 0.001,
        /// Whether weights or scores are compared, and whether the kept weights are renormalised.
        pub rule: Rule = Rule::CutRenormalized,
        /// How similar a query is to a key.
        pub score: Score = Score::ScaledDot,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

names! {
    /// Whether weights or scores are compared with the threshold, and whether the kept weights are
    /// renormalised.
    pub enum Rule {
        /// Weights; the kept ones are divided by their sum.
        "cut_renormalized" => CutRenormalized,
        /// Weights; the kept ones are unchanged.
        "cut" => Cut,
        /// Scores; softmax is over the kept ones.
        "score_cut" => ScoreCut,
    }
}

impl DenseKind for Config {
    fn score(&self) -> Score {
        self.score
    }

    fn validate(&self, spec: &AttentionSpec<'_>) -> BuildResult<()> {
        let threshold = self.threshold;
        let rule = match self.rule {
            Rule::CutRenormalized | Rule::Cut if !(0. ..1.).contains(&threshold) => {
                "must be at least 0 and below 1, as weights are"
            }
            Rule::ScoreCut if !threshold.is_finite() => "must be finite",
            _ => return Ok(()),
        };
        // `{:?}` writes the number as in the TOML, where `{}` may write 300 zeros.
        Err(spec.invalid("threshold", &format!("= {threshold:?} {rule}")))
    }

    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        let truncation = match self.rule {
            Rule::CutRenormalized => Truncation::CutRenormalized(self.threshold),
            Rule::Cut => Truncation::Cut(self.threshold),
            Rule::ScoreCut => Truncation::ScoreCut(self.threshold),
        };
        truncated_softmax(scores, truncation)
    }

    fn reduces_to(&self, _len: usize) -> Option<ReducesTo> {
        let cuts_nothing = self.threshold == 0. && self.rule != Rule::ScoreCut;
        cuts_nothing.then(|| ReducesTo::softmax("threshold", &0, "removes no weight"))
    }

    /// A row may have no weight left.
    fn row_sum(&self) -> RowSum {
        RowSum::AtMostOne
    }

    fn onnx_weights(&self, s: &Scores<'_>) -> Option<Value> {
        let Scores { graph, matrix: scores, .. } = s;
        let (threshold, zero) = (graph.number(self.threshold), graph.number(0.));
        if self.rule == Rule::ScoreCut {
            let kept = graph.and(&graph.greater(scores, &threshold), &s.mask.allowed);
            let weights = graph.softmax(&graph.select(&kept, scores, &graph.number(FORBIDDEN)), -1);
            return Some(graph.select(&kept, &weights, &zero));
        }
        let weights = graph.softmax(scores, -1);
        let cut = graph.select(&graph.greater(&weights, &threshold), &weights, &zero);
        Some(match self.rule {
            Rule::CutRenormalized => graph.div(&cut, &graph.nonzero(&graph.sum(&cut, -1))),
            Rule::Cut | Rule::ScoreCut => cut,
        })
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}
