//! Numbers, names and colours as the page writes them.

use maud::{Markup, html};
use tealight_train::monitor::early_stopping::Direction;

use crate::charts::metrics::display_name;

/// Four decimal places; fewer for large numbers, an exponent for very small ones.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0. => "0".to_owned(),
        size if size < 1e-3 => format!("{value:.2e}"),
        size if size < 100. => format!("{value:.4}"),
        size if size < 1e6 => format!("{value:.1}"),
        _ => format!("{value:.3e}"),
    }
}

/// Whether a smaller value of this metric is the better one.
pub(super) fn lower_is_better(metric: &str) -> bool {
    Direction::of_metric(metric) == Some(Direction::Min)
}

/// `bayes_accuracy` → `bayes accuracy`
pub(super) fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

/// The name of a metric in titles and headings.
pub(crate) fn metric_name(metric: &str) -> String {
    spaced(display_name(metric))
}

/// The colours of the style sheet for runs.
const N_TONES: usize = 7;

/// The colour of a group of runs, beside its name.
pub(super) fn key(group: usize) -> Markup {
    html! { span.key data-tone=(group % N_TONES) {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        let values = [0., 0.000_123, 0.96, 12.3456, 1234.56, 1e7];
        let expected = ["0", "1.23e-4", "0.9600", "12.3456", "1234.6", "1.000e7"];
        assert_eq!(values.map(number), expected);
    }

    #[test]
    fn losses_fall_and_accuracies_rise() {
        assert!(
            ["loss", "nll", "mse", "perplexity", "bits_per_byte"].into_iter().all(lower_is_better)
        );
        assert!(!["accuracy", "macro_f1", "exact_match"].into_iter().any(lower_is_better));
    }
}
