//! The probability from which on a label is given, chosen on held-out texts.
//!
//! ```text
//! f1          the threshold of the highest F1; of equal ones the lowest
//! precision   the lowest threshold at which the precision TP / (TP + FP) is reached
//! ```
//!
//! A text has the label if its probability is at least the threshold. As in the decision trees of scikit-learn, a
//! threshold is the middle between two neighbouring probabilities that occur, the lowest the middle to 0: a text that is
//! computed again, in other company and with other rounding, stays on its side.

use serde_json::json;

use crate::data::shown::on_one_line;
use crate::error::{Error, Result};
use crate::task::report::Report;
use crate::task::scores::Counts;

const KEY: &str = "task.threshold";

/// `task.threshold`: what a threshold is chosen for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aim {
    F1,
    /// At least this precision.
    Precision(f64),
}

impl Aim {
    /// # Errors
    /// If it is neither `f1` nor `precision=` with a share.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let share = text.strip_prefix("precision=").and_then(|share| share.trim().parse().ok());
        match share {
            Some(share) if share > 0. && share <= 1. => Ok(Self::Precision(share)),
            None if text == "f1" => Ok(Self::F1),
            _ => {
                let message = format!(
                    "`{KEY}` = \"{text}\" must be \"f1\", or \"precision=0.9\" with a share above 0 and at most 1"
                );
                Err(Error::config([KEY], message))
            }
        }
    }

    /// The threshold for texts, each with the probability of the label and whether it has the label; `None` if no text
    /// has it, if the precision is not reached, or if the weights have diverged.
    pub(super) fn threshold(self, texts: &[(f64, bool)]) -> Option<f64> {
        if texts.iter().any(|(p, _)| p.is_nan()) {
            return None;
        }
        let n_given = texts.iter().filter(|(_, has)| *has).count() as u64;
        let mut sorted = texts.to_vec();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut counts, mut best) = (Counts { missed: n_given, ..Counts::default() }, None);
        let mut n_seen = 0;
        for equal in sorted.chunk_by(|a, b| a.0 == b.0) {
            n_seen += equal.len();
            let n_found = equal.iter().filter(|(_, has)| *has).count() as u64;
            counts.found += n_found;
            counts.missed -= n_found;
            counts.wrong += equal.len() as u64 - n_found;
            let (reached, least) = match self {
                Self::F1 => (counts.f1(), best.map_or(f64::MIN_POSITIVE, |(best, _)| best)),
                Self::Precision(share) => (counts.precision(), share),
            };
            if reached >= least {
                let lower = sorted.get(n_seen).map_or(0., |&(p, _)| p);
                best = Some((reached, between(lower, equal[0].0)));
            }
        }
        best.map(|(_, threshold)| threshold)
    }
}

/// The middle between two probabilities, above the lower one.
fn between(lower: f64, higher: f64) -> f64 {
    let middle = f64::midpoint(lower, higher);
    if middle > lower { middle } else { higher }
}

/// A label with its texts: the probability of each, and whether it has the label.
pub(super) type OfLabel<'a> = (&'a str, Vec<(f64, bool)>);

