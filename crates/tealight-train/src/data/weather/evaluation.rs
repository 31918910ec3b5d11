//! Evaluation of forecasts over all windows, or over a large sample of them.

use super::examples::Examples;
use super::generator::{Generator, invalid};
use super::score::{Score, argmax, cross_entropy, normalised, rows};
use super::{Distribution, N_CLASSES, sequence};
use crate::error::{Error, Result};
use tealight_ops::rng::Stream;

/// The longest window for which all 3^window windows are evaluated (177,147).
pub const MAX_EXACT_WINDOW: usize = 11;

/// How the windows of an [`Evaluation`] were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every window that can occur, with its probability.
    Exact,
    /// `n` windows drawn at random.
    Sampled {
        /// The number of windows.
        n: usize,
    },
}

/// Windows with their weights and the distributions of the next day.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Days per window.
    pub window: usize,
    /// `(n, window)`, row by row, oldest day first.
    pub windows: Vec<u8>,
    /// `(n)`: sums to 1.
    pub weights: Vec<f64>,
    /// `(n, 3)`: the reference distribution of the next day: the true one unless the windows come from a file.
    pub next: Vec<Distribution>,
    /// How the windows were chosen.
    pub method: Method,
}

impl Evaluation {
    /// Exact for windows of up to [`MAX_EXACT_WINDOW`] days, else over `n` windows drawn from `stream`.
    pub fn new(generator: &dyn Generator, window: usize, n: usize, stream: Stream) -> Result<Self> {
        if window <= MAX_EXACT_WINDOW {
            return Self::exact(generator, window);
        }
        Self::sampled(generator, window, n, stream)
    }

    /// All windows of non-zero probability.
    pub fn exact(generator: &dyn Generator, window: usize) -> Result<Self> {
        generator.check_window(window)?;
        if window > MAX_EXACT_WINDOW {
            let rule = "an exact evaluation takes at most 11 days";
            return Err(invalid("task.window", window, rule));
        }
        let joint = generator.joint(window + 1);
        let (mut windows, mut weights, mut next) = (Vec::new(), Vec::new(), Vec::new());
        let mut days = vec![0; window];
        for (index, row) in rows(&joint).enumerate() {
            let weight: f64 = row.iter().sum();
            if weight > 0. {
                sequence::write_days(index, &mut days);
                windows.extend_from_slice(&days);
                weights.push(weight);
                next.push(row.map(|p| p / weight));
            }
        }
        Ok(Self { window, windows, weights, next, method: Method::Exact })
    }

    /// `n` windows drawn from `stream`, each with the true distribution of its next day.
    pub fn sampled(
        generator: &dyn Generator,
        window: usize,
        n: usize,
        stream: Stream,
    ) -> Result<Self> {
        generator.check_window(window)?;
        if n == 0 {
            return Err(Error::input("a sample needs at least one window"));
        }
        let windows = (0..n as u64).flat_map(|i| generator.sample(stream.fork(i), window));
        let windows: Vec<u8> = windows.collect();
        let next = if generator.memory() <= window {
            windows.chunks_exact(window).map(|days| generator.next(days)).collect()
        } else {
            // The rule depends on days before the window: average over these days.
            let joint = generator.joint(window + 1);
            let after = |days| normalised(&joint[N_CLASSES * sequence::index(days)..]);
            windows.chunks_exact(window).map(after).collect()
        };
        let weights = vec![1. / n as f64; n];
        Ok(Self { window, windows, weights, next, method: Method::Sampled { n } })
    }

    /// The empirical distribution of the examples as the reference, for fitting and for files whose rule is
    /// unknown.
    pub fn empirical(examples: &Examples) -> Self {
        let n = examples.len();
        let one_hot =
            |day: u8| std::array::from_fn(|id| f64::from(u8::from(id == usize::from(day))));
        Self {
            window: examples.window,
            windows: examples.iter().flat_map(|(window, _)| window).copied().collect(),
            weights: vec![1. / n as f64; n],
            next: examples.iter().map(|(_, day)| one_hot(day)).collect(),
            method: Method::Sampled { n },
        }
    }

