//! The cached tokens of a corpus, in a memory-mapped file.
//!
//! ```text
//! <cache>/<key>.tokens      key = hash(tokenizer, content of the inputs, settings, format)
//! ```
//!
//! The key depends on the content, not on paths: a changed file is tokenised again, a moved one is not
//! (`data/cache`). Generated documents are few and stay in memory.
//!
//! Cost: opening a store reads the inputs for their hash and the file of tokens for its checksum. Without
//! such a file, the inputs are read again and tokenised in batches of a few MiB on all threads; memory does
//! not depend on their size. A file of tokens takes 2 bytes per token (4 for vocabularies above 65,536) and
//! 16 per document.

mod build;
mod format;
mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};

use self::build::Build;
use self::format::{Entry, Header};
use super::corpus::Corpus;
use super::tokenizer::Tokenizer;
use crate::data::cache::{self, Bytes, StoreHeader as _};
use crate::data::fingerprint::Fnv128;
use crate::data::progress::{Progress, Stage};
use crate::data::split::Split;
use crate::error::Result;

/// The tokens of all documents.
#[derive(Debug)]
pub struct TokenStore {
    header: Header,
    bytes: Bytes,
}

impl TokenStore {
    /// The tokens of a corpus, read from the cache or computed. `cache` returns the folder; it is not
    /// called for a generated corpus.
    pub fn from_corpus(
        corpus: &dyn Corpus,
        tokenizer: &Tokenizer,
        cache: impl FnOnce() -> Result<PathBuf>,
        progress: &mut dyn FnMut(Stage, Progress),
    ) -> Result<Self> {
        let fingerprint = corpus.fingerprint(&mut |done| progress(Stage::Reading, done))?;
        let key = key(fingerprint, tokenizer)?;
        let progress = &mut |done| progress(Stage::Tokenising, done);
        let build = Build { corpus, tokenizer, key, progress };
        if corpus.is_generated() {
            return Self::in_memory(build);
        }
        let open = |path: &Path| Self::open(path, key);
        cache::open_or_build(&cache()?, (key, "tokens"), open, |path| build.file(path))
    }

    fn in_memory(build: Build<'_>) -> Result<Self> {
        let bytes = build.memory()?;
        let header = Header::decode(&bytes).expect("invariant: what we write can be read");
        Ok(Self { header, bytes: Bytes::Owned(bytes) })
    }

    /// `None` if the file is missing or damaged.
    fn open(path: &Path, key: u128) -> Result<Option<Self>> {
        let store = cache::open_verified(path, key)?;
        Ok(store.map(|(header, bytes)| Self { header, bytes }))
    }

    /// The number of documents, in the order of the corpus; some may have no token.
    pub fn n_documents(&self) -> u64 {
        self.header.n_documents
    }

    /// The number of tokens of all documents.
    pub fn n_tokens(&self) -> u64 {
        self.header.n_tokens
    }

    /// The number of tokens of a document.
    pub fn n_tokens_of(&self, document: u64) -> u64 {
        let Range { start, end } = self.tokens_of(document);
        end - start
    }

    /// The split that the corpus assigns to a document.
    pub fn split_of(&self, document: u64) -> Option<Split> {
        self.entry(document).split
    }

    /// The number of bytes of a document's text.
    pub fn n_bytes_of(&self, document: u64) -> u64 {
        self.entry(document).n_bytes
    }

    /// Appends the tokens `range` of a document.
    ///
    /// # Panics
    /// If `range` exceeds the document.
    pub fn read(&self, document: u64, range: Range<u64>, into: &mut Vec<u32>) {
        let all = self.tokens_of(document);
        assert!(range.end <= all.end - all.start, "invariant: a range within the document");
        let bytes = &self.bytes[self.header.tokens(all.start + range.start..all.start + range.end)];
        if self.header.width == 2 {
            into.extend(bytes.as_chunks().0.iter().map(|&two| u32::from(u16::from_le_bytes(two))));
        } else {
            into.extend(bytes.as_chunks().0.iter().map(|&four| u32::from_le_bytes(four)));
        }
    }

    /// The range of a document's tokens among all.
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
