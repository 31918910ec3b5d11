//! `metrics.jsonl`: one line per report, to be read by anything.
//!
//! ```text
//! {"step":100,"split":"train","loss":0.5,"lr":0.001,"grad_norm":0.7,"examples_per_second":5120.0,
//!  "accuracy":0.75,"nll":0.5}
//! {"step":100,"split":"validation","accuracy":0.5,"loss":0.75,"nll":0.75}
//! ```
//!
//! After the split come the task's metrics, here those of the weather; `tokens_per_second` follows
//! `examples_per_second` where a task counts tokens. A line is not broken as the first one is here.
//!
//! A number that is not finite is `null`, because JSON has no other word for it.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Event, Observer, StepReport};
use crate::error::{Error, Result};
use crate::run::files;

/// The keys that differ between two runs of the same configuration: they measure time.
pub const TIMES: [&str; 2] = ["examples_per_second", "tokens_per_second"];

/// Appends the reports of a run to a file.
#[derive(Debug)]
pub struct JsonLines {
    file: File,
    path: PathBuf,
}

impl JsonLines {
    /// Opens `path` for appending, and creates it if need be.
    pub fn append(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(Error::io("open", path))?;
        files::sync_directory(path.parent().unwrap_or(Path::new("")))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// One `write` per line, so that a crash can only cut off the last one.
    fn write(&mut self, line: &Map<String, Value>) -> Result<()> {
        let json_error = |source| Error::Json { path: self.path.clone(), source };
        let mut bytes = serde_json::to_vec(line).map_err(json_error)?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(Error::io("write", &self.path))
    }
}

impl Observer for JsonLines {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Step(report) => self.write(&training_line(report)),
            Event::Evaluated { step, split, metrics } => {
                let mut line = Map::new();
                line.insert("step".into(), Value::from(*step));
                line.insert("split".into(), Value::from(*split));
                line.extend(metrics.iter().map(|(name, value)| (name.clone(), (*value).into())));
                self.write(&line)
            }
            // A checkpoint promises that everything before it is known.
            Event::CheckpointSaving { .. } | Event::Finished { .. } => {
                self.file.sync_data().map_err(Error::io("write", &self.path))
            }
            Event::RunStarted { .. }
            | Event::CheckpointSaved { .. }
            | Event::EarlyStopped { .. } => Ok(()),
        }
    }
}

fn training_line(report: &StepReport<'_>) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("step".into(), report.step.into());
    line.insert("split".into(), "train".into());
    line.insert("loss".into(), report.loss.into());
    line.insert("lr".into(), report.lr.into());
    line.insert("grad_norm".into(), report.grad_norm.into());
    line.insert("examples_per_second".into(), report.examples_per_second.into());
    if let Some(tokens_per_second) = report.tokens_per_second {
        line.insert("tokens_per_second".into(), tokens_per_second.into());
    }
    for (name, value) in report.metrics {
        line.entry(name).or_insert_with(|| (*value).into());
    }
    line
}

/// Cuts off the lines after `step`, which a run that resumes there will write again, and what a
/// crash left of a last line. A resumed run's file is then the file of a run that never stopped.
pub fn cut_after(path: &Path, step: u64) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let bytes = files::read(path)?;
    let mut kept = Vec::with_capacity(bytes.len());
    let mut lines = bytes.split(|&byte| byte == b'\n').zip(1..).peekable();
    while let Some((line, number)) = lines.next() {
        let is_last = lines.peek().is_none_or(|(rest, _)| rest.is_empty());
        match serde_json::from_slice::<Line>(line) {
            Ok(parsed) if parsed.step <= step => {
                kept.extend_from_slice(line);
                kept.push(b'\n');
            }
            Ok(_) => {}
            Err(_) if is_last => break,
            Err(source) => {
                let place = PathBuf::from(format!("{}:{number}", path.display()));
                return Err(Error::Json { path: place, source });
            }
        }
    }
    if kept == bytes { Ok(()) } else { files::replace(path, &kept) }
}

/// What every line has.
#[derive(Deserialize)]
struct Line {
    step: u64,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

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
    fn a_loss_that_is_not_a_number_is_null() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let metrics = BTreeMap::new();
        JsonLines::append(&path).unwrap().observe(&report(7, f64::NAN, &metrics)).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"loss\":null"));
    }

    fn cut(text: &str, step: u64) -> Result<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        std::fs::write(&path, text).unwrap();
        cut_after(&path, step)?;
        Ok(std::fs::read_to_string(&path).unwrap())
    }

    #[test]
    fn resuming_cuts_off_later_lines_and_half_a_line() {
        let (early, late) = ("{\"step\":5,\"loss\":1.50}\n", "{\"step\":7,\"loss\":1.25}\n");
        let text = [early, late].concat();
        assert_eq!(cut(&text, 5).unwrap(), early);
        assert_eq!(cut(&text, 4).unwrap(), "");
        assert_eq!(cut(&text, 7).unwrap(), text);
        assert_eq!(cut(&format!("{text}{{\"step\":8,\"lo"), 7).unwrap(), text);
        assert_eq!(cut(&format!("{early}\0\0\n"), 7).unwrap(), early);
        assert_eq!(cut(late.trim_end(), 7).unwrap(), late);
        assert_eq!(cut("", 7).unwrap(), "");
        cut_after(Path::new("/nowhere/metrics.jsonl"), 7).unwrap();
    }

    #[test]
    fn garbage_in_the_middle_is_an_error_with_its_line() {
        let message = cut("{\"step\":5}\nhello\n{\"step\":7}\n", 7).unwrap_err().to_string();
        assert!(message.contains("metrics.jsonl:2`"), "{message}");
    }
}
