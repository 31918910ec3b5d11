//! A file of lines of JSON that grows, and that is cut when a run goes back.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::storage::{disk, files};

/// The file, open for appending.
#[derive(Debug)]
pub(in crate::observer) struct Lines {
    file: File,
    path: PathBuf,
}

impl Lines {
    /// Opens `path` for appending; creates it if it does not exist.
    pub(in crate::observer) fn append(path: &Path) -> Result<Self> {
        let file = disk::append(path).map_err(Error::io("open", path))?;
        files::sync_directory(path.parent().unwrap_or(Path::new("")))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes a line with a single `write`, so that a crash can truncate only the last line.
    pub(in crate::observer) fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line).map_err(Error::json(&self.path))?;
        bytes.push(b'\n');
        disk::write_all(&mut self.file, &bytes, &self.path).map_err(Error::io("write", &self.path))
    }

    /// Removes the lines after `step`, as [`cut_after`] does.
    pub(in crate::observer) fn cut_after(&mut self, step: u64, n_roll_backs: u64) -> Result<()> {
        cut_after(&self.path, step, n_roll_backs)?;
        // `cut_after` may have replaced the file.
        *self = Self::append(&self.path)?;
        Ok(())
    }

    /// Waits until all lines are on the disk.
    pub(in crate::observer) fn sync(&self) -> Result<()> {
        disk::sync(&self.file, &self.path).map_err(Error::io("write", &self.path))
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
pub(in crate::observer) fn lines<'a, T: Deserialize<'a>>(
    path: &Path,
    bytes: &'a [u8],
) -> Result<Vec<(&'a [u8], T)>> {
    numbered(path, bytes, 1)
}

/// As [`lines`], where the first line of `bytes` has the number `first` in the file.
pub(super) fn numbered<'a, T: Deserialize<'a>>(
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
    fn garbage_in_the_middle_is_an_error_with_its_line() {
        let message = cut("{\"step\":5}\nhello\n{\"step\":7}\n", 7).unwrap_err().to_string();
        assert!(message.contains("metrics.jsonl:2`"), "{message}");
    }
}
