//! Sequences of weather with exactly known probabilities.
//!
//! A [`Generator`] draws days of rain, cloud and sun (ids 0, 1, 2) by a rule. A model forecasts the day
//! after a window of days, oldest first. There are only 3^window windows, so their probabilities and the
//! true distribution of the next day can be computed ([`Evaluation`]), and a model's accuracy and NLL (in
//! nats) have no sampling error:
//!
//! ```text
//! accuracy = Σ_w P(w) · P(argmax_d q(d | w) | w)
//! NLL      = − Σ_w P(w) Σ_d P(d | w) ln q(d | w)            with 0 · ln 0 = 0
//! ```
//!
//! The same scores are computed for the optimal forecast ([`Generator::bayes`]) and for three baselines:
//! the marginal distribution ([`majority`]), a table of the examples ([`Lookup`]), and multinomial logistic
//! regression on the window's days ([`Linear`]).
//!
//! ```text
//! day.rs         one day: ids, emoji, parsing          examples.rs    (n, window + 1) days to train on
//! file.rs        sequences from a text file            evaluation.rs  all windows, or a sample of them
//! generator/     the rules                             baseline/      majority, lookup, linear
//! ```
//!
//! Everything is a function of (seed, purpose, index), for any number of threads.

mod baseline;
mod day;
mod evaluation;
mod examples;
mod file;
pub mod generator;
mod score;
mod sequence;
pub mod source;

#[cfg(test)]
mod laws;

pub use baseline::{Linear, Lookup, majority};
pub use day::{ParseError, Weather, format, parse};
pub use evaluation::{Evaluation, MAX_EXACT_WINDOW, Method};
pub use examples::Examples;
pub use file::read;
pub use generator::Generator;
pub use score::Score;
pub use source::{FileConfig, SourceConfig};

/// Rain, cloud, sun.
pub const N_CLASSES: usize = 3;

/// Probabilities of rain, cloud and sun.
pub type Distribution = [f64; N_CLASSES];
