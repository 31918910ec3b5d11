//! Accuracy by ranges of a number, such as a length or a distance.

use serde::Serialize;

use crate::task::table::{Table, thousands};

/// The share of right answers among those whose number is in a range, ends included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::task) struct Bin {
    pub(in crate::task) from: usize,
    pub(in crate::task) to: usize,
    /// Answers.
    pub(in crate::task) n: usize,
    pub(in crate::task) accuracy: f64,
}

/// A bin for each range that holds an answer; `answers` are numbers, and whether the answer is right.
pub(in crate::task) fn bins(
    answers: &(impl Iterator<Item = (usize, bool)> + Clone),
    ranges: impl IntoIterator<Item = [usize; 2]>,
) -> Vec<Bin> {
    let bin = |[from, to]: [usize; 2]| {
        let inside = answers.clone().filter(|(number, _)| (from..=to).contains(number));
        let (n, right) =
            inside.fold((0, 0), |(n, right), (_, is_right)| (n + 1, right + usize::from(is_right)));
        (n > 0).then(|| Bin { from, to, n, accuracy: right as f64 / n as f64 })
    };
    ranges.into_iter().filter_map(bin).collect()
}

/// A row for each bin: the range, which `heading` names, how many `counted` there are, and the accuracy.
pub(in crate::task) fn table(heading: &str, counted: &str, bins: &[Bin]) -> Table {
    let mut table = Table::new([heading, counted, "accuracy"]);
    for Bin { from, to, n, accuracy } in bins {
        let range = if from == to { from.to_string() } else { format!("{from}–{to}") };
        table.row([range, thousands(*n as u64), format!("{accuracy:.4}")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_what_falls_into_them() {
        let answers = [(1, true), (1, false), (7, true)];
        let bins = bins(&answers.into_iter(), [[1, 3], [4, 6], [7, 9]]);
        let expected = [
            Bin { from: 1, to: 3, n: 2, accuracy: 0.5 },
            Bin { from: 7, to: 9, n: 1, accuracy: 1. },
        ];
        assert_eq!(bins, expected);
    }
}
