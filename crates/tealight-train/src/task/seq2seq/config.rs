//! `[task]` for pairs of sequences.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tealight_model::{choice, names};

use super::pairs::{PairSource, dates, symbols};
use crate::error::{Error, Result};
use crate::limits::{at_most, positive};

/// The longest sequence of a side: the time that attention takes grows with its square.
const MAX_LEN: u64 = 4096;
/// The most pairs that are held out.
const MAX_VALIDATION: u64 = 1 << 20;

/// `[task] kind = "seq2seq"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Probability mass that the loss spreads over all tokens (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// Pairs that are held out for validation; of a file, sources, with all their targets.
    pub n_validation: usize,
    /// Of these, how many are written from their sources at each evaluation, for `exact_match`; 0 saves
    /// the time. At the end all of them are.
    pub n_decoded: usize,
    /// `[task.source]`: where the pairs come from.
    pub source: SourceConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            label_smoothing: 0.,
            n_validation: 1000,
            n_decoded: 200,
            source: SourceConfig::default(),
        }
    }
}

choice! {
    /// `[task.source]`: where the pairs come from.
    pub enum SourceConfig {
        /// Random symbols, and the same in reverse.
        "reverse" => Reverse(symbols::Reverse),
        /// Random symbols, and the same in order.
        "sort" => Sort(symbols::Sort),
        /// Dates as people write them, and as ISO 8601 does.
        "dates" => Dates,
        /// Pairs from a file: a source, a tab and a target on each line.
        "file" => File(FileConfig),
    }
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self::Reverse(symbols::Reverse::default())
    }
}

/// `[task.source] kind = "file"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    /// A pair on each line, in UTF-8; blank lines are skipped. A relative path starts where the command
    /// is run; a run keeps the absolute one.
    pub path: PathBuf,
    /// What a token is.
    pub level: Level,
    /// The most tokens of a source or of a target. The model is built for so many, and a longer line
    /// is refused.
    pub max_len: usize,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self { path: PathBuf::new(), level: Level::Characters, max_len: 100 }
    }
}

names! {
    /// What a token is.
    pub enum Level {
        /// A character (a Unicode scalar value).
        "characters" => Characters,
        /// What stands between spaces.
        "words" => Words,
    }
}

impl Config {
    /// Makes the path of a file absolute, so that it means the same wherever the run is resumed.
    pub(crate) fn absolute_paths(&mut self) -> Result<()> {
        let SourceConfig::File(FileConfig { path, .. }) = &mut self.source else { return Ok(()) };
        // What is missing stays missing: an error says so when the data are read.
        if !path.as_os_str().is_empty() {
            *path = std::path::absolute(&*path).map_err(Error::io("find", path))?;
        }
        Ok(())
    }

    /// Checks what does not depend on the data.
    pub(super) fn validate(&self) -> Result<()> {
        let Self { label_smoothing, n_validation, .. } = *self;
        positive("task.n_validation", n_validation)?;
        at_most("task.n_validation", n_validation as u64, MAX_VALIDATION)?;
        if !(0. ..1.).contains(&label_smoothing) {
            let key = "task.label_smoothing";
            let message = format!("`{key}` = {label_smoothing} must be at least 0 and less than 1");
            return Err(Error::config([key], message));
        }
        match &self.source {
            SourceConfig::Reverse(reverse) => reverse.validate(),
            SourceConfig::Sort(sort) => sort.validate(),
            SourceConfig::Dates => Ok(()),
            SourceConfig::File(file) => length("task.source.max_len", file.max_len),
        }
    }
}

impl SourceConfig {
    /// What draws the pairs; `None` if they come from a file.
    pub(super) fn build(&self) -> Option<Box<dyn PairSource>> {
        match self {
            Self::Reverse(reverse) => Some(Box::new(reverse.build())),
            Self::Sort(sort) => Some(Box::new(sort.build())),
            Self::Dates => Some(Box::new(dates::Dates)),
            Self::File(_) => None,
        }
    }

    /// The most tokens of a source and of a target, without the marks at their ends.
    pub(super) fn max_lens(&self) -> (usize, usize) {
        match self {
            Self::Reverse(symbols::Reverse { length, .. })
            | Self::Sort(symbols::Sort { length, .. }) => (*length, *length),
            Self::Dates => dates::MAX_LENS,
            Self::File(FileConfig { max_len, .. }) => (*max_len, *max_len),
        }
    }
}

/// A length that a model can be built for.
pub(super) fn length(key: &str, value: usize) -> Result<()> {
    positive(key, value)?;
    at_most(key, value as u64, MAX_LEN)
}
