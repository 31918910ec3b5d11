//! A weighted count of rain, modulo 3, gives the next day: a forecast needs six days by their position.
//!
//! ```text
//! k = Σ_{i=1}^{10} yᵢ(2 − yᵢ) βᵢ mod 3        y = 1, 2, 3 for rain, cloud, sun; day 1 the oldest
//! P(day k) = probability, (1 − probability) / 2 for either other day
//! ```
//!
//! Modulo 3, y(2 − y) is 1 for rain and 0 otherwise, and β = 0 or 3 drops a day. With the published β,
//! k = (r₂ + r₆ + r₈) + 2 (r₃ + r₅ + r₉) mod 3, where rᵢ says that day i rained.

use super::{Generator, chain::Chain, invalid};
use crate::data::weather::score::{self, Score};
use crate::data::weather::{Distribution, N_CLASSES, sequence};
use crate::error::Result;
use crate::settings::settings;
use tealight_ops::rng::Stream;

settings! {
    /// `kind = "dotmod"`
    pub struct Config {
        /// β, the oldest day first. Published: `[0, 1, 2, 3, 2, 1, 0, 1, 2, 3]`.
        pub coefficients: [u32; MEMORY] = [0, 1, 2, 3, 2, 1, 0, 1, 2, 3],
        /// The probability of day k. Published: 0.96.
        pub probability: f64 = 0.96,
    }
}

/// The chain with its stationary distribution.
#[derive(Clone, Debug)]
pub struct Dotmod {
    chain: Chain,
    stationary: Vec<f64>,
    /// Cumulative sums of `stationary`, from which a window is drawn by binary search.
    cumulative: Vec<f64>,
}

/// The days that k depends on.
const MEMORY: usize = 10;

impl Config {
    /// Builds the chain and computes its stationary distribution, to which a chain with a probability close to
    /// 1 would not converge.
    ///
    /// Cost: power iteration over 3¹⁰ states, about a tenth of a second.
    pub fn build(&self) -> Result<Dotmod> {
        if !(0.0..=0.99).contains(&self.probability) {
            let rule =
                "from 0 to 0.99: with larger values the chain does not forget its first days";
            return Err(invalid("task.source.probability", self.probability, rule));
        }
        let other = (1. - self.probability) / 2.;
        let row = |k| std::array::from_fn(|day| if day == k { self.probability } else { other });
        let mut days = [0; MEMORY];
        let named = |i| {
            sequence::write_days(i, &mut days);
            self.named_day(&days)
        };
        let rows = (0..sequence::count(MEMORY)).map(named).collect();
        let chain = Chain { n_symbols: MEMORY, rows, table: (0..N_CLASSES).map(row).collect() };
        let stationary = chain.stationary();
        let cumulative = stationary.iter().scan(0., |sum, p| {
            *sum += p;
            Some(*sum)
        });
        Ok(Dotmod { cumulative: cumulative.collect(), chain, stationary })
    }

    /// k
    fn named_day(&self, days: &[u8; MEMORY]) -> u8 {
        let rain = days.iter().zip(&self.coefficients).filter(|(day, _)| **day == 0);
        (rain.map(|(_, beta)| beta % 3).sum::<u32>() % 3) as u8
    }
}

impl Generator for Dotmod {
    fn memory(&self) -> usize {
        MEMORY
    }

    fn next(&self, history: &[u8]) -> Distribution {
        *self.chain.next(sequence::index(&history[history.len() - MEMORY..]))
    }

    fn sample(&self, stream: Stream, n_days: usize) -> Vec<u8> {
        let mut days = vec![0; MEMORY];
        let at = stream.uniform(0) * self.cumulative[self.cumulative.len() - 1];
        let start = self.cumulative.partition_point(|sum| *sum <= at);
        sequence::write_days(start, &mut days);
        for day in MEMORY..n_days {
            days.push(stream.categorical(day as u64, &self.next(&days)) as u8);
        }
        days.truncate(n_days);
        days
    }

    fn joint(&self, n_days: usize) -> Vec<f64> {
        self.chain.joint(self.stationary.clone(), n_days)
    }

    fn bayes(&self, window: usize) -> Score {
        score::bayes(&self.joint(window.min(MEMORY) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_is_the_short_form() {
        let config = Config::default();
        let mut days = [0; MEMORY];
        for i in 0..sequence::count(MEMORY) {
            sequence::write_days(i, &mut days);
            let y = days.map(|day| i64::from(day) + 1);
            let beta = config.coefficients.map(i64::from);
            let k: i64 = y.iter().zip(beta).map(|(y, beta)| y * (2 - y) * beta).sum();
            let rain = |day: usize| u8::from(days[day - 1] == 0);
            let short = rain(2) + rain(6) + rain(8) + 2 * (rain(3) + rain(5) + rain(9));
            assert_eq!(config.named_day(&days), short % 3);
            assert_eq!(i64::from(short % 3), k.rem_euclid(3));
        }
    }

    #[test]
    fn a_step_leaves_the_stationary_distribution() {
        let dotmod = Config::default().build().unwrap();
        let mut next = vec![0.; dotmod.stationary.len()];
        dotmod.chain.step(&dotmod.stationary, &mut next);
        let change: f64 = next.iter().zip(&dotmod.stationary).map(|(a, b)| (a - b).abs()).sum();
        assert!(change < 1e-12);
        assert!((next.iter().sum::<f64>() - 1.).abs() < 1e-12);
    }

    #[test]
    fn a_certain_rule_is_refused() {
        for probability in [1., -0.1, f64::NAN] {
            let config = Config { probability, ..Config::default() };
            let error = config.build().unwrap_err().to_string();
            assert!(error.starts_with("`task.source.probability` = "), "{error}");
        }
        // The slowest chain that is allowed still settles.
        let slow = Config { probability: 0.99, ..Config::default() }.build().unwrap();
        let mut next = vec![0.; slow.stationary.len()];
        slow.chain.step(&slow.stationary, &mut next);
        assert!(next.iter().zip(&slow.stationary).all(|(a, b)| (a - b).abs() < 1e-13));
    }
}
