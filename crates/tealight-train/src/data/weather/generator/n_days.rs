//! The more often a weather occurred in the last n days, the less likely it is: a forecast needs counts only.
//!
//! ```text
//! P(xₜ = w) = (n − |{i ≤ n : xₜ₋ᵢ = w}|) / 2n
//!           = (1/n) Σ_{i ≤ n} ½ [xₜ₋ᵢ ≠ w]                                                    (1)
//! ```
//!
//! By (1), a day has one of the last n days as its parent and differs from it by a step of 1 or 2, modulo
//! 3. The ancestors of a window are drawn backwards until they coincide in one day, whose weather is
//! uniform by symmetry: an exact draw from the stationary chain without burn-in (coupling from the past,
//! Propp & Wilson 1996).
//!
//! Probabilities come from power iteration. The rule is invariant under rotation of the kinds of weather,
//! so the n − 1 steps between n days form a Markov chain: 3ⁿ⁻¹ states instead of 3ⁿ.

use super::{Generator, chain::Chain, invalid};
use crate::data::weather::score::{self, Score};
use crate::data::weather::{Distribution, N_CLASSES, sequence};
use crate::error::Result;
use crate::settings::settings;
use tealight_ops::rng::Stream;

settings! {
    /// `kind = "n_days"`: the rule for n days.
    pub struct Config {
        /// The number of counted days. Published: 10, and 15.
        pub n: usize = 10,
    }

    /// `kind = "ten_days"`: `n_days` with n = 10.
    pub struct TenDays {}

    /// `kind = "fifteen_days"`: `n_days` with n = 15.
    pub struct FifteenDays {}
}

/// 2 · 3¹⁴ states of 8 bytes: 77 MB while probabilities are computed.
const MAX_N: usize = 15;

impl Config {
    /// The rule, if n is from 1 to 15.
    pub fn build(&self) -> Result<Self> {
        if (1..=MAX_N).contains(&self.n) {
            return Ok(self.clone());
        }
        let rule = "from 1 to 15 days are counted: the exact limits need 3^(n - 1) states";
        Err(invalid("task.source.n", self.n, rule))
    }
}

/// For settings that [`Config::build`] has checked.
impl Generator for Config {
    fn memory(&self) -> usize {
        self.n
    }

    fn next(&self, history: &[u8]) -> Distribution {
        let counted = &history[history.len() - self.n..];
        let mut counts = [0; N_CLASSES];
        for &day in counted {
            counts[usize::from(day)] += 1;
        }
        self.after(counts)
    }

    fn sample(&self, stream: Stream, n_days: usize) -> Vec<u8> {
        if n_days == 0 {
            return Vec::new();
        }
        // Days are numbered backwards from the last one. A day is needed if it belongs to the result or is a
        // parent of a needed day. `n_open` counts the needed days that are not processed yet.
        let mut needed = vec![true; n_days];
        let mut parents = Vec::with_capacity(n_days);
        let mut n_open = n_days;
        loop {
            let day = parents.len();
            if !needed[day] {
                parents.push(None);
                continue;
            }
            n_open -= 1;
            if n_open == 0 {
                break;
            }
            let draw = stream.below(day as u64, 2 * self.n as u64) as usize;
            let parent = day + 1 + draw / 2;
            needed.resize(needed.len().max(parent + 1), false);
            n_open += usize::from(!std::mem::replace(&mut needed[parent], true));
            parents.push(Some((parent, 1 + draw % 2)));
        }
        let root = parents.len();
        let mut weather = vec![0; root + 1];
        weather[root] = stream.below(root as u64, N_CLASSES as u64) as usize;
        for (day, parent) in parents.into_iter().enumerate().rev() {
            if let Some((parent, step)) = parent {
                weather[day] = (weather[parent] + step) % N_CLASSES;
            }
        }
        weather[..n_days].iter().rev().map(|&id| id as u8).collect()
    }

    fn joint(&self, n_days: usize) -> Vec<f64> {
        if n_days == 0 {
            return vec![1.];
        }
        let steps = self.joint_steps(n_days - 1);
        let mut days = vec![0; n_days];
        let of_sequence = |i| {
            sequence::write_days(i, &mut days);
            steps[days.windows(2).fold(0, |index, pair| {
                N_CLASSES * index + usize::from((pair[1] + 3 - pair[0]) % 3)
            })] / 3.
        };
        (0..sequence::count(n_days)).map(of_sequence).collect()
    }

    fn bayes(&self, window: usize) -> Score {
        if window < self.n {
            // Today is known, so the next step decides the next day; all kinds of weather are equivalent.
            return score::bayes(&self.joint_steps(window));
        }
        // Only the counts matter, and states with the same counts share a row.
        let chain = self.steps();
        let mut known = vec![0.; chain.table.len()];
        for (p, &row) in chain.stationary().iter().zip(&chain.rows) {
            known[usize::from(row)] += p;
        }
        let joint = known.iter().zip(&chain.table).flat_map(|(p, next)| next.map(|q| p * q));
        score::bayes(&joint.collect::<Vec<_>>())
    }
}

