//! The lines of a run, read: all of them, or those that were added.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::lines::{lines, numbered};
use crate::error::{Error, Result};
use crate::storage::{disk, files};

/// A line of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Number of updates done.
    pub step: u64,
    /// `train`, the split that was evaluated, or one of [`BAD_STEP_SPLITS`](super::BAD_STEP_SPLITS).
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
