//! Baselines: the marginal distribution, a table of the examples, a linear model.

mod linear;
mod lookup;
mod newton;

pub use linear::Linear;
pub use lookup::Lookup;

use super::Distribution;
use super::evaluation::Evaluation;

/// The marginal distribution as the forecast after every window, `(n, 3)`.
pub fn majority(evaluation: &Evaluation) -> Vec<Distribution> {
    vec![evaluation.marginal(); evaluation.len()]
}
