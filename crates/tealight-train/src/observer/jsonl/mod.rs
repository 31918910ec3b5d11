//! `metrics.jsonl`: one line of JSON per report.
//!
//! ```text
//! {"step":100,"split":"train","loss":0.5,"lr":0.001,"grad_norm":0.7,"examples_per_second":5120.0,
//!  "accuracy":0.75,"nll":0.5}
//! {"step":100,"split":"validation","accuracy":0.5,"loss":0.75,"nll":0.75}
//! ```
//!
//! The metrics of the task come last, here of the task `weather`. `tokens_per_second` follows `examples_per_second` if
//! the task counts tokens. The first line is broken only in this comment.
//!
//! A number that is not finite is written as `null`, because JSON cannot express it.
//!
//! A skipped step has a line with the split `skipped` and its loss. A roll-back removes the lines of the
//! steps that it undoes and adds one with the split `rolled_back`: `step` is the step of the checkpoint,
//! `from` the bad step, `number` counts the roll-backs, and `lr_factor` is the new factor on the learning
//! rate.

mod lines;
mod reader;

use std::path::Path;

use serde_json::{Map, Value};

use super::{Event, Observer, StepReport};
use crate::error::{BadStepReport, Result, StepFault, StepQuantity};
pub use lines::cut_after;
pub(super) use lines::{Lines, lines};
pub use reader::{Added, Entry, Tail, read};

/// The keys that measure time. Only these differ between two runs of the same configuration.
pub const THROUGHPUT_KEYS: [&str; 2] = ["examples_per_second", "tokens_per_second"];

/// The splits of lines that report bad steps and not metrics.
pub const BAD_STEP_SPLITS: [&str; 2] = ["skipped", "rolled_back"];

/// Appends the reports of a run to `metrics.jsonl`.
#[derive(Debug)]
pub struct JsonLines(Lines);

impl JsonLines {
    /// Opens `path` for appending; creates it if it does not exist.
    pub fn append(path: &Path) -> Result<Self> {
        Lines::append(path).map(Self)
    }
}

impl Observer for JsonLines {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Step(report) => {
                self.0.write(&line(report.step, "train", training_values(report)))
            }
            Event::Evaluated { step, split, metrics } => {
                let values = metrics.iter().map(|(name, value)| (name.as_str(), *value));
                self.0.write(&line(*step, split, values))
            }
            Event::Skipped { bad_step } => {
                self.0.write(&line(bad_step.step, "skipped", [bad_value(bad_step)]))
            }
            Event::RolledBack { bad_step, to, number, lr_factor } => {
                self.0.cut_after(*to, *number - 1)?;
                let values = [
                    bad_value(bad_step),
                    ("from", bad_step.step as f64),
                    ("number", *number as f64),
                    ("lr_factor", *lr_factor),
                ];
                self.0.write(&line(*to, "rolled_back", values))
            }
            // The reports before a checkpoint must be on the disk when the checkpoint is.
            Event::CheckpointSaving { .. } | Event::Finished { .. } => self.0.sync(),
            _ => Ok(()),
        }
    }
}

fn line<'a>(
    step: u64,
    split: &str,
    values: impl IntoIterator<Item = (&'a str, f64)>,
) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("step".into(), step.into());
    line.insert("split".into(), split.into());
    line.extend(values.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
    line
}

/// The loss or gradient norm that made a step bad.
fn bad_value(bad_step: &BadStepReport) -> (&'static str, f64) {
    match bad_step.fault {
        StepFault::Spike { loss, .. } => ("loss", loss),
        StepFault::NotFinite { quantity: StepQuantity::Loss, value } => ("loss", value),
        StepFault::NotFinite { quantity: StepQuantity::GradientNorm, value } => {
            ("grad_norm", value)
        }
    }
}

