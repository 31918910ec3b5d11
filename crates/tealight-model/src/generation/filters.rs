//! Filters of the next token's logits for sampling.
//!
//! ```text
//! repetition   x_k ← x_k / θ if x_k > 0 else x_k θ,  for tokens k read so far   Keskar et al. 2019, §4.1
//! temperature  x_k ← x_k / T
//! top-k        the k largest                                                       Fan et al. 2018, §5.4
//! top-p        the smallest set of most probable tokens with Σ p_k ≥ p         Holtzman et al. 2020, §3.1
//! min-p        those with p_k ≥ p·max p                                           Nguyen et al. 2024, §3
//! ```
//!
//! Repetition: <https://arxiv.org/abs/1909.05858>, which divides negative scores, too, and thereby raises
//! them; we multiply negative scores by θ, as common implementations do. Top-k:
//! <https://arxiv.org/abs/1805.04833>. Top-p: <https://arxiv.org/abs/1904.09751>. Min-p:
//! <https://arxiv.org/abs/2407.01082>. The filters apply in the order of the list, each to the renormalised
//! probabilities that the previous ones leave. The score of a dropped token is −∞.
//!
//! Cost: O(vocab_size·log vocab_size) for each generated token.

use std::collections::BTreeSet;

/// Settings of the distribution that tokens are sampled from. The default leaves it unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// T > 0: the sampling temperature; values below 1 sharpen the distribution.
    pub temperature: f64,
    /// Sample from this number of most probable tokens only.
    pub top_k: Option<usize>,
    /// Sample from the smallest set of most probable tokens with at least this total probability; in (0, 1].
    pub top_p: Option<f64>,
    /// Sample from tokens with at least this fraction of the largest probability; in [0, 1].
    pub min_p: Option<f64>,
    /// θ > 0: values above 1 make tokens less probable that the prompt or the text so far contains.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1., top_k: None, top_p: None, min_p: None, repetition_penalty: 1. }
    }
}

impl Sampling {
    /// The field that is out of range, and the rule that it breaks:
    /// `("top_p", "= 2 must be greater than 0 and at most 1")`.
    pub fn fault(&self) -> Option<(&'static str, String)> {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty } = *self;
        for (name, value) in
            [("temperature", temperature), ("repetition_penalty", repetition_penalty)]
        {
            if !(value.is_finite() && value > 0.) {
                return Some((name, format!("= {value} must be a positive number")));
            }
        }
        // Other penalties could overflow a logit.
        if !(1e-3..=1e3).contains(&repetition_penalty) {
            let rule = format!("= {repetition_penalty} must be between 0.001 and 1000");
            return Some(("repetition_penalty", rule));
        }
        match (top_k, top_p, min_p) {
            (Some(0), ..) => Some(("top_k", "= 0 must be positive".to_owned())),
            (_, Some(p), _) if !(p > 0. && p <= 1.) => {
                Some(("top_p", format!("= {p} must be greater than 0 and at most 1")))
            }
            (.., Some(p)) if !(0. ..=1.).contains(&p) => {
                Some(("min_p", format!("= {p} must be at least 0 and at most 1")))
            }
            _ => None,
        }
    }

    /// The probabilities to sample the next token from, given the logits and the tokens read so far.
    pub(super) fn weights(&self, logits: &[f64], read: &[u32]) -> Vec<f64> {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty } = *self;
        let mut scores = logits.to_vec();
        if repetition_penalty != 1. {
            penalise(&mut scores, read, repetition_penalty);
        }
        // Relative to the largest score, so that a low temperature neither overflows nor underflows.
        let largest = largest(&scores);
        for score in &mut scores {
            *score = (*score - largest) / temperature;
        }
        if let Some(k) = top_k {
            keep_top_k(&mut scores, k);
        }
        if let Some(p) = top_p {
            keep_top_p(&mut scores, p);
        }
        if let Some(p) = min_p {
            keep_min_p(&mut scores, p);
        }
        probabilities(&scores)
    }
}

/// Lowers the score of every token in `read`, once regardless of how often it occurs.
fn penalise(scores: &mut [f64], read: &[u32], penalty: f64) {
    let distinct: BTreeSet<usize> = read.iter().map(|&id| id as usize).collect();
    for id in distinct {
        if let Some(score) = scores.get_mut(id) {
            *score = if *score < 0. { *score * penalty } else { *score / penalty };
        }
    }
}

/// Keeps the `k` largest scores; of equal ones, the first.
fn keep_top_k(scores: &mut [f64], k: usize) {
    for &id in by_rank(scores).iter().skip(k) {
        scores[id] = f64::NEG_INFINITY;
    }
}

/// Keeps the smallest set of most probable tokens whose total probability is at least `p`.
fn keep_top_p(scores: &mut [f64], p: f64) {
    let probabilities = probabilities(scores);
    let mut before = 0.;
    for id in by_rank(scores) {
        if before >= p {
            scores[id] = f64::NEG_INFINITY;
        }
        before += probabilities[id];
    }
}

/// Keeps tokens whose probability is at least `share` times the largest one.
fn keep_min_p(scores: &mut [f64], share: f64) {
    // The ratio of two probabilities is the exponential of the difference of their scores.
    let least = largest(scores) + share.ln();
    for score in scores.iter_mut().filter(|score| **score < least) {
        *score = f64::NEG_INFINITY;
    }
}

