//! The pictures that every source gives: in a fixed order, with names and classes.

use std::fmt;
use std::path::PathBuf;

use super::picture::Picture;
use crate::data::file::DataFile;
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::error::{Error, Result};

/// Pictures in a fixed order.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// A hash of all that decides the pictures, their names, classes and splits. Files are read completely.
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128>;

    /// Calls `each` for every picture in order, until it stops.
    fn read(&self, each: &mut dyn FnMut(Item, Progress) -> Reading) -> Reading;

    /// The files with the hashes that [`Self::fingerprint`] has computed; none of drawn pictures.
    fn files(&self) -> Vec<DataFile>;

    /// The classes in their order, where the files number them; `None` where each is the name of a folder.
    fn numbered_classes(&self) -> Option<Vec<String>> {
        None
    }

    /// Whether the pictures are drawn, which is as fast as reading them from a cache.
    fn is_drawn(&self) -> bool {
        false
    }

    /// An error about the picture of this name.
    fn fault(&self, name: &str, rule: &str) -> Error;
}

/// Whether all pictures were read.
pub(super) type Reading = Result<(), ReadingEnd>;

/// Why no more pictures are read.
#[derive(Debug)]
pub(super) enum ReadingEnd {
    /// The receiver of the pictures wants no more.
    Stopped,
    Failed(Error),
}

impl From<Error> for ReadingEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A picture of a source.
#[derive(Debug)]
pub(super) struct Item {
    /// Unique, such as `train/cat/1.jpg`.
    pub(super) name: String,
    pub(super) class: String,
    /// `None` if the split is drawn.
    pub(super) split: Option<Split>,
    pub(super) content: Content,
}

/// A picture in the form in which the source has it.
#[derive(Debug)]
pub(super) enum Content {
    /// A file that is still to be read, and the hash of the content that it had.
    File(PathBuf, Option<u128>),
    /// The bytes of a PNG or JPEG.
    Encoded(Vec<u8>),
    /// The pixels.
    Pixels(Picture),
    /// It is not a picture, for this reason.
    Broken(String),
}

impl Content {
    /// The bytes that it takes in memory.
    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Self::File(..) | Self::Broken(_) => 0,
            Self::Encoded(bytes) => bytes.len(),
            Self::Pixels(picture) => picture.pixels.len(),
        }
    }
}
