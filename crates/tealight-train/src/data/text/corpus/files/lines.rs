//! The lines of a file in UTF-8, whatever it is written in; long lines in fragments of bounded size.

use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::data::compressed::{self, Compression, ReadProgress};
use crate::data::text::corpus::Origin;
use crate::error::{Error, Result};
use crate::storage::encoding::Encoding;

/// The maximal bytes of a fragment of a line.
const MAX_FRAGMENT: usize = 1 << 20;

/// A line, or a fragment of a long one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The text with its line break, `\n` also for `\r\n`. Only the last fragment of a line has one; the
    /// last line of a file may have none.
    pub(super) text: String,
    /// Counted from 1.
    pub(super) number: u64,
    /// Whether it begins its line.
    pub(super) begins: bool,
}

/// The lines of a file.
pub(super) struct Lines {
    path: Arc<Path>,
    reader: Box<dyn BufRead + Send>,
    pub(super) progress: Arc<ReadProgress>,
    /// Once a byte beyond ASCII has been read.
    pub(super) encoding: Arc<OnceLock<Encoding>>,
    /// Bytes for the next fragment: an incomplete character or line break.
    rest: Vec<u8>,
    number: u64,
    begins: bool,
}

impl Lines {
    pub(super) fn open(path: &Arc<Path>, compression: Compression) -> Result<Self> {
        let (reader, progress, encoding) = compressed::open_text(path, compression)?;
        let path = path.clone();
        Ok(Self { path, reader, progress, encoding, rest: Vec::new(), number: 1, begins: true })
    }

    /// The next line or fragment; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Line>> {
        let mut bytes = std::mem::take(&mut self.rest);
        let is_whole = self.read(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if !is_whole {
            self.rest = bytes.split_off(bytes.len() - unfinished(&bytes));
        }
        let mut text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(at).copied().unwrap_or_default();
            let of = if self.begins { "the line" } else { "a later part of the line" };
            self.error(format!("this is not UTF-8: byte {} of {of} is {byte:#04X}", at + 1))
        })?;
        if text.ends_with("\r\n") {
            text.truncate(text.len() - 2);
            text.push('\n');
        }
        let line = Line { text, number: self.number, begins: self.begins };
        self.begins = is_whole;
        self.number += u64::from(is_whole);
        Ok(Some(line))
    }

    /// Reads to the end of the line, the file or the fragment; false for the end of a fragment.
    fn read(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let room = (MAX_FRAGMENT - bytes.len()) as u64;
        match self.reader.by_ref().take(room).read_until(b'\n', bytes) {
            Ok(n) => Ok(bytes.ends_with(b"\n") || (n as u64) < room),
            Err(error) => Err(self.error(format!("the file cannot be read further: {error}"))),
        }
    }

    fn error(&self, rule: impl Into<String>) -> Error {
        Origin { path: self.path.clone(), line: self.number }.error(rule)
    }
}

/// The number of bytes at the end that may begin an incomplete character or line break.
fn unfinished(bytes: &[u8]) -> usize {
    if bytes.ends_with(b"\r") {
        return 1;
    }
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Result<Vec<Line>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut lines = Lines::open(&file.path().into(), Compression::None).unwrap();
        let all = std::iter::from_fn(|| lines.next().transpose()).collect::<Result<_>>();
        all.map_err(|error| error.to_string())
    }

    fn line(text: &str, number: u64) -> Line {
        Line { text: text.to_owned(), number, begins: true }
    }

    #[test]
    fn lines_are_numbered_and_end_in_one_way() {
        let expected = [line("one\n", 1), line("\n", 2), line("zwölf\n", 3), line("end", 4)];
        assert_eq!(lines("\u{FEFF}one\r\n\nzwölf\nend".as_bytes()).unwrap(), expected);
        assert_eq!(lines(b"").unwrap(), []);
        assert_eq!(lines(b"a\n").unwrap(), [line("a\n", 1)]);
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_named_by_their_line() {
        let message = lines(b"good\nb\xffad\n").unwrap_err();
        assert!(
            message.ends_with(", line 2: this is not UTF-8: byte 2 of the line is 0xFF"),
            "{message}"
        );
        let message = lines(b"cut off \xe3\x81").unwrap_err();
        assert!(
            message.ends_with(", line 1: this is not UTF-8: byte 9 of the line is 0xE3"),
            "{message}"
        );
    }

    #[test]
    fn a_line_that_is_too_long_comes_in_fragments_that_lose_nothing() {
        for shift in 0..4 {
            let long = "é晴".repeat(MAX_FRAGMENT / 4);
            let text = format!("{}{long}\r\nnext\n", "x".repeat(shift));
            let lines = lines(text.as_bytes()).unwrap();
            assert!(lines.len() > 2);
            assert_eq!(lines.last(), Some(&line("next\n", 2)));
            assert!(lines.iter().all(|line| line.text.len() <= MAX_FRAGMENT));
            assert_eq!(lines.iter().filter(|line| line.begins).count(), 2);
            let joined: String = lines.into_iter().map(|line| line.text).collect();
            assert!(joined == text.replace('\r', ""));
        }
    }

    #[test]
    fn a_line_break_between_fragments_is_one() {
        let text = format!("{}\r\nnext", "x".repeat(MAX_FRAGMENT - 1));
        let lines = lines(text.as_bytes()).unwrap();
        assert_eq!(lines[1], Line { text: "\n".to_owned(), number: 1, begins: false });
        assert_eq!(lines[2], line("next", 2));
    }
}