/// Softmax, in f64.
pub(super) fn probabilities(scores: &[f64]) -> Vec<f64> {
    let largest = largest(scores);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// The logarithms of [`probabilities`].
pub(super) fn log_probabilities(scores: &[f64]) -> Vec<f64> {
    let largest = largest(scores);
    let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
    scores.iter().map(|score| score - largest - sum.ln()).collect()
}

fn largest(scores: &[f64]) -> f64 {
    scores.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Ids in descending order of their scores; equal scores in order of the ids.
fn by_rank(scores: &[f64]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..scores.len()).collect();
    ids.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 1/2, 1/4, 1/8, 1/8, out of order.
    fn scores() -> Vec<f64> {
        [0.125, 0.5, 0.125, 0.25].map(f64::ln).to_vec()
    }

    fn kept(scores: &[f64]) -> Vec<usize> {
        (0..scores.len()).filter(|&id| scores[id].is_finite()).collect()
    }

    fn after(filter: impl FnOnce(&mut [f64])) -> Vec<usize> {
        let mut scores = scores();
        filter(&mut scores);
        kept(&scores)
    }

    #[test]
    fn a_repetition_is_penalised_once_and_downwards() {
        let mut scores = vec![2., -2., 3., -3., f64::NEG_INFINITY];
        penalise(&mut scores, &[0, 1, 0, 1, 1, 4, 99], 2.);
        assert_eq!(scores, [1., -4., 3., -3., f64::NEG_INFINITY]);
    }

    #[test]
    fn top_k_keeps_the_first_of_equal_ones() {
        assert_eq!(after(|scores| keep_top_k(scores, 1)), [1]);
        assert_eq!(after(|scores| keep_top_k(scores, 3)), [0, 1, 3]);
        assert_eq!(after(|scores| keep_top_k(scores, 99)), [0, 1, 2, 3]);
    }

    #[test]
    fn the_nucleus_is_the_smallest_that_reaches_p() {
        for (p, expected) in
            [(1e-9, &[1][..]), (0.499, &[1]), (0.6, &[1, 3]), (0.749, &[1, 3]), (0.8, &[0, 1, 3])]
        {
            assert_eq!(after(|scores| keep_top_p(scores, p)), expected, "{p}");
        }
        assert_eq!(after(|scores| keep_top_p(scores, 1.)), [0, 1, 2, 3]);
    }

    #[test]
    fn min_p_is_relative_to_the_likeliest() {
        assert_eq!(after(|scores| keep_min_p(scores, 1.)), [1]);
        assert_eq!(after(|scores| keep_min_p(scores, 0.4)), [1, 3]);
        assert_eq!(after(|scores| keep_min_p(scores, 0.2)), [0, 1, 2, 3]);
        assert_eq!(after(|scores| keep_min_p(scores, 0.)), [0, 1, 2, 3]);
    }

    /// At T = ½, 1/2, 1/4, 1/8, 1/8 become 32 : 8 : 2 : 2; renormalised, the first two are 0.8 and 0.2.
    #[test]
    fn filters_apply_in_order() {
        let draw = |sampling: Sampling| sampling.weights(&scores(), &[]);
        let near = |weights: &[f64], expected: [f64; 4]| {
            assert!(
                weights.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12),
                "{weights:?}"
            );
        };
        let cold = Sampling { temperature: 0.5, ..Sampling::default() };
        near(&draw(cold), [2. / 44., 32. / 44., 2. / 44., 8. / 44.]);
        let cold = Sampling { top_k: Some(2), ..cold };
        near(&draw(cold), [0., 0.8, 0., 0.2]);
        near(&draw(Sampling { top_p: Some(0.79), ..cold }), [0., 1., 0., 0.]);
        near(&draw(Sampling { min_p: Some(0.24), ..cold }), [0., 0.8, 0., 0.2]);
        near(&draw(Sampling { min_p: Some(0.26), ..cold }), [0., 1., 0., 0.]);
        // The penalty is applied first, to the logits: 2 ln ½ = ln ¼.
        let penalised = Sampling { repetition_penalty: 2., ..Sampling::default() };
        let weights = penalised.weights(&scores(), &[1, 1]);
        near(&weights, [1. / 6., 2. / 6., 1. / 6., 2. / 6.]);
    }

    #[test]
    fn an_extreme_temperature_neither_overflows_nor_divides_by_zero() {
        for temperature in [f64::MIN_POSITIVE, 1e300] {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let weights = sampling.weights(&[1e30, -1e30, f64::NEG_INFINITY], &[]);
            assert!((weights.iter().sum::<f64>() - 1.).abs() < 1e-12, "{weights:?}");
            assert_eq!(weights[2], 0.);
        }
    }

    #[test]
    fn fault_names_the_field_out_of_range() {
        let base = Sampling::default();
        assert_eq!(base.fault(), None);
        let faults = [
            (Sampling { temperature: 0., ..base }, "temperature"),
            (Sampling { repetition_penalty: f64::NAN, ..base }, "repetition_penalty"),
            (Sampling { repetition_penalty: 1e-308, ..base }, "repetition_penalty"),
            (Sampling { top_k: Some(0), ..base }, "top_k"),
            (Sampling { top_p: Some(0.), ..base }, "top_p"),
            (Sampling { min_p: Some(1.5), ..base }, "min_p"),
        ];
        for (sampling, expected) in faults {
            assert_eq!(sampling.fault().map(|(name, _)| name), Some(expected), "{sampling:?}");
        }
    }
}
