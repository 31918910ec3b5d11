//! Multinomial logistic regression on the one-hot days of the window: it was better than the published
//! attention on every task.
//!
//! ```text
//! q(d | w) = softmax_d(b_d + Σᵢ W_d[i, wᵢ])
//! J(W, b)  = − Σ_w P(w) Σ_d P(d | w) ln q(d | w) + (λ/2) (‖W‖² + ‖b‖²)
//! ```
//!
//! P is the empirical distribution of n examples with λ = 1/n (a standard normal prior on each parameter,
//! which keeps the solution for separable examples finite), or the true distribution with λ = 10⁻⁹: the
//! *ceiling*, the linear model of lowest NLL. Other linear models may have a higher accuracy.
//!
//! One-hot days sum to 1, so the parameters are redundant; λ selects the solution of smallest norm.

use super::newton::{BLOCK, Newton, logits, softmax};
use crate::data::weather::Distribution;
use crate::data::weather::evaluation::Evaluation;
use crate::data::weather::examples::Examples;
use rayon::prelude::*;

/// A fitted linear model.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    window: usize,
    /// `(3·window + 1, 3)`: a row for each day and weather, the bias last; a column for each class.
    weights: Vec<Distribution>,
    /// ‖∇J‖ at the end of the fit: below 10⁻⁸ if it converged.
    pub gradient_norm: f64,
}

/// λ of the ceiling: its effect is far below the 10⁻⁴ to which results are compared.
const CEILING_RIDGE: f64 = 1e-9;

impl Linear {
    /// Fits the model to examples, λ = 1/n.
    pub fn fit(examples: &Examples) -> Self {
        Self::minimise(&Evaluation::empirical(examples), 1. / examples.len().max(1) as f64)
    }

    /// Fits the model to the weighted reference of an evaluation, λ = 10⁻⁹.
    pub fn ceiling(evaluation: &Evaluation) -> Self {
        Self::minimise(evaluation, CEILING_RIDGE)
    }

    fn minimise(reference: &Evaluation, ridge: f64) -> Self {
        let (weights, gradient_norm) = Newton::new(reference, ridge).minimise();
        Self { window: reference.window, weights, gradient_norm }
    }

    /// The forecast after each window, `(n, 3)`.
    ///
    /// # Panics
    /// If the windows have another length than the windows of the fit.
    pub fn predict(&self, evaluation: &Evaluation) -> Vec<Distribution> {
        assert_eq!(evaluation.window, self.window, "invariant: a window as long as in the fit");
        let windows = evaluation.windows.par_chunks_exact(self.window);
        windows.with_min_len(BLOCK).map(|days| softmax(&logits(&self.weights, days))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::weather::generator::{Generator, markov};
    use tealight_ops::rng::{Purpose, Stream};

    fn markov() -> impl Generator {
        markov::Config::default().build().unwrap()
    }

    #[test]
    fn a_markov_chain_is_linear_in_its_last_day() {
        let evaluation = Evaluation::exact(&markov(), 3).unwrap();
        let linear = Linear::ceiling(&evaluation);
        assert!(linear.gradient_norm < 1e-8);
        for (prediction, truth) in linear.predict(&evaluation).iter().zip(&evaluation.next) {
            assert!(prediction.iter().zip(truth).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }

    #[test]
    fn separable_examples_stay_finite() {
        // Tomorrow is like today.
        let sequences: Vec<_> = (0..30).map(|i| [i % 2, i % 3, i % 3]).collect();
        let examples = Examples::cut(&sequences, 2);
        let linear = Linear::fit(&examples);
        assert!(linear.gradient_norm < 1e-8, "{linear:?}");
        let score = Evaluation::empirical(&examples);
        let score = score.score(&linear.predict(&score));
        assert!(score.accuracy > 0.999);
        assert!(score.nll > 0.01 && score.nll < 0.5, "{score:?}");
    }

    #[test]
    fn the_gradient_of_the_objective_is_zero_at_the_fit() {
        let examples = Examples::sample(&markov(), 5, 101, Stream::new(2, Purpose::Data));
        let linear = Linear::fit(&examples);
        let reference = Evaluation::empirical(&examples);
        let objective = |weights: &[Distribution]| {
            let linear = Linear { weights: weights.to_vec(), ..linear.clone() };
            let square: f64 = weights.iter().flatten().map(|w| w * w).sum();
            reference.score(&linear.predict(&reference)).nll + 0.5 / 101. * square
        };
        let step = 1e-4;
        for feature in 0..16 {
            for class in 0..3 {
                let moved = |by: f64| {
                    let mut weights = linear.weights.clone();
                    weights[feature][class] += by;
                    objective(&weights)
                };
                let slope = (moved(step) - moved(-step)) / (2. * step);
                assert!(slope.abs() < 1e-8, "{feature}, {class}: {slope}");
            }
        }
    }

    #[test]
    fn a_fit_is_the_same_for_any_number_of_threads() {
        let examples = Examples::sample(&markov(), 7, 5003, Stream::new(3, Purpose::Data));
        let fit = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| Linear::fit(&examples))
        };
        assert_eq!(fit(1), fit(3));
    }
}
