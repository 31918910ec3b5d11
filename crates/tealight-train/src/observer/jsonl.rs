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

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Event, Observer, StepReport};
use crate::error::{BadStepReport, Error, Result, StepFault, StepQuantity};
use crate::storage::{disk, files};

/// The keys that measure time. Only these differ between two runs of the same configuration.
pub const THROUGHPUT_KEYS: [&str; 2] = ["examples_per_second", "tokens_per_second"];

/// The splits of lines that report bad steps and not metrics.
pub const BAD_STEP_SPLITS: [&str; 2] = ["skipped", "rolled_back"];

/// A file of lines of JSON that grows, and that is cut when a run goes back.
#[derive(Debug)]
pub(super) struct Lines {
    file: File,
    path: PathBuf,
}

impl Lines {
    /// Opens `path` for appending; creates it if it does not exist.
    pub(super) fn append(path: &Path) -> Result<Self> {
        let file = disk::append(path).map_err(Error::io("open", path))?;
        files::sync_directory(path.parent().unwrap_or(Path::new("")))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes a line with a single `write`, so that a crash can truncate only the last line.
    pub(super) fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line).map_err(Error::json(&self.path))?;
        bytes.push(b'\n');
        disk::write_all(&mut self.file, &bytes, &self.path).map_err(Error::io("write", &self.path))
    }

    /// Removes the lines after `step`, as [`cut_after`] does.
    pub(super) fn cut_after(&mut self, step: u64, n_roll_backs: u64) -> Result<()> {
        cut_after(&self.path, step, n_roll_backs)?;
        // `cut_after` may have replaced the file.
        *self = Self::append(&self.path)?;
        Ok(())
    }

    /// Waits until all lines are on the disk.
    pub(super) fn sync(&self) -> Result<()> {
        disk::sync(&self.file, &self.path).map_err(Error::io("write", &self.path))
    }
}

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

/// A line of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Number of updates done.
    pub step: u64,
    /// `train`, the split that was evaluated, or one of [`BAD_STEP_SPLITS`].
    pub split: String,
    /// All other values by name; `None` for a value that was not finite.
    pub values: BTreeMap<String, Option<f64>>,
}

// `#[serde(flatten)]` would buffer each line before it reads the values, which takes most of the time of a long file.
impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `step` and `split`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entry, A::Error> {
        let (mut step, mut split, mut values) = (None, None, BTreeMap::new());
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "step" => step = Some(map.next_value()?),
                "split" => split = Some(map.next_value()?),
                _ => drop(values.insert(key, map.next_value()?)),
            }
        }
        let step = step.ok_or_else(|| A::Error::missing_field("step"))?;
        let split = split.ok_or_else(|| A::Error::missing_field("split"))?;
        Ok(Entry { step, split, values })
    }
}

/// Reads all lines. A last line that a crash truncated is ignored.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let bytes = files::read(path)?;
    Ok(lines(path, &bytes)?.into_iter().map(|(_, entry)| entry).collect())
}

/// Reads a file that grows: each call gives the lines that were added.
#[derive(Debug, Default)]
pub struct Tail {
    path: PathBuf,
    /// The end of the last line that was read, in bytes.
    end: u64,
    n_lines: usize,
    /// The bytes before `end`. If they are others at the next call, the file was cut or replaced.
    before_end: Vec<u8>,
}

/// The content that [`Tail::read`] has found.
#[derive(Debug)]
pub struct Added {
    /// The new lines.
    pub entries: Vec<Entry>,
    /// The lines that were read before are no longer in the file, as after a roll-back: `entries` has all lines.
    pub starts_anew: bool,
}

impl Tail {
    /// Bytes that are compared; at least one line.
    const N_COMPARED: usize = 1024;

    /// Starts before the first line of `path`, which need not exist.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), ..Self::default() }
    }

    /// The lines since the last call. A line without its end is left for the next call.
    pub fn read(&mut self) -> Result<Added> {
        let n_known = self.before_end.len();
        let mut bytes = self.bytes_from(self.end - n_known as u64)?;
        let starts_anew = !bytes.starts_with(&self.before_end);
        let (first, end, n_lines) = if starts_anew {
            bytes = self.bytes_from(0)?;
            (0, 0, 0)
        } else {
            (n_known, self.end, self.n_lines)
        };
        let len = bytes.iter().rposition(|&byte| byte == b'\n').map_or(first, |at| at + 1);
        let lines = numbered(&self.path, &bytes[first..len], n_lines + 1)?;
        let entries: Vec<Entry> = lines.into_iter().map(|(_, entry)| entry).collect();
        self.end = end + (len - first) as u64;
        self.n_lines = n_lines + entries.len();
        self.before_end = bytes[len.saturating_sub(Self::N_COMPARED)..len].to_vec();
        Ok(Added { entries, starts_anew })
    }

    /// The bytes of the file from `start` on; none if there is no file.
    fn bytes_from(&self, start: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = match disk::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(bytes),
            file => file.map_err(Error::io("open", &self.path))?,
        };
        file.seek(SeekFrom::Start(start)).map_err(Error::io("read", &self.path))?;
        file.read_to_end(&mut bytes).map_err(Error::io("read", &self.path))?;
        Ok(bytes)
    }
}

