//! Accuracy and negative log-likelihood (NLL) of forecasts.

use super::{Distribution, N_CLASSES};

/// Accuracy and NLL (nats) with their standard errors, which are 0 for an exact evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// The probability that the forecast with the largest probability is right.
    pub accuracy: f64,
    /// Cross-entropy with the reference; infinite if a possible day has probability 0.
    pub nll: f64,
    /// The standard error of the accuracy.
    pub accuracy_standard_error: f64,
    /// The standard error of the NLL.
    pub nll_standard_error: f64,
}

/// The score of the true conditional distribution: `joint (n, 3)` holds the joint probabilities of the
/// known days and the next day.
pub(super) fn bayes(joint: &[f64]) -> Score {
    rows(joint).fold(Score::default(), |score, row| {
        // A row of probability 0 adds nothing to the cross-entropy.
        let nll = score.nll + cross_entropy(&row, &normalised(&row));
        Score { accuracy: score.accuracy + row[argmax(&row)], nll, ..score }
    })
}

/// `(n, 3)` → its rows.
pub(super) fn rows(joint: &[f64]) -> impl Iterator<Item = Distribution> {
    joint.as_chunks().0.iter().copied()
}

/// The first three `weights`, normalised to sum 1.
pub(super) fn normalised(weights: &[f64]) -> Distribution {
    let sum: f64 = weights[..N_CLASSES].iter().sum();
    std::array::from_fn(|id| weights[id] / sum)
}

/// The index of the largest value, the first of equal ones.
pub(super) fn argmax(values: &Distribution) -> usize {
    (1..N_CLASSES).fold(0, |best, id| if values[id] > values[best] { id } else { best })
}

/// − Σ p ln q, with 0 · ln 0 = 0.
pub(super) fn cross_entropy(p: &Distribution, q: &Distribution) -> f64 {
    p.iter().zip(q).filter(|(p, _)| **p > 0.).map(|(p, q)| -p * q.ln()).sum()
}
