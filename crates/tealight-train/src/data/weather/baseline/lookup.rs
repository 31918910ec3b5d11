//! A table of the examples, with smoothing.
//!
//! ```text
//! P(d | w) = (n(w, d) + α m(d)) / (n(w) + α)        m(d) = (n(d) + 1) / (n + 3)            α = 1
//! ```
//!
//! n counts the examples with window w, next day d, or both. The margin m is the forecast for windows that the
//! examples lack, and keeps every probability above zero.

use crate::data::weather::evaluation::Evaluation;
use crate::data::weather::examples::Examples;
use crate::data::weather::{Distribution, N_CLASSES};
use std::collections::BTreeMap;

/// The distribution of the day after each window of the examples.
#[derive(Clone, Debug)]
pub struct Lookup {
    table: BTreeMap<Vec<u8>, Distribution>,
    margin: Distribution,
}

/// α: the weight of the margin, in examples.
const ALPHA: f64 = 1.;

impl Lookup {
    /// Builds the table of the examples.
    pub fn memorise(examples: &Examples) -> Self {
        let mut table = BTreeMap::<Vec<u8>, Distribution>::new();
        let mut margin = [1.; N_CLASSES];
        for (window, day) in examples.iter() {
            table.entry(window.to_vec()).or_default()[usize::from(day)] += 1.;
            margin[usize::from(day)] += 1.;
        }
        let n = margin.iter().sum::<f64>();
        let margin = margin.map(|count| count / n);
        for counts in table.values_mut() {
            let n = counts.iter().sum::<f64>();
            *counts = std::array::from_fn(|id| (counts[id] + ALPHA * margin[id]) / (n + ALPHA));
        }
        Self { table, margin }
    }

    /// The forecast after each window, `(n, 3)`.
    pub fn predict(&self, evaluation: &Evaluation) -> Vec<Distribution> {
        let forecast = |window| self.table.get(window).unwrap_or(&self.margin);
        evaluation.iter().map(forecast).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_mixed_with_the_margin() {
        let examples = Examples::cut(&[[0, 1, 2], [0, 1, 2], [0, 1, 0], [2, 2, 0]], 2);
        let lookup = Lookup::memorise(&examples);
        let margin = [3. / 7., 1. / 7., 3. / 7.];
        let seen = [(1. + margin[0]) / 4., margin[1] / 4., (2. + margin[2]) / 4.];
        assert_eq!(lookup.table.len(), 2);
        let unseen = Evaluation::empirical(&Examples::cut(&[[1, 1, 0], [0, 1, 0]], 2));
        assert_eq!(lookup.predict(&unseen), [margin, seen]);
    }
}