/// Removes the lines of updates after `step`, of roll-backs after the first `n_roll_backs`, and a truncated last line.
/// A run that resumes at `step` writes the lines again, so its file ends up like the file of an uninterrupted run.
pub fn cut_after(path: &Path, step: u64, n_roll_backs: u64) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let bytes = files::read(path)?;
    let mut kept = Vec::new();
    let reserved = kept.try_reserve_exact(bytes.len()).map_err(std::io::Error::from);
    reserved.map_err(Error::io("read", path))?;
    let stays =
        |line: &Position| line.step <= step && line.number.unwrap_or(0.) <= n_roll_backs as f64;
    for (line, _) in lines(path, &bytes)?.iter().filter(|(_, line)| stays(line)) {
        kept.extend_from_slice(line);
        kept.push(b'\n');
    }
    if kept == bytes { Ok(()) } else { files::replace(path, &kept) }
}

/// The lines of a file and their parsed content. A crash may have truncated the last line, which is then
/// left out; any other line that cannot be parsed is an error.
pub(super) fn lines<'a, T: Deserialize<'a>>(
    path: &Path,
    bytes: &'a [u8],
) -> Result<Vec<(&'a [u8], T)>> {
    numbered(path, bytes, 1)
}

/// As [`lines`], where the first line of `bytes` has the number `first` in the file.
fn numbered<'a, T: Deserialize<'a>>(
    path: &Path,
    bytes: &'a [u8],
    first: usize,
) -> Result<Vec<(&'a [u8], T)>> {
    let mut read = Vec::new();
    let mut lines = bytes.split(|&byte| byte == b'\n').zip(first..).peekable();
    while let Some((line, number)) = lines.next() {
        let is_last = lines.peek().is_none_or(|(rest, _)| rest.is_empty());
        match serde_json::from_slice(line) {
            Ok(parsed) => read.push((line, parsed)),
            Err(_) if is_last => break,
            Err(source) => {
                let place = format!("{}:{number}", path.display());
                return Err(Error::json(place.as_ref())(source));
            }
        }
    }
    Ok(read)
}

/// The part of a line that decides whether it stays when a run resumes.
#[derive(Deserialize)]
struct Position {
    step: u64,
    /// The number of the roll-back, in lines of the split `rolled_back`.
    #[serde(default)]
    number: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::fault::{Fault, at};

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

    fn cut(text: &str, step: u64) -> Result<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        std::fs::write(&path, text).unwrap();
        cut_after(&path, step, 0)?;
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
        cut_after(Path::new("/nowhere/metrics.jsonl"), 7, 0).unwrap();
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

    #[test]
    fn a_tail_reads_whole_lines_once_and_notices_a_file_that_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut tail = Tail::new(&path);
        let mut read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let Added { entries, starts_anew } = tail.read().unwrap();
            (entries.iter().map(|entry| entry.step).collect::<Vec<_>>(), starts_anew)
        };
        let line = |step: u64, loss: f64| {
            format!("{{\"step\":{step},\"split\":\"train\",\"loss\":{loss:?}}}\n")
        };
        let long: String = (1..=50).map(|step| line(step, 0.5)).collect();
        assert_eq!(read(""), (vec![], false));
        assert_eq!(read(&long), ((1..=50).collect(), false));
        assert_eq!(read(&long), (vec![], false));
        let half = long.clone() + &line(51, 0.5) + "{\"step\":52,\"spl";
        assert_eq!(read(&half), (vec![51], false));
        assert_eq!(read(&(long.clone() + &line(51, 0.5) + &line(52, 0.5))), (vec![52], false));
        // Cut, and of the same length with another value.
        assert_eq!(read(&long), ((1..=50).collect(), true));
        assert_eq!(
            read(&long.replace(
                "\"step\":50,\"split\":\"train\",\"loss\":0.5",
                "\"step\":50,\"split\":\"train\",\"loss\":1.5"
            )),
            ((1..=50).collect(), true)
        );
        let error = {
            std::fs::write(&path, long + "no\n" + &line(9, 0.)).unwrap();
            tail.read()
        };
        assert!(error.unwrap_err().to_string().contains("metrics.jsonl:51`"));
        std::fs::remove_file(&path).unwrap();
        assert!(tail.read().unwrap().starts_anew);
    }

    #[test]
    fn a_line_without_its_step_is_an_error() {
        let error = serde_json::from_str::<Entry>("{\"split\":\"train\"}").unwrap_err();
        assert!(error.to_string().contains("missing field `step`"), "{error}");
        assert!(
            serde_json::from_str::<Entry>("{\"step\":1,\"split\":\"a\",\"loss\":\"b\"}").is_err()
        );
    }

    #[test]
    fn garbage_in_the_middle_is_an_error_with_its_line() {
        let message = cut("{\"step\":5}\nhello\n{\"step\":7}\n", 7).unwrap_err().to_string();
        assert!(message.contains("metrics.jsonl:2`"), "{message}");
    }
}