/// The values of a report by name, in the order of the file, each name once.
pub(super) fn training_values<'a>(report: &StepReport<'a>) -> Vec<(&'a str, f64)> {
    let StepReport { loss, lr, grad_norm, examples_per_second, tokens_per_second, .. } = *report;
    let times = THROUGHPUT_KEYS.into_iter().zip([Some(examples_per_second), tokens_per_second]);
    let times = times.filter_map(|(name, rate)| Some((name, rate?)));
    let always = [("loss", loss), ("lr", lr), ("grad_norm", grad_norm)];
    let mut values: Vec<(&str, f64)> = always.into_iter().chain(times).collect();
    for (name, value) in report.metrics {
        if values.iter().all(|(known, _)| known != name) {
            values.push((name, *value));
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::error::Error;
    use crate::storage::disk::fault::{Fault, at};
    use crate::storage::files;

    fn report(step: u64, loss: f64, metrics: &BTreeMap<String, f64>) -> Event<'_> {
        Event::Step(StepReport {
            step,
            loss,
            lr: 0.001,
            grad_norm: 0.75,
            examples_per_second: 3.,
            tokens_per_second: Some(96.),
            metrics,
        })
    }

    #[test]
    fn lines_keep_their_keys_in_order_and_a_second_opening_appends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let metrics = BTreeMap::from([("accuracy".into(), 0.5), ("loss".into(), 9.)]);
        JsonLines::append(&path).unwrap().observe(&report(7, 2.5, &metrics)).unwrap();
        let mut second = JsonLines::append(&path).unwrap();
        let evaluated = Event::Evaluated { step: 7, split: "validation", metrics: &metrics };
        second.observe(&evaluated).unwrap();
        second.observe(&Event::Finished { step: 7, seconds: 1. }).unwrap();
        let expected = "\
            {\"step\":7,\"split\":\"train\",\"loss\":2.5,\"lr\":0.001,\"grad_norm\":0.75,\
            \"examples_per_second\":3.0,\"tokens_per_second\":96.0,\"accuracy\":0.5}\n\
            {\"step\":7,\"split\":\"validation\",\"accuracy\":0.5,\"loss\":9.0}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_power_cut_at_any_call_loses_no_line_of_a_step_that_is_saved() {
        for n in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let (path, saved) =
                (directory.path().join("metrics.jsonl"), directory.path().join("saved"));
            let metrics = BTreeMap::new();
            let run = || {
                let mut lines = JsonLines::append(&path)?;
                for step in 1..=4 {
                    lines.observe(&report(step, 0.5, &metrics))?;
                    lines.observe(&Event::CheckpointSaving { step })?;
                    files::replace(&saved, step.to_string().as_bytes())?;
                }
                Ok::<_, Error>(())
            };
            let (result, is_reached) = at(n, Fault::PowerCut, run);
            let last = std::fs::read_to_string(&saved).map_or(0, |step| step.parse().unwrap());
            cut_after(&path, last, 0).unwrap();
            let steps: Vec<u64> = if path.exists() { read(&path).unwrap() } else { Vec::new() }
                .into_iter()
                .map(|entry| entry.step)
                .collect();
            assert_eq!(steps, (1..=last).collect::<Vec<_>>(), "call {n}");
            if !is_reached {
                assert!(result.is_ok() && last == 4);
                return;
            }
        }
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_null() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let metrics = BTreeMap::new();
        JsonLines::append(&path).unwrap().observe(&report(7, f64::NAN, &metrics)).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"loss\":null"));
    }

    #[test]
    fn what_was_written_is_read_and_half_a_line_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let metrics = BTreeMap::from([("accuracy".into(), 0.1 + 0.2)]);
        let mut lines = JsonLines::append(&path).unwrap();
        lines.observe(&report(7, f64::NAN, &metrics)).unwrap();
        lines.observe(&report(9, 0.5, &metrics)).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"step\":11,\"spl");
        std::fs::write(&path, bytes).unwrap();
        let entries = read(&path).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.step).collect::<Vec<_>>(), [7, 9]);
        assert_eq!((entries[0].split.as_str(), entries[0].values["loss"]), ("train", None));
        assert_eq!(entries[0].values["accuracy"], Some(0.1 + 0.2));
    }

    #[test]
    fn a_run_that_goes_back_forgets_what_it_had_reported_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"step\":5}\n{\"step\":7}\n").unwrap();
        let mut lines = JsonLines::append(&path).unwrap();
        let fault = StepFault::NotFinite { quantity: StepQuantity::Loss, value: f64::NAN };
        let bad_step = BadStepReport { step: 9, fault, batches: 8..9, origin: None };
        lines.observe(&Event::Skipped { bad_step: &bad_step }).unwrap();
        let went_back =
            |number| Event::RolledBack { bad_step: &bad_step, to: 5, number, lr_factor: 0.5 };
        lines.observe(&went_back(1)).unwrap();
        lines.observe(&went_back(2)).unwrap();
        let fault = StepFault::Spike { loss: 8., mean: 2., deviation: 1. };
        lines
            .observe(&Event::Skipped { bad_step: &BadStepReport { fault, ..bad_step.clone() } })
            .unwrap();
        let expected = "{\"step\":5}\n\
            {\"step\":5,\"split\":\"rolled_back\",\"loss\":null,\"from\":9.0,\"number\":1.0,\"lr_factor\":0.5}\n\
            {\"step\":5,\"split\":\"rolled_back\",\"loss\":null,\"from\":9.0,\"number\":2.0,\"lr_factor\":0.5}\n\
            {\"step\":9,\"split\":\"skipped\",\"loss\":8.0}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        // Resumed from the checkpoint of step 5 as it was after the first time.
        cut_after(&path, 5, 1).unwrap();
        let kept: Vec<&str> = expected.split_inclusive('\n').take(2).collect();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), kept.concat());
    }
}