/// Chooses the threshold of each label, ½ where the aim is not reached, and adds a table of them to the report.
pub(super) fn tuned(aim: Aim, labels: &[OfLabel<'_>], report: &mut Report) -> Vec<(String, f64)> {
    let counts = |texts: &[(f64, bool)], threshold: f64| {
        let mut counts = Counts::default();
        for &(p, has) in texts {
            counts.add(has, p >= threshold);
        }
        counts
    };
    let (mut thresholds, mut rows, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for (label, texts) in labels {
        let found = aim.threshold(texts);
        if found.is_none() {
            missing.push(format!("\"{}\"", on_one_line(label)));
        }
        let threshold = found.unwrap_or(0.5);
        let tuned = counts(texts, threshold);
        rows.push(json!({
            "label": label,
            "threshold": threshold,
            "precision": tuned.precision(),
            "recall": tuned.recall(),
            "f1": tuned.f1(),
            "f1_at_half": counts(texts, 0.5).f1(),
        }));
        thresholds.push(((*label).to_owned(), threshold));
    }
    let columns = [
        ("label", "label"),
        ("threshold", "threshold"),
        ("precision", "precision"),
        ("recall", "recall"),
        ("F1", "f1"),
        ("F1 at 0.5", "f1_at_half"),
    ];
    let n = rows.len();
    report.list("thresholds", rows, &columns, n);
    let not_found = match (&missing[..], aim) {
        ([], _) => String::new(),
        (_, Aim::F1) => format!("; no text has {}: 0.5", missing.join(", ")),
        (_, Aim::Precision(share)) => {
            format!("; the precision {share} is not reached by {}: 0.5", missing.join(", "))
        }
    };
    let note = "`classify` follows the thresholds, and all other scores here are by a probability of 0.5; thresholds are chosen \
                on these texts, so new texts are likely to have lower scores";
    report.section(&format!("{note}{not_found}\n"));
    thresholds
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// 60 texts of three labels, with the thresholds that scikit-learn's `f1_score` chooses.
    #[test]
    fn thresholds_of_the_highest_f1_are_those_of_the_record() {
        let text = include_str!("../../tests/golden/classification.json");
        let record = &serde_json::from_str::<Value>(text).unwrap()["threshold"];
        let rows = |key: &str| record[key].as_array().unwrap().clone();
        for (label, expected) in rows("per_label").iter().enumerate() {
            let texts: Vec<(f64, bool)> = rows("probabilities")
                .iter()
                .zip(rows("labels"))
                .map(|(p, has)| (p[label].as_f64().unwrap(), has[label] == 1))
                .collect();
            let threshold = Aim::F1.threshold(&texts).unwrap();
            // The lowest probability above it.
            let above = texts.iter().map(|&(p, _)| p).filter(|&p| p >= threshold);
            let least = above.fold(f64::INFINITY, f64::min);
            assert_eq!(least, expected["threshold"].as_f64().unwrap(), "{label}");
            let mut report = Report::default();
            tuned(Aim::F1, &[("a", texts)], &mut report);
            for key in ["f1", "f1_at_half"] {
                let value = report.values["thresholds"][0][key].as_f64().unwrap();
                assert!((value - expected[key].as_f64().unwrap()).abs() < 1e-12, "{label}, {key}");
            }
        }
    }

    #[test]
    fn the_lowest_threshold_of_a_precision_is_found() {
        let texts =
            [(0.9, true), (0.8, false), (0.7, true), (0.7, true), (0.4, false), (0.2, true)];
        let of = |share| Aim::Precision(share).threshold(&texts);
        // 1, 1/2, 3/4, 3/5, 4/6 from the top down.
        let middles = [(0.9, 0.8), (0.7, 0.4), (0.7, 0.4), (0.2, 0.)];
        let middles = middles.map(|(one, other)| Some(f64::midpoint(one, other)));
        assert_eq!([1., 0.75, 0.7, 0.6].map(of), middles);
        // There is no number between these.
        let close = [(1., true), (1_f64.next_down(), false)];
        assert_eq!(Aim::F1.threshold(&close), Some(1.));
        let wrong = [(0.9, false), (0.1, true)];
        assert_eq!(Aim::Precision(0.6).threshold(&wrong), None);
        assert_eq!(Aim::F1.threshold(&[(0.9, false)]), None);
        assert_eq!(Aim::F1.threshold(&[(0.9, true), (f64::NAN, true)]), None);
        let mut report = Report::default();
        let kept = tuned(Aim::Precision(0.6), &[("a", wrong.to_vec())], &mut report);
        assert_eq!(kept, [("a".to_owned(), 0.5)]);
        assert!(report.to_string().contains("the precision 0.6 is not reached by \"a\""));
    }

    #[test]
    fn an_aim_is_read_from_its_words() {
        assert_eq!(Aim::parse("f1").unwrap(), Aim::F1);
        assert_eq!(Aim::parse("precision=0.9").unwrap(), Aim::Precision(0.9));
        for wrong in ["precision", "precision=", "precision=0", "precision=1.5", "recall=0.9", ""] {
            let error = Aim::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("`task.threshold`"), "{error}");
        }
    }
}