    /// The number of windows.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The windows, oldest day first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.windows.chunks_exact(self.window)
    }

    /// The marginal distribution of the next day.
    pub fn marginal(&self) -> Distribution {
        let mut marginal = [0.; N_CLASSES];
        for (weight, next) in self.weights.iter().zip(&self.next) {
            (0..N_CLASSES).for_each(|id| marginal[id] += weight * next[id]);
        }
        marginal
    }

    /// The best possible score for this window, which is the score of the reference itself.
    pub fn bayes(&self) -> Score {
        self.score(&self.next)
    }

    /// The score of one forecast per window, `(n, 3)`.
    ///
    /// The forecast is the day of the largest probability, of equal ones the lowest id.
    ///
    /// # Panics
    /// If there is not one prediction per window.
    pub fn score(&self, predictions: &[Distribution]) -> Score {
        assert_eq!(predictions.len(), self.len(), "invariant: one prediction per window");
        let (accuracy, accuracy_standard_error) =
            self.mean(predictions, |next, prediction| next[argmax(prediction)]);
        let (nll, nll_standard_error) = self.mean(predictions, cross_entropy);
        Score { accuracy, nll, accuracy_standard_error, nll_standard_error }
    }

    /// The weighted mean of `f(next, prediction)` and its standard error.
    fn mean(
        &self,
        predictions: &[Distribution],
        f: impl Fn(&Distribution, &Distribution) -> f64,
    ) -> (f64, f64) {
        let values: Vec<f64> = self.next.iter().zip(predictions).map(|(p, q)| f(p, q)).collect();
        let weighted = || self.weights.iter().zip(&values);
        let mean = weighted().map(|(weight, x)| weight * x).sum::<f64>();
        let square = || weighted().map(|(weight, x)| weight * (x - mean).powi(2)).sum::<f64>();
        let standard_error = match self.method {
            Method::Exact => 0.,
            Method::Sampled { n: 0 | 1 } => f64::INFINITY,
            Method::Sampled { n } => (square() / (n - 1) as f64).sqrt(),
        };
        (mean, standard_error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::generator::{markov, n_days};
    use super::*;
    use tealight_ops::rng::Purpose;

    fn markov() -> markov::Config {
        markov::Config::default().build().unwrap()
    }

    #[test]
    fn a_score_is_worked_by_hand() {
        let evaluation = Evaluation {
            window: 1,
            windows: vec![0, 2],
            weights: vec![0.25, 0.75],
            next: vec![[0.5, 0.5, 0.], [0.1, 0.2, 0.7]],
            method: Method::Exact,
        };
        // A tie goes to the lowest id; an impossible day adds no cross-entropy.
        let score = evaluation.score(&[[0.5, 0.5, 0.], [0.2, 0.4, 0.4]]);
        assert_eq!(score.accuracy, 0.25 * 0.5 + 0.75 * 0.2);
        let nll = 0.25 * 2_f64.ln() - 0.75 * (0.1 * 0.2_f64.ln() + 0.9 * 0.4_f64.ln());
        assert!((score.nll - nll).abs() < 1e-15);
        assert_eq!((score.accuracy_standard_error, score.nll_standard_error), (0., 0.));
        let impossible = evaluation.score(&[[1., 0., 0.], [0.2, 0.4, 0.4]]);
        assert_eq!(impossible.nll, f64::INFINITY);
    }

    #[test]
    fn windows_that_cannot_occur_are_dropped() {
        let rule = n_days::Config { n: 2 }.build().unwrap();
        let evaluation = Evaluation::exact(&rule, 4).unwrap();
        assert!(evaluation.iter().all(|days| days.windows(3).all(|d| d != [d[0]; 3])));
        assert!(evaluation.len() < 81);
        assert!(evaluation.bayes().nll.is_finite());
    }

    #[test]
    fn a_sample_agrees_with_the_exact_score_within_its_standard_error() {
        let stream = Stream::new(11, Purpose::Data);
        let ten_days = n_days::Config { n: 7 }.build().unwrap();
        let cases: [(&dyn Generator, usize); 3] = [(&markov(), 5), (&ten_days, 5), (&ten_days, 8)];
        for (generator, window) in cases {
            let exact = Evaluation::exact(generator, window).unwrap();
            let sampled = Evaluation::sampled(generator, window, 20_011, stream).unwrap();
            assert_eq!(sampled.method, Method::Sampled { n: 20_011 });
            for (a, b) in [
                (exact.bayes(), sampled.bayes()),
                (
                    exact.score(&vec![[0.2, 0.5, 0.3]; exact.len()]),
                    sampled.score(&vec![[0.2, 0.5, 0.3]; sampled.len()]),
                ),
            ] {
                assert!((a.accuracy - b.accuracy).abs() < 4. * b.accuracy_standard_error);
                assert!((a.nll - b.nll).abs() < 4. * b.nll_standard_error);
                assert!(b.accuracy_standard_error < 3e-3 && b.nll_standard_error < 6e-3);
            }
        }
    }

    #[test]
    fn long_windows_are_sampled_and_short_ones_are_exact() {
        let stream = Stream::new(1, Purpose::Data);
        let method = |window| Evaluation::new(&markov(), window, 13, stream).unwrap().method;
        assert_eq!(method(7), Method::Exact);
        assert_eq!(method(12), Method::Sampled { n: 13 });
        assert!(Evaluation::exact(&markov(), 12).is_err());
        assert!(Evaluation::exact(&markov(), 0).is_err());
        assert!(Evaluation::sampled(&markov(), 12, 0, stream).is_err());
    }

    #[test]
    fn examples_are_scored_as_counts() {
        let examples = Examples::cut(&[[0, 1, 2], [1, 1, 1], [0, 0, 1], [2, 0, 1]], 2);
        let evaluation = Evaluation::empirical(&examples);
        assert_eq!(evaluation.marginal(), [0., 0.75, 0.25]);
        let score = evaluation.score(&[[0.1, 0.8, 0.1]; 4]);
        assert_eq!(score.accuracy, 0.75);
        assert_eq!(score.accuracy_standard_error, 0.25);
    }
}
