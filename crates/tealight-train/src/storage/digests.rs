//! `SHA256SUMS`: the SHA-256 digests of the files of a directory, in the format of `sha256sum -c SHA256SUMS`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::files;
use crate::error::{Error, Result};

/// The name of the file.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// The most bytes that a [`DigestReader`] reads at once.
const PIECE: usize = 1 << 18;

/// Hexadecimal digests by file name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums(BTreeMap<String, String>);

impl Sums {
    /// Reads the digests of a directory.
    pub(crate) fn load(directory: &Path) -> Result<Self> {
        let path = directory.join(SUMS);
        let bytes = files::read(&path)?;
        let damaged = || Error::damaged(&path, "it does not list digests");
        let text = std::str::from_utf8(&bytes).map_err(|_| damaged())?;
        let entry = |line: &str| {
            let (digest, name) = line.split_once("  ")?;
            Some((name.to_owned(), digest.to_owned()))
        };
        text.lines().map(entry).collect::<Option<_>>().map(Self).ok_or_else(damaged)
    }

    pub(crate) fn add(&mut self, name: &str, bytes: &[u8]) {
        self.0.insert(name.to_owned(), digest(bytes));
    }

    pub(crate) fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (name, digest)| {
            let _ = writeln!(text, "{digest}  {name}");
            text
        })
    }

    /// Checks that `bytes`, the content of the file `name` at `path`, have the listed digest.
    pub(crate) fn check(&self, name: &str, path: &Path, bytes: &[u8]) -> Result<()> {
        self.check_digest(name, path, &digest(bytes))
    }

    /// Checks that the content of the file `name` at `path`, whose digest is `actual`, is as listed.
    pub(crate) fn check_digest(&self, name: &str, path: &Path, actual: &str) -> Result<()> {
        match self.0.get(name) {
            Some(expected) if expected == actual => Ok(()),
            Some(_) => Err(Error::damaged(path, format!("its content is not what `{SUMS}` says"))),
            None => Err(Error::damaged(path, format!("`{SUMS}` does not list it"))),
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// A SHA-256 digest of parts that are added one after the other.
#[derive(Debug, Default)]
pub struct Digest(Sha256);

impl Digest {
    /// Adds a part.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all parts, in hexadecimal.
    pub fn finish(self) -> String {
        format!("{:x}", self.0.finalize())
    }
}

/// A reader that computes the digest of the bytes that it reads.
#[derive(Debug)]
pub(crate) struct DigestReader<R> {
    reader: R,
    digest: Digest,
}

impl<R: Read> DigestReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, digest: Digest::default() }
    }

    /// Reads the rest. Returns the digest of all bytes.
    pub(crate) fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.digest.finish())
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A piece is still in the cache when it is digested.
        let piece = buffer.len().min(PIECE);
        let n = self.reader.read(&mut buffer[..piece])?;
        self.digest.add(&buffer[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let mut sums = Sums::default();
        sums.add("b.txt", b"abc");
        assert_eq!(sums.text(), format!("{expected}  b.txt\n"));
    }

    #[test]
    fn a_reader_digests_what_is_read_and_the_rest() {
        let bytes: Vec<u8> = (0..3 * PIECE + 7).map(|i| (i % 251) as u8).collect();
        for n in [0, 5, PIECE + 3, bytes.len()] {
            let mut reader = DigestReader::new(&bytes[..]);
            let mut read = vec![0; n];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(read, bytes[..n]);
            assert_eq!(reader.finish().unwrap(), digest(&bytes));
        }
    }

    #[test]
    fn what_was_written_is_read_and_what_is_no_list_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut sums = Sums::default();
        sums.add("a", b"1");
        sums.add("b", b"2");
        std::fs::write(directory.path().join(SUMS), sums.text()).unwrap();
        let read = Sums::load(directory.path()).unwrap();
        assert_eq!(read, sums);
        let path = Path::new("x/a");
        read.check("a", path, b"1").unwrap();
        let message = |name, bytes| read.check(name, path, bytes).unwrap_err().to_string();
        assert!(message("a", b"2").ends_with("its content is not what `SHA256SUMS` says"));
        assert!(message("c", b"1").ends_with("`SHA256SUMS` does not list it"));
        for garbage in [&b"hello"[..], b"\xff\xff  a\n"] {
            std::fs::write(directory.path().join(SUMS), garbage).unwrap();
            let message = Sums::load(directory.path()).unwrap_err().to_string();
            assert!(message.ends_with("SHA256SUMS` is damaged: it does not list digests"));
        }
    }
}
