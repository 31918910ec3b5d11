//! `[task.corpus]`: the source of the documents.

pub mod files;
mod generated;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tealight_model::choice;

use super::diary::{self, Diary};
use crate::data::file::DataFile;
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::error::{Error, Result};

choice! {
    /// `[task.corpus]`: the source of the text.
    pub enum CorpusConfig = "diary" {
        /// Generated diaries about weather, with a known best possible accuracy.
        "diary" => Diary(diary::Config),
        /// Files of text or JSON lines, also compressed: one by one, by pattern, or by folder.
        "files" => Files(files::Config),
    }
}

impl CorpusConfig {
    /// Checks the settings and opens the corpus; no document is read yet. Only generated documents depend
    /// on the seed.
    pub fn open(&self, seed: u64) -> Result<Box<dyn Corpus>> {
        match self {
            Self::Diary(config) => Ok(Box::new(Diary::new(config, seed)?)),
            Self::Files(config) => Ok(Box::new(files::Files::open(config)?)),
        }
    }

    /// The languages of generated documents, as ISO 639 abbreviates them; none where they are not known.
    pub fn languages(&self) -> Vec<&'static str> {
        match self {
            Self::Diary(config) => {
                config.language.all().iter().map(|language| language.code()).collect()
            }
            Self::Files(_) => Vec::new(),
        }
    }

    /// The share of the documents that is held out at random: 0 if the corpus assigns the splits itself.
    pub fn validation_share(&self) -> f64 {
        match self {
            Self::Diary(_) => 0.,
            Self::Files(config) => config.validation_share(),
        }
    }

    /// Replaces the documents by those in `data`, a file or folder, in the form that they have.
    pub(crate) fn read_only(&mut self, data: &Path) {
        let before = match self {
            Self::Files(config) => config.clone(),
            Self::Diary(_) => files::Config::default(),
        };
        *self = Self::Files(files::Config {
            paths: vec![data.to_owned()],
            validation_paths: Vec::new(),
            validation_tail: None,
            ..before
        });
    }

    /// Makes the paths absolute, so that a run can be resumed from another directory.
    pub fn absolute_paths(&mut self) -> Result<()> {
        match self {
            Self::Diary(_) => Ok(()),
            Self::Files(config) => config.absolute_paths(),
        }
    }
}

/// Documents in a fixed order.
pub trait Corpus: fmt::Debug + Send + Sync {
    /// The documents in order. The iterator ends after an error.
    fn documents(&self) -> Result<Box<dyn Documents + '_>>;

    /// A hash of the text and of its division into documents. Files are read completely; `progress` is called
    /// meanwhile.
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128>;

    /// The files of the documents with the hashes that [`Self::fingerprint`] has computed; none for generated
    /// documents.
    fn files(&self) -> Vec<DataFile> {
        Vec::new()
    }

    /// What a user should know about the files that have been read, a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the documents are generated: few, and as fast to generate as to read.
    fn is_generated(&self) -> bool {
        false
    }
}

/// An iterator over documents with its progress.
pub trait Documents: Iterator<Item = Result<Document>> + Send {
    /// The progress so far.
    fn progress(&self) -> Progress;
}

/// A document, or a part of a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text. The concatenated parts are exactly the document.
    pub text: String,
    /// The place where the document begins.
    pub origin: Origin,
    /// Whether a new document begins.
    pub part: Part,
    /// The split that the corpus assigns; `None` for a random one.
    pub split: Option<Split>,
}

/// The position of a part in its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first part, for most documents the only one.
    First,
    /// It continues the previous part.
    Further,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file, or a name for generated documents.
    pub path: Arc<Path>,
    /// The line, or the number of a generated document, counted from 1.
    pub line: u64,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, line {}", self.path.display(), self.line)
    }
}

impl Origin {
    /// `reviews.csv:12`, which names no folder.
    pub(crate) fn short(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        format!("{}:{}", name.display(), self.line)
    }

    /// An error at this place.
    pub fn error(&self, rule: impl Into<String>) -> Error {
        let Self { path, line } = self;
        Error::line(path, *line as usize, rule)
    }
}
