//! A first-order Markov chain.
//!
//! ```text
//! P(x₁) = initial        P(xₜ₊₁ | x₁ … xₜ) = transition[xₜ]
//! ```
//!
//! The first day is drawn from `initial`, not from the stationary distribution of `transition`.

use super::{Generator, check_distribution};
use crate::data::weather::score::{self, Score};
use crate::data::weather::{Distribution, sequence};
use crate::error::Result;
use crate::settings::settings;

settings! {
    /// `kind = "markov"`: the chain.
    pub struct Config {
        /// The distribution of the first day: rain, cloud, sun. Published: `[0.3, 0.4, 0.3]`.
        pub initial: Distribution = [0.3, 0.4, 0.3],
        /// The distributions of the day after rain, after cloud and after sun.
        /// Published: `[[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]]`.
        pub transition: [Distribution; 3] = [[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]],
    }
}

impl Config {
    /// Checks that every row is a distribution.
    pub fn validate(&self) -> Result<()> {
        check_distribution("task.source.initial", &self.initial)?;
        let mut rows = self.transition.iter().enumerate();
        rows.try_for_each(|(i, row)| {
            check_distribution(&format!("task.source.transition[{i}]"), row)
        })
    }

    /// The chain, if every row is a distribution.
    pub fn build(&self) -> Result<Self> {
        self.validate()?;
        Ok(self.clone())
    }
}

/// For settings that [`Config::build`] has checked.
impl Generator for Config {
    fn memory(&self) -> usize {
        1
    }

    fn next(&self, history: &[u8]) -> Distribution {
        history.last().map_or(self.initial, |&today| self.transition[usize::from(today)])
    }

    fn bayes(&self, window: usize) -> Score {
        // Only the last day of the window matters: P(today) after window − 1 steps of the chain.
        let today = (1..window).fold(self.initial, |today, _| {
            std::array::from_fn(|d| (0..3).map(|from| today[from] * self.transition[from][d]).sum())
        });
        score::bayes(&sequence::extend(today.to_vec(), 1, 2, |days| self.next(days)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_products_along_the_path() {
        let markov = Config::default().build().unwrap();
        let joint = markov.joint(4);
        assert!((joint.iter().sum::<f64>() - 1.).abs() < 1e-15);
        // rain, rain, sun, cloud
        let expected = 0.3 * 0.6 * 0.1 * 0.3;
        assert!((joint[sequence::index(&[0, 0, 2, 1])] - expected).abs() < 1e-17);
    }

    #[test]
    fn the_limit_is_the_same_from_the_last_day_as_from_all_windows() {
        let markov = Config::default().build().unwrap();
        let (short, all) = (markov.bayes(7), score::bayes(&markov.joint(8)));
        assert!((short.accuracy - all.accuracy).abs() < 1e-14);
        assert!((short.nll - all.nll).abs() < 1e-14);
    }

    #[test]
    fn a_row_that_is_no_distribution_is_named() {
        let mut config = Config::default();
        config.transition[1] = [0.3, 0.4, 0.4];
        assert_eq!(
            config.build().unwrap_err().to_string(),
            "`task.source.transition[1]` = [0.3, 0.4, 0.4]: the probabilities of rain, cloud and sun are at least 0 and sum to 1"
        );
        config.initial = [f64::NAN, 0.5, 0.5];
        assert!(
            config.validate().unwrap_err().to_string().starts_with("`task.source.initial` = [NaN")
        );
        config.initial = [-0.1, 0.6, 0.5];
        assert!(config.validate().is_err());
    }
}
