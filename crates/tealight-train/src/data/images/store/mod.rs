//! The decoded pictures of a data set, in a memory-mapped file.
//!
//! ```text
//! <cache>/<key>.pictures      key = hash(content of the files, size and colour, format)
//! ```
//!
//! The key depends on the content and on the names of pictures within their folder, not on where the folder is
//! ([`cache`]). Drawn pictures stay in memory.
//!
//! Cost: opening a store reads the files for their hash, and the store for its checksum. Without such a store, the
//! files are read again and decoded in batches on all threads; memory does not depend on their number. A store takes
//! height · width · channels bytes per picture and about 40 more.

mod build;
mod format;
mod write;

use std::path::{Path, PathBuf};

use self::build::Build;
use self::format::{Entry, Header, Notes};
use super::item::Source;
use super::picture::PictureSize;
use super::prepare::Preparation;
use crate::data::cache::{self, Bytes, StoreHeader as _};
use crate::data::fingerprint::Fnv128;
use crate::data::progress::{Progress, Stage};
use crate::data::split::Split;
use crate::error::Result;

/// The pictures of all splits.
#[derive(Debug)]
pub(super) struct PictureStore {
    header: Header,
    notes: Notes,
    bytes: Bytes,
}

/// How the files of a source become pictures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) preparation: Preparation,
    /// Whether files that are no pictures are left out.
    pub(super) skips_broken: bool,
}

impl PictureStore {
    /// The pictures of a source, read from the cache or decoded. `cache` returns the folder; it is not called for
    /// drawn pictures.
    pub(super) fn from_source(
        source: &dyn Source,
        options: Options,
        cache: impl FnOnce() -> Result<PathBuf>,
        progress: &mut dyn FnMut(Stage, Progress),
    ) -> Result<Self> {
        let fingerprint = source.fingerprint(&mut |done| progress(Stage::Reading, done))?;
        let key = key(fingerprint, options);
        let progress = &mut |done| progress(Stage::Decoding, done);
        let build = Build { source, options, key, progress };
        if source.is_drawn() {
            return Self::in_memory(build);
        }
        let open = |path: &Path| Self::open(path, key);
        cache::open_or_build(&cache()?, (key, "pictures"), open, |path| build.file(path))
    }

    fn in_memory(build: Build<'_>) -> Result<Self> {
        let bytes = build.memory()?;
        let header = Header::decode(&bytes).expect("invariant: what we write can be read");
        let store = Self::new(header, Bytes::Owned(bytes));
        Ok(store.expect("invariant: what we write can be read"))
    }

    /// `None` if the file is missing or damaged.
    fn open(path: &Path, key: u128) -> Result<Option<Self>> {
        let store = cache::open_verified(path, key)?;
        Ok(store.and_then(|(header, bytes)| Self::new(header, bytes)))
    }

    fn new(header: Header, bytes: Bytes) -> Option<Self> {
        let start = bytes.len().checked_sub(header.n_note_bytes as usize)?;
        let notes = serde_json::from_slice(&bytes[start..]).ok()?;
        Some(Self { header, notes, bytes })
    }

    /// The number of pictures, in the order of the source.
    pub(super) fn n(&self) -> usize {
        self.header.n_pictures as usize
    }

    /// The size that all pictures have.
    pub(super) fn size(&self) -> PictureSize {
        self.header.size
    }

    /// The pixels of a picture, `(height, width, channels)`.
    pub(super) fn pixels(&self, picture: usize) -> &[u8] {
        &self.bytes[self.header.pixels(picture)]
    }

    /// The class of a picture, an index into [`Self::classes`].
    pub(super) fn class_of(&self, picture: usize) -> usize {
        self.entry(picture).class as usize
    }

    /// The split that the source gives a picture.
    pub(super) fn split_of(&self, picture: usize) -> Option<Split> {
        self.entry(picture).split
    }

    /// The name of a picture, such as `train/cat/1.jpg`.
    pub(super) fn name_of(&self, picture: usize) -> &str {
        let start = picture.checked_sub(1).map_or(0, |before| self.entry(before).name_end);
        let names = self.header.names();
        let name = names + start as usize..names + self.entry(picture).name_end as usize;
        std::str::from_utf8(&self.bytes[name]).unwrap_or_default()
    }

    /// The names of the classes, in the order in which they first occur.
    pub(super) fn classes(&self) -> &[String] {
        &self.notes.classes
    }

    /// The number of files that were left out, and the fault of the first of them.
    pub(super) fn left_out(&self) -> (u64, Option<&str>) {
        (self.notes.n_left_out, self.notes.first_left_out.as_deref())
    }

    fn entry(&self, picture: usize) -> Entry {
        let bytes = &self.bytes[self.header.entry(picture)];
        Entry::decode(bytes.try_into().expect("invariant: an entry has its size"))
    }
}

fn key(source: u128, options: Options) -> u128 {
    let mut hash = Fnv128::default();
    hash.write(&format::VERSION.to_le_bytes());
    hash.write(&source.to_le_bytes());
    hash.write(format!("{options:?}").as_bytes());
    hash.finish()
}

#[cfg(test)]
mod tests;
