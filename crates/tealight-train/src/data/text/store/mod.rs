//! The tokens of a corpus, made once, kept in a file and mapped into memory.
//!
//! ```text
//! <cache>/<key>.tokens      key = hash(what the tokenizer is, what the inputs contain, settings, format)
//! ```
//!
//! The key is the content, so a file that changes is tokenised anew, and one that is only moved is
//! not. The cache is `task.cache`, or else `$TEALIGHT_CACHE`, `$XDG_CACHE_HOME/tealight` or
//! `~/.cache/tealight`; it saves time and never changes a result, and may be deleted at any time.
//! Documents that are drawn from a generator are few, and stay in memory.
//!
//! Cost: the inputs are read for their hash whenever a store is opened, and the file of tokens for its
//! checksum; where there is no such file, the inputs are read again and tokenised, in batches of a few
//! MiB on all threads. The memory of files does not depend on their size. A file of tokens has 2 bytes
//! per token (4 for vocabularies above 65,536) and 16 per document.

mod build;
mod folder;
mod format;
mod mapped;
mod write;

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use self::format::{Entry, Header, Width};
use self::mapped::Bytes;
use super::corpus::{Corpus, Progress};
use super::tokenizer::Tokenizer;
use crate::data::Split;
use crate::data::fingerprint::Fnv128;
use crate::error::{Error, Result};
use crate::storage::files;

pub use self::folder::folder;

/// What is being done to a corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its files are read to find out whether their tokens are known.
    Reading,
    /// They are not, and are being made.
    Tokenising,
}

/// The tokens of all documents.
#[derive(Debug)]
pub struct TokenStore {
    header: Header,
    bytes: Bytes,
}

impl TokenStore {
    /// The tokens of a corpus, from the folder of the cache or made now; `progress` is told how far.
    /// The folder is only asked for if the corpus is not drawn.
    pub fn of(
        corpus: &dyn Corpus,
        tokenizer: &Tokenizer,
        cache: impl FnOnce() -> Result<std::path::PathBuf>,
        progress: &mut dyn FnMut(Stage, Progress),
    ) -> Result<Self> {
        let fingerprint = corpus.fingerprint(&mut |done| progress(Stage::Reading, done))?;
        let key = key(fingerprint, tokenizer)?;
        let progress = &mut |done| progress(Stage::Tokenising, done);
        if corpus.is_drawn() {
            return Self::in_memory(corpus, tokenizer, key, progress);
        }
        let folder = cache()?;
        files::create_directory(&folder)?;
        let path = folder.join(format!("{key:032x}.tokens"));
        if let Some(store) = Self::open(&path, key)? {
            return Ok(store);
        }
        let lock = folder.join(format!("{key:032x}.lock"));
        let lock = File::create(&lock).map_err(Error::io("create", &lock))?;
        // Whoever comes second waits here and finds the work done. Where files cannot be locked, it is
        // done twice.
        let is_alone = lock.lock().is_ok();
        if let Some(store) = Self::open(&path, key)? {
            return Ok(store);
        }
        if is_alone {
            build::remove_leftovers(&path)?;
        }
        build::file(&path, corpus, tokenizer, key, progress)?;
        let missing = || Error::io("read", &path)(std::io::ErrorKind::NotFound.into());
        Self::open(&path, key)?.ok_or_else(missing)
    }

    fn in_memory(
        corpus: &dyn Corpus,
        tokenizer: &Tokenizer,
        key: u128,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let bytes = build::memory(corpus, tokenizer, key, progress)?;
        let header = Header::decode(&bytes).expect("invariant: what we write can be read");
        Ok(Self { header, bytes: Bytes::Owned(bytes) })
    }

    /// `None` if there is no such file, or it is not what was written.
    fn open(path: &Path, key: u128) -> Result<Option<Self>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(Error::io("open", path))?,
        };
        let Some(header) = format::verify(&mut file, key).map_err(Error::io("read", path))? else {
            return Ok(None);
        };
        let bytes = Bytes::map(&file).map_err(Error::io("map", path))?;
        Ok(Some(Self { header, bytes }))
    }

    /// Documents, numbered as the corpus gives them; some may have no token.
    pub fn n_documents(&self) -> u64 {
        self.header.n_documents
    }

    /// Tokens of all documents.
    pub fn n_tokens(&self) -> u64 {
        self.header.n_tokens
    }

    /// Tokens of a document.
    pub fn n_tokens_of(&self, document: u64) -> u64 {
        let Range { start, end } = self.tokens_of(document);
        end - start
    }

    /// The side that the corpus puts a document on.
    pub fn split_of(&self, document: u64) -> Option<Split> {
        self.entry(document).split
    }

    /// Bytes of the text that became a document's tokens.
    pub fn n_bytes_of(&self, document: u64) -> u64 {
        self.entry(document).n_bytes
    }

    /// Appends the tokens at places `range` of a document.
    ///
    /// # Panics
    /// If the document has no such places.
    pub fn read(&self, document: u64, range: Range<u64>, into: &mut Vec<u32>) {
        let all = self.tokens_of(document);
        assert!(range.end <= all.end - all.start, "invariant: a range within the document");
        let bytes = &self.bytes[self.header.tokens(all.start + range.start..all.start + range.end)];
        match self.header.width {
            Width::Two => into
                .extend(bytes.as_chunks().0.iter().map(|&two| u32::from(u16::from_le_bytes(two)))),
            Width::Four => {
                into.extend(bytes.as_chunks().0.iter().map(|&four| u32::from_le_bytes(four)));
            }
        }
    }

    /// Where a document's tokens are among all.
    fn tokens_of(&self, document: u64) -> Range<u64> {
        let start = document.checked_sub(1).map_or(0, |before| self.entry(before).end);
        start..self.entry(document).end
    }

    fn entry(&self, document: u64) -> Entry {
        let bytes = &self.bytes[self.header.entry(document)];
        Entry::decode(bytes.try_into().expect("invariant: an entry has its size"))
    }
}

fn key(corpus: u128, tokenizer: &Tokenizer) -> Result<u128> {
    let mut hash = Fnv128::default();
    hash.write(&format::VERSION.to_le_bytes());
    hash.write(&corpus.to_le_bytes());
    hash.write(&tokenizer.to_json()?);
    Ok(hash.finish())
}

#[cfg(test)]
pub(super) mod tests;
