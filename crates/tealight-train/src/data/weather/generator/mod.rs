//! The rules that weather is drawn by, one file each.
//!
//! | kind | looks back | the rule in a line |
//! |---|---|---|
//! | [`markov`] | 1 day | P(next) depends on today |
//! | [`one_four_eight`] | 10 days | day 11 follows a table of days 1, 4 and 8 |
//! | [`n_days`] | n days | what was frequent becomes rare |
//! | [`dotmod`] | 10 days | a weighted count of rain, modulo 3, names the next day |
//!
//! To add a rule: a file with a `Config` and an `impl Generator`, and its lines in
//! [`SourceConfig`](super::source::SourceConfig).

mod chain;
pub mod dotmod;
pub mod markov;
pub mod n_days;
pub mod one_four_eight;

use super::{Distribution, Error, Score};
use std::fmt;
use tealight_ops::rng::Stream;

/// A rule that weather is drawn by, whose probabilities can be computed.
pub trait Generator: fmt::Debug + Send + Sync {
    /// The number of days that decide how the next day is distributed.
    fn memory(&self) -> usize;

    /// Whether a window of this many days can be drawn and forecast.
    fn check_window(&self, window: usize) -> Result<(), Error> {
        if window == 0 {
            return Err(Error::setting("window", window, "a window holds at least one day"));
        }
        Ok(())
    }

    /// How the day after `history`, oldest day first, is distributed.
    ///
    /// The history holds [`memory`](Self::memory) days or more, or else all days since the first
    /// where the rule has a first day.
    fn next(&self, history: &[u8]) -> Distribution;

    /// `n_days` days, a function of `stream`: draws of two streams are independent of each other.
    ///
    /// For a model with a loss at every position this is the window and the day after it.
    fn sample(&self, stream: Stream, n_days: usize) -> Vec<u8>;

    /// The probability of every sequence of `n_days` days, `(3^n_days)`, the oldest day varying least.
    fn joint(&self, n_days: usize) -> Vec<f64>;

    /// The exact score of the best forecast from a window of this many days.
    fn bayes(&self, window: usize) -> Score;
}

/// Three probabilities must be a distribution, up to the rounding of numbers typed as decimals.
fn check_distribution(key: impl Into<String>, value: &Distribution) -> Result<(), Error> {
    let sum: f64 = value.iter().sum();
    if value.iter().all(|p| *p >= 0.) && (sum - 1.).abs() < 1e-9 {
        return Ok(());
    }
    let rule = "the probabilities of rain, cloud and sun are at least 0 and sum to 1";
    Err(Error::setting(key, value, rule))
}

/// Draws day after day by `next`, from the first day on.
fn sample_from_day_one(generator: &dyn Generator, stream: Stream, n_days: usize) -> Vec<u8> {
    let mut days = Vec::with_capacity(n_days);
    for day in 0..n_days as u64 {
        let next = generator.next(&days);
        days.push(stream.categorical(day, &next) as u8);
    }
    days
}
