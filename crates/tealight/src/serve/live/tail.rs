//! Follows `metrics.jsonl`: the lines that are new, and whether earlier ones were taken back.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

/// The bytes before the place that is read next, which tell whether the file was changed there.
const MEMORY: usize = 128;
/// The bytes that are read at a time.
const MAX_BYTES: u64 = 8 << 20;

/// A place in a file that grows. A roll-back shortens or replaces the file.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    at: u64,
    /// The last bytes before `at`.
    before: Vec<u8>,
}

/// Lines of the file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct News {
    /// Whether all lines before these were taken back.
    pub(super) restart: bool,
    pub(super) lines: Vec<Value>,
}

impl Tail {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, at: 0, before: Vec::new() }
    }

    /// The whole lines since the last call. A line that is not JSON is left out; a missing file has no lines.
    pub(super) fn read(&mut self) -> io::Result<News> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(News { restart: self.reset(), lines: Vec::new() });
            }
            file => file?,
        };
        let restart = !self.is_unchanged(&mut file)? && self.reset();
        file.seek(SeekFrom::Start(self.at))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        // The last line may not be complete yet.
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        bytes.truncate(end);
        self.advance(&bytes);
        let lines = bytes.split(|&byte| byte == b'\n');
        let lines = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        Ok(News { restart, lines })
    }

    /// Begins again; whether anything was read before.
    fn reset(&mut self) -> bool {
        let was_read = self.at > 0;
        self.at = 0;
        self.before.clear();
        was_read
    }

    /// Whether the bytes before the place are still those that were read.
    fn is_unchanged(&self, file: &mut File) -> io::Result<bool> {
        let mut now = vec![0; self.before.len()];
        file.seek(SeekFrom::Start(self.at - self.before.len() as u64))?;
        match file.read_exact(&mut now) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| now == self.before),
        }
    }

    fn advance(&mut self, read: &[u8]) {
        self.at += read.len() as u64;
        self.before.extend_from_slice(read);
        self.before.drain(..self.before.len().saturating_sub(MEMORY));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_read_once_and_taken_back_when_the_file_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut tail = Tail::new(path.clone());
        let mut news = || tail.read().unwrap();
        let lines = |restart, lines: &[Value]| News { restart, lines: lines.to_vec() };
        assert_eq!(news(), lines(false, &[]));
        fs::write(&path, "1\n2\n").unwrap();
        assert_eq!(news(), lines(false, &[json!(1), json!(2)]));
        assert_eq!(news(), lines(false, &[]));
        fs::write(&path, "1\n2\n3\nbroken\n4").unwrap();
        assert_eq!(news(), lines(false, &[json!(3)]));
        // Longer than before, and other lines at the place.
        fs::write(&path, "1\n5\n6\n7777777777777\n").unwrap();
        assert_eq!(news(), lines(true, &[1, 5, 6, 7_777_777_777_777_u64].map(|n| json!(n))));
        fs::write(&path, "1\n").unwrap();
        assert_eq!(news(), lines(true, &[json!(1)]));
        fs::remove_file(&path).unwrap();
        assert_eq!(news(), lines(true, &[]));
        assert_eq!(news(), lines(false, &[]));
    }
}
