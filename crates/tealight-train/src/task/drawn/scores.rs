//! What a model's answers to examples are worth.

use super::example::Example;
use crate::task::report::bins::{Bin, bins};

/// The answer of a model to one label.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Answer {
    place: usize,
    is_right: bool,
    /// −ln of the probability of the label.
    nll: f64,
    /// The divergence from the best possible distribution, where there is one: Σ p ln (p / q).
    excess: f64,
}

/// The answers of a model to some examples.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// For each example, those to its labels.
    examples: Vec<Vec<Answer>>,
}

impl Scores {
    /// Adds the answers to the labels of an example: the `logits` of the model and the `best` possible distributions, if
    /// there are any, one row for each label.
    pub(in crate::task) fn add(
        &mut self,
        example: &Example,
        logits: &[Vec<f64>],
        best: &[Vec<f64>],
    ) {
        let answers = example.labelled().zip(logits).enumerate().map(|(i, (label, logits))| {
            let logs = log_softmax(logits);
            let excess = best
                .get(i)
                .map_or(0., |best| best.iter().zip(&logs).map(|(p, log)| p * (p.ln() - log)).sum());
            let is_right = first_largest(&logs) == label.class;
            Answer { place: label.place, is_right, nll: -logs[label.class], excess }
        });
        self.examples.push(answers.collect());
    }

    fn answers(&self) -> impl Iterator<Item = &Answer> + Clone {
        self.examples.iter().flatten()
    }

    fn mean(&self, value: impl Fn(&Answer) -> f64) -> f64 {
        self.answers().map(value).sum::<f64>() / self.answers().count().max(1) as f64
    }

    /// The share of right answers: all labels of all examples weigh the same.
    pub fn accuracy(&self) -> f64 {
        self.mean(|answer| f64::from(u8::from(answer.is_right)))
    }

    /// The mean −ln of the probability of a label, in nats.
    pub fn nll(&self) -> f64 {
        self.mean(|answer| answer.nll)
    }

    /// The mean divergence from the best possible distribution, in nats: never negative, and on average the NLL above its
    /// limit.
    pub fn excess(&self) -> f64 {
        self.mean(|answer| answer.excess)
    }

    /// The share of the examples whose answers are all right.
    pub fn exact_match(&self) -> f64 {
        let exact = self.examples.iter().filter(|one| one.iter().all(|answer| answer.is_right));
        exact.count() as f64 / self.examples.len().max(1) as f64
    }

    /// The standard error of the accuracy, over examples.
    pub fn standard_error(&self) -> f64 {
        let right = |one: &Vec<Answer>| one.iter().filter(|answer| answer.is_right).count() as f64;
        let (accuracy, n) = (self.accuracy(), self.examples.len() as f64);
        let per_example = self.answers().count() as f64 / n.max(1.);
        // The ratio of two sums over examples.
        let residual = |one: &Vec<Answer>| right(one) - accuracy * one.len() as f64;
        let variance: f64 = self.examples.iter().map(|one| residual(one).powi(2)).sum();
        if n < 2. || per_example == 0. {
            0.
        } else {
            (variance / (n - 1.) / n).sqrt() / per_example
        }
    }

    /// The accuracy at each place from `first` on, as far as there are labels.
    pub fn by_place(&self, first: usize) -> Vec<f64> {
        let last = self.answers().map(|answer| answer.place).max().unwrap_or(0);
        self.bins((first..=last).map(|place| [place, place]))
            .iter()
            .map(|bin| bin.accuracy)
            .collect()
    }

    /// The accuracy in each range of places that holds a label.
    pub(super) fn bins(&self, ranges: impl IntoIterator<Item = [usize; 2]>) -> Vec<Bin> {
        bins(&self.answers().map(|answer| (answer.place, answer.is_right)), ranges)
    }
}

/// The probabilities of classes with these logits.
pub(super) fn probabilities(logits: &[f64]) -> Vec<f64> {
    log_softmax(logits).into_iter().map(f64::exp).collect()
}

/// The class of the largest number, the first of equals.
pub(super) fn first_largest(row: &[f64]) -> usize {
    let larger = |best: usize, class: usize| if row[class] > row[best] { class } else { best };
    (0..row.len()).reduce(larger).unwrap_or(0)
}

/// ln of the probabilities.
pub(super) fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = logits.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() + largest;
    logits.iter().map(|x| x - log_sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_labels_weigh_the_same_and_the_first_of_equal_logits_is_the_answer() {
        let mut scores = Scores::default();
        let example = |labels: &[u32]| {
            let mut example = Example::new(vec![0; labels.len()]);
            labels.iter().enumerate().for_each(|(at, &class)| example.label(at, class, at + 1));
            example
        };
        let rows = |rows: &[[f64; 2]]| rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>();
        scores.add(&example(&[0]), &rows(&[[1., 1.]]), &[]);
        scores.add(&example(&[1, 1, 0]), &rows(&[[1., 1.], [0., 3.], [4., 0.]]), &[]);
        assert_eq!(scores.accuracy(), 0.75);
        assert_eq!(scores.exact_match(), 0.5);
        assert_eq!(scores.by_place(1), [0.5, 1., 1.]);
        assert_eq!(scores.bins([[1, 1], [2, 3], [8, 9]]).len(), 2);
        let expected =
            (2. * 2_f64.ln() + (1. + (-3_f64).exp()).ln() + (1. + (-4_f64).exp()).ln()) / 4.;
        assert!((scores.nll() - expected).abs() < 1e-12);
        // One of one, and two of three: residuals of .25 and −.25, two labels for an example.
        assert!((scores.standard_error() - (0.125_f64 / 2.).sqrt() / 2.).abs() < 1e-12);
    }
}
