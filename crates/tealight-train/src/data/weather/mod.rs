//! Sequences of weather whose best possible forecast is known exactly.
//!
//! A [`Generator`] draws days of rain, cloud and sun (ids 0, 1, 2) by a rule. From a window of days,
//! oldest first, a model forecasts the day after. There are only 3^window windows, so their
//! probabilities and the true distribution of the next day can be computed ([`Evaluation`]), and a
//! model's accuracy and NLL (in nats) carry no test noise:
//!
//! ```text
//! accuracy = Σ_w P(w) · P(argmax_d q(d | w) | w)
//! NLL      = − Σ_w P(w) Σ_d P(d | w) ln q(d | w)            with 0 · ln 0 = 0
//! ```
//!
//! The same numbers are computed for what a model should be compared with: the best any model can do
//! ([`Generator::bayes`]), always the same answer ([`majority`]), a memorised table ([`Lookup`]), and
//! multinomial logistic regression on the window's days ([`Linear`]).
//!
//! ```text
//! sky.rs         one day: ids, emoji, parsing          examples.rs    (n, window + 1) days to learn from
//! file.rs        sequences from a text file            evaluation.rs  all windows, or a sample; Score
//! generator/     the five rules                        baseline/      majority, lookup, linear
//! ```
//!
//! Everything is a function of (seed, purpose, index), for any number of threads.

mod baseline;
mod error;
mod evaluation;
mod examples;
mod file;
pub mod generator;
mod sequence;
mod sky;
pub mod source;

#[cfg(test)]
mod laws;

pub use baseline::{Linear, Lookup, majority};
pub use error::Error;
pub use evaluation::{Evaluation, MAX_EXACT_WINDOW, Method, Score};
pub use examples::Examples;
pub use file::read;
pub use generator::Generator;
pub use sky::{ParseError, Weather, format, parse};

/// Rain, cloud, sun.
pub const N_CLASSES: usize = 3;

/// Probabilities of rain, cloud and sun.
pub type Distribution = [f64; N_CLASSES];
