//! `[task.corpus]`: where documents come from.

mod drawn;
pub mod files;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tealight_model::choice;

use super::diary::{self, Diary};
use crate::data::DataFile;
use crate::data::Split;
use crate::error::{Error, Result};

choice! {
    /// `[task.corpus]`: where the text comes from.
    pub enum CorpusConfig {
        /// Diaries that are drawn, about weather whose best possible guess is known.
        "diary" => Diary(diary::Config),
        /// Files of text or JSON lines, also compressed: one by one, by pattern, or by folder.
        "files" => Files(files::Config),
    }
}

impl Default for CorpusConfig {
    fn default() -> Self {
        Self::Diary(diary::Config::default())
    }
}

impl CorpusConfig {
    /// The corpus, or what is wrong with its settings; no document is read yet. Only what is drawn
    /// depends on the seed.
    pub fn open(&self, seed: u64) -> Result<Box<dyn Corpus>> {
        match self {
            Self::Diary(config) => Ok(Box::new(Diary::new(config, seed)?)),
            Self::Files(config) => Ok(Box::new(files::Files::open(config)?)),
        }
    }

    /// The share of the documents that is held out by chance: nothing where the corpus says itself
    /// which documents those are.
    pub fn validation_share(&self) -> f64 {
        match self {
            Self::Diary(_) => 0.,
            Self::Files(config) => config.validation_share(),
        }
    }

    /// Makes paths absolute, so that they mean the same wherever a run is resumed.
    pub fn absolute_paths(&mut self) -> Result<()> {
        match self {
            Self::Diary(_) => Ok(()),
            Self::Files(config) => config.absolute_paths(),
        }
    }
}

/// Documents in an order that is always the same.
pub trait Corpus: fmt::Debug + Send + Sync {
    /// The documents from the first to the last; after an error there is no more.
    fn documents(&self) -> Result<Box<dyn Documents + '_>>;

    /// A number that another text, or a text that is cut into documents in another way, does not
    /// have. Files are read for it, and `progress` is told how far.
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128>;

    /// The files that the documents come from, as [`Self::fingerprint`] has read them; nothing if they
    /// are drawn.
    fn files(&self) -> Vec<DataFile> {
        Vec::new()
    }

    /// Whether the documents come from no file: they are few, and made as fast as they are read.
    fn is_drawn(&self) -> bool {
        false
    }
}

/// Documents one after another, and how far this has come.
pub trait Documents: Iterator<Item = Result<Document>> + Send {
    /// What has been read so far.
    fn progress(&self) -> Progress;
}

/// How much has been done of a whole: bytes of files, or documents that are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// This much is done.
    pub done: u64,
    /// Of so much.
    pub total: u64,
}

/// A document, or a part of one that is too long to be handled at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text; of all parts, one after another, exactly the document's.
    pub text: String,
    /// Where the document begins.
    pub origin: Origin,
    /// Which part of it this is.
    pub part: Part,
    /// The side that the corpus puts it on; `None` leaves that to chance.
    pub split: Option<Split>,
}

/// Which part of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first, in most cases the only one: a new document begins.
    First,
    /// It continues the part before.
    Further,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file, or what documents that are drawn are called.
    pub path: Arc<Path>,
    /// The line, counted from 1; the number of a document that is drawn.
    pub line: u64,
}

impl Origin {
    /// An error at this place.
    pub fn wrong(&self, rule: impl Into<String>) -> Error {
        let Self { path, line } = self;
        Error::Line { path: path.to_path_buf(), line: *line as usize, rule: rule.into() }
    }
}
