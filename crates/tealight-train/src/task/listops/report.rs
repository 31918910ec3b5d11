//! The accuracy of the values that a model predicts for expressions, beside baselines that know at most the outermost
//! operation.

use tealight_model::Mode;
use tealight_model::models::forecaster::Forecaster;

use super::expression::{Expression, N_CLASSES, Operator};
use super::generator::Part;
use super::{Config, ListOps, logits};
use crate::error::Result;
use crate::inference::likeliest;
use crate::inference::probabilities;
use crate::task::report::Report;
use crate::task::report::bins::{bins, table};
use crate::task::report::reference::Predictor;
use crate::task::table::thousands;

/// Training expressions from which the baselines are computed.
const N_COUNTED: usize = 10_000;
/// Ranges of lengths in the report.
const N_RANGES: usize = 5;

/// Scores on the test part, or on the expressions of a file. The baselines are fitted to training expressions.
pub(super) fn report(task: &ListOps, model: &Forecaster) -> Result<Report> {
    let Config { n_train, n_test, min_length, max_length, .. } = task.config;
    let (expressions, lengths) = if task.is_test {
        let lengths = task.validation.iter().map(|one| one.tokens.len());
        let least = lengths.clone().min().unwrap_or(0);
        (task.validation.clone(), ranges(least, lengths.max().unwrap_or(0)))
    } else {
        let drawn = task.generator.expressions(Part::Test, 0..n_test);
        (drawn, ranges(min_length + 1, max_length - 1))
    };
    let n_test = expressions.len();
    let answers = task.answers(model, &expressions)?;
    let share = |right: usize| right as f64 / n_test as f64;
    let accuracy = share(answers.iter().filter(|answer| answer.is_right).count());
    let nll = answers.iter().map(|answer| answer.nll).sum::<f64>() / n_test as f64;
    let counted = task.generator.expressions(Part::Train, 0..n_train.min(N_COUNTED));
    let (majority, by_root) = most_frequent(&counted);
    let right = |guess: &dyn Fn(&Expression) -> u8| {
        [("accuracy", share(expressions.iter().filter(|one| guess(one) == one.value).count()))]
    };
    let by_root = right(&|one| by_root[one.root as usize]);
    let by = |measure: fn(&Expression) -> usize, ranges: Vec<[usize; 2]>| {
        let right = answers.iter().map(|answer| answer.is_right);
        bins(&expressions.iter().map(measure).zip(right), ranges)
    };
    let deepest = expressions.iter().map(|one| one.depth).max().unwrap_or(0);
    let depths: Vec<_> = (1..=deepest).map(|depth| [depth, depth]).collect();
    let by_depth = by(|one| one.depth, depths);
    let by_length = by(|one| one.tokens.len(), lengths);

    let mut report = Report::new(&[("accuracy", "accuracy"), ("nll", "NLL")]);
    report.model([("accuracy", accuracy), ("nll", nll)]);
    let error = report.standard_error("accuracy", n_test);
    report.row(Predictor::Majority, "majority", right(&|_| majority));
    report.row(Predictor::RootOperator, "outermost operation", by_root);
    report.value("n_test", n_test);
    for (name, heading, bins) in
        [("by_depth", "depth", by_depth), ("by_length", "tokens", by_length)]
    {
        report.section(&table(heading, "expressions", &bins));
        report.value(name, bins);
    }
    let n = thousands(n_test as u64);
    report.footnote =
        format!("over {n} test expressions; standard error of the transformer {error:.4}");
    Ok(report)
}

/// The prediction for an expression.
struct Answer {
    is_right: bool,
    nll: f64,
}

impl ListOps {
    fn answers(&self, model: &Forecaster, expressions: &[Expression]) -> Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(expressions.len());
        for chunk in expressions.chunks(self.evaluation_batch()) {
            let rows = probabilities(&logits(model, &self.batch_of(chunk)?, Mode::Eval)?)?; // (batch, 10)
            answers.extend(rows.iter().zip(chunk).map(|(row, one)| {
                let p = row[usize::from(one.value)];
                Answer { is_right: likeliest(row) == usize::from(one.value), nll: -p.ln() }
            }));
        }
        Ok(answers)
    }
}

/// The most frequent values in training: of all expressions, and by outermost operation.
fn most_frequent(expressions: &[Expression]) -> (u8, [u8; Operator::ALL.len()]) {
    let mut counts = [[0_usize; N_CLASSES]; Operator::ALL.len()];
    for one in expressions {
        counts[one.root as usize][usize::from(one.value)] += 1;
    }
    let sums = std::array::from_fn(|value| counts.iter().map(|counts| counts[value]).sum());
    (most(&sums), counts.map(|counts| most(&counts)))
}

/// The most frequent value; the lowest of equals.
fn most(counts: &[usize; N_CLASSES]) -> u8 {
    (0..N_CLASSES as u8).rev().max_by_key(|&value| counts[usize::from(value)]).unwrap_or(0)
}

/// `N_RANGES` ranges of about the same width, or fewer, from `least` to `greatest`.
fn ranges(least: usize, greatest: usize) -> Vec<[usize; 2]> {
    let n = greatest - least + 1;
    let edge = |i: usize| least + i * n / N_RANGES;
    let ranges = (0..N_RANGES).map(|i| (edge(i), edge(i + 1)));
    ranges.filter(|(from, past)| from < past).map(|(from, past)| [from, past - 1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_lengths_once() {
        assert_eq!(ranges(4, 6), [[4, 4], [5, 5], [6, 6]]);
        let ranges = ranges(501, 1999);
        assert_eq!((ranges.len(), ranges[0][0], ranges[4][1]), (5, 501, 1999));
        assert!(ranges.windows(2).all(|pair| pair[0][1] + 1 == pair[1][0]));
    }

    #[test]
    fn the_most_frequent_value_wins_and_the_lowest_of_equals() {
        let mut counts = [0; N_CLASSES];
        (counts[3], counts[7]) = (5, 5);
        assert_eq!(most(&counts), 3);
    }
}
