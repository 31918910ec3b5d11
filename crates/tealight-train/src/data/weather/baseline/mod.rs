//! What a model should be compared with: the same answer always, a memorised table, a linear model.

mod linear;
mod lookup;
mod newton;

pub use linear::Linear;
pub use lookup::Lookup;

use super::{Distribution, Evaluation};

/// The same forecast after every window: how often each kind of weather follows at all.
///
/// `(n, 3)`, one row per window of the evaluation.
pub fn majority(evaluation: &Evaluation) -> Vec<Distribution> {
    vec![evaluation.marginal(); evaluation.len()]
}
