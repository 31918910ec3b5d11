//! The rules that generate weather, one file each.
//!
//! | kind | depends on | rule |
//! |---|---|---|
//! | [`markov`] | 1 day | a Markov chain |
//! | [`one_four_eight`] | 10 days | a table gives day 11 after days 1, 4 and 8 |
//! | [`n_days`] | n days | the more frequent a weather was, the less likely it is |
//! | [`dotmod`] | 10 days | a weighted count of rain, modulo 3, gives the next day |
//!
//! To add a rule: a file with a `Config` and an `impl Generator`, and its lines in
//! [`SourceConfig`](super::source::SourceConfig).

mod chain;
pub mod dotmod;
pub mod markov;
pub mod n_days;
pub mod one_four_eight;

use super::score::{self, Score};
use super::{Distribution, sequence};
use crate::error::{Error, Result};
use std::fmt;
use tealight_ops::rng::Stream;

/// A rule that generates weather with computable probabilities.
pub trait Generator: fmt::Debug + Send + Sync {
    /// The number of previous days on which the distribution of the next day depends.
    fn memory(&self) -> usize;

    /// Checks that a window of this many days can be drawn and forecast.
    fn check_window(&self, window: usize) -> Result<()> {
        if window == 0 {
            return Err(invalid("task.window", window, "a window holds at least one day"));
        }
        Ok(())
    }

    /// The distribution of the day after `history`, oldest day first.
    ///
    /// The history has at least [`memory`](Self::memory) days, or else all days since the first, for a rule
    /// with a first day.
    fn next(&self, history: &[u8]) -> Distribution;

    /// `n_days` days, a function of `stream`. Draws of different streams are independent.
    ///
    /// By default, each is drawn from [`next`](Self::next), beginning with the first day.
    fn sample(&self, stream: Stream, n_days: usize) -> Vec<u8> {
        let mut days = Vec::with_capacity(n_days);
        for day in 0..n_days as u64 {
            days.push(stream.categorical(day, &self.next(&days)) as u8);
        }
        days
    }

    /// The probability of every sequence of `n_days` days, `(3^n_days)`, the oldest day varying least.
    ///
    /// By default, from [`next`](Self::next), beginning with the first day.
    fn joint(&self, n_days: usize) -> Vec<f64> {
        sequence::extend(vec![1.], 0, n_days, |days| self.next(days))
    }

    /// The exact score of the optimal forecast from a window of this many days.
    fn bayes(&self, window: usize) -> Score {
        score::bayes(&self.joint(window + 1))
    }
}

/// Checks that three probabilities are a distribution, up to the rounding of decimals.
fn check_distribution(key: &str, value: &Distribution) -> Result<()> {
    let sum: f64 = value.iter().sum();
    if value.iter().all(|p| *p >= 0.) && (sum - 1.).abs() < 1e-9 {
        return Ok(());
    }
    let rule = "the probabilities of rain, cloud and sun are at least 0 and sum to 1";
    Err(invalid(key, value, rule))
}

/// The error that the value of `key` breaks a rule; `key` may name a row: `task.source.table[3]`.
pub(super) fn invalid(key: &str, value: impl fmt::Debug, rule: &str) -> Error {
    let path = key.split('[').next().unwrap_or(key);
    Error::config([path], format!("`{key}` = {value:?}: {rule}"))
}