impl Config {
    /// P(w) from the number of occurrences of each w in the last n days.
    fn after(&self, counts: [usize; N_CLASSES]) -> Distribution {
        counts.map(|count| (self.n - count) as f64 / (2 * self.n) as f64)
    }

    /// The probability of every sequence of steps from day to day, `(3^n_steps)`.
    fn joint_steps(&self, n_steps: usize) -> Vec<f64> {
        let chain = self.steps();
        let stationary = chain.stationary();
        chain.joint(stationary, n_steps)
    }

    /// The chain of the n − 1 steps between n days, xₜ₊₁ − xₜ mod 3.
    ///
    /// The row of a state is given by its number of days equal to the last one and of days one step ahead
    /// of it.
    fn steps(&self) -> Chain {
        let base = self.n + 1;
        let mut counts = vec![[1, 0, 0]];
        for _ in 1..self.n {
            // Relative to the day reached by step d, weather w is weather w + d.
            let seen = |c: &[u8; 3], d: usize| [c[d] + 1, c[(1 + d) % 3], c[(2 + d) % 3]];
            counts = counts.iter().flat_map(|c| (0..3).map(move |d| seen(c, d))).collect();
        }
        let rows = counts.iter().map(|&[same, ahead, _]| same * base as u8 + ahead).collect();
        let table = (0..base * base).map(|row| {
            let (same, ahead) = (row / base, row % base);
            // Rows whose counts exceed n are unused.
            self.after([same, ahead, self.n.saturating_sub(same + ahead)].map(|c| c.min(self.n)))
        });
        Chain { n_symbols: self.n - 1, rows, table: table.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tealight_ops::rng::Purpose;

    fn n_days(n: usize) -> Config {
        Config { n }.build().unwrap()
    }

    #[test]
    fn the_rule_counts_the_last_n_days() {
        let next = n_days(5).next(&[2, 2, 0, 1, 1, 0, 0]);
        assert_eq!(next, [0.2, 0.3, 0.5]);
        assert_eq!(n_days(3).next(&[1, 1, 1]), [0.5, 0., 0.5]);
    }

    #[test]
    fn the_chain_of_steps_is_the_chain_of_days() {
        // The definition: power iteration over all 3^5 sequences of days.
        let rule = n_days(5);
        let mut days = [0; 5];
        let mut pi = vec![1. / 243.; 243];
        for _ in 0..300 {
            let mut next = vec![0.; 243];
            for (i, p) in pi.iter().enumerate() {
                sequence::write_days(i, &mut days);
                let after = rule.next(&days);
                (0..3).for_each(|day| next[i % 81 * 3 + day] += p * after[day]);
            }
            pi = next;
        }
        let joint = rule.joint(5);
        assert!(joint.iter().zip(&pi).all(|(a, b)| (a - b).abs() < 1e-13));
        for longer in [6, 7] {
            let margin = sequence::first_days(&rule.joint(longer), 5);
            assert!(margin.iter().zip(&pi).all(|(a, b)| (a - b).abs() < 1e-13));
        }
        // One more day follows the rule.
        let six = rule.joint(6);
        for (i, p) in pi.iter().enumerate() {
            sequence::write_days(i, &mut days);
            let expected = rule.next(&days).map(|q| p * q);
            (0..3).for_each(|day| assert!((six[3 * i + day] - expected[day]).abs() < 1e-13));
        }
    }

    #[test]
    fn the_limit_from_counts_is_the_limit_from_windows() {
        for n in [1, 2, 5] {
            for window in [3, 5, 6] {
                let rule = n_days(n);
                let (short, all) = (rule.bayes(window), score::bayes(&rule.joint(window + 1)));
                assert!((short.accuracy - all.accuracy).abs() < 1e-12, "n {n}, window {window}");
                assert!((short.nll - all.nll).abs() < 1e-12, "n {n}, window {window}");
            }
        }
    }

    #[test]
    fn coupling_from_the_past_draws_from_the_stationary_chain() {
        for n in [1, 2, 4] {
            let rule = n_days(n);
            let joint = rule.joint(6);
            let stream = Stream::new(7, Purpose::Data);
            let mut counts = vec![0.; joint.len()];
            let n_samples = 60_000;
            for i in 0..n_samples {
                counts[sequence::index(&rule.sample(stream.fork(i), 6))] += 1.;
            }
            let possible = joint.iter().zip(&counts).filter(|(p, _)| **p > 0.);
            let (chi_square, n_possible) = possible.fold((0., 0.), |(sum, n), (p, count)| {
                let expected = p * n_samples as f64;
                (sum + (count - expected) * (count - expected) / expected, n + 1.)
            });
            let impossible = joint.iter().zip(&counts).filter(|(p, _)| **p == 0.);
            assert_eq!(impossible.map(|(_, count)| count).sum::<f64>(), 0.);
            // Mean n_possible − 1, standard deviation √(2 n_possible).
            let deviations = (chi_square - n_possible + 1.) / (2_f64 * n_possible).sqrt();
            assert!(deviations.abs() < 4., "n {n}: {deviations}");
        }
    }

    #[test]
    fn n_out_of_range_is_refused() {
        for n in [0, 16] {
            let error = Config { n }.build().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`task.source.n` = {n}: from 1 to 15 days")),
                "{error}"
            );
        }
    }
}
