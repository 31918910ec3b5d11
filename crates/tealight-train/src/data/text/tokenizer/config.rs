//! `[task.tokenizer]`

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tealight_model::choice;

use super::train::SPECIAL_TOKENS;
use crate::error::{Error, Result};
use crate::limits::at_most;

/// The most tokens of a vocabulary, here and in files.
pub(super) const MAX_VOCAB: u64 = 1 << 24;
const VOCAB_SIZE: &str = "task.tokenizer.vocab_size";

choice! {
    /// `[task.tokenizer]`: what a token is.
    pub enum TokenizerConfig {
        /// Words and their pieces, as in BERT (Schuster & Nakajima 2012).
        "wordpiece" => WordPiece(WordPieceConfig),
        /// Frequent strings of bytes, as in GPT-2 (Sennrich et al. 2016).
        "bpe" => Bpe(BpeConfig),
        /// The likeliest pieces, for text with and without spaces, as in T5 (Kudo 2018).
        "unigram" => Unigram(UnigramConfig),
        /// Characters (Unicode scalar values).
        "char" => Char(CharConfig),
        /// The 256 bytes.
        "byte" => Byte,
        /// From a tokenizer.json, or a folder with one or with a vocabulary.
        "file" => File(FileConfig),
    }
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        Self::WordPiece(WordPieceConfig::default())
    }
}

/// `[task.tokenizer] kind = "wordpiece"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WordPieceConfig {
    /// The most tokens; fewer if the text has no more.
    pub vocab_size: usize,
    /// How often two pieces must meet to become one.
    pub min_frequency: u64,
    /// Capitals become small letters.
    pub lowercase: bool,
    /// `é` becomes `e`, but also `が` becomes `か`.
    pub strip_accents: bool,
}

impl Default for WordPieceConfig {
    fn default() -> Self {
        Self { vocab_size: 8000, min_frequency: 2, lowercase: false, strip_accents: false }
    }
}

/// `[task.tokenizer] kind = "bpe"`: byte-level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BpeConfig {
    /// The most tokens, the 256 bytes and 5 special ones among them; fewer if the text has no more.
    pub vocab_size: usize,
    /// How often two pieces must meet to become one.
    pub min_frequency: u64,
    /// Capitals become small letters.
    pub lowercase: bool,
    /// `é` becomes `e`, but also `が` becomes `か`.
    pub strip_accents: bool,
}

impl Default for BpeConfig {
    fn default() -> Self {
        Self { vocab_size: 8000, min_frequency: 2, lowercase: false, strip_accents: false }
    }
}

/// `[task.tokenizer] kind = "unigram"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnigramConfig {
    /// The most tokens; fewer if the text has no more.
    pub vocab_size: usize,
    /// Capitals become small letters.
    pub lowercase: bool,
    /// `é` becomes `e`, but also `が` becomes `か`.
    pub strip_accents: bool,
}

impl Default for UnigramConfig {
    fn default() -> Self {
        Self { vocab_size: 8000, lowercase: false, strip_accents: false }
    }
}

/// `[task.tokenizer] kind = "char"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CharConfig {
    /// The most tokens: rarer characters are unknown.
    pub vocab_size: usize,
    /// How often a character must occur to be known.
    pub min_frequency: u64,
    /// Capitals become small letters.
    pub lowercase: bool,
    /// `é` becomes `e`, but also `が` becomes `か`.
    pub strip_accents: bool,
}

impl Default for CharConfig {
    fn default() -> Self {
        Self { vocab_size: 8000, min_frequency: 1, lowercase: false, strip_accents: false }
    }
}

/// `[task.tokenizer] kind = "file"`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    /// A `tokenizer.json`, or a folder: a run, or one that `transformers` saved. A relative path starts where
    /// the command is run; a run keeps the absolute one.
    pub path: PathBuf,
}

impl TokenizerConfig {
    /// Makes the path of a file absolute, so that it means the same wherever the run is resumed.
    pub fn absolute_paths(&mut self) -> Result<()> {
        let Self::File(FileConfig { path }) = self else { return Ok(()) };
        // What is missing stays missing: an error says so when the tokenizer is read.
        if !path.as_os_str().is_empty() {
            *path = std::path::absolute(&*path).map_err(Error::io("find", path))?;
        }
        Ok(())
    }

    /// Checks what does not depend on the text.
    pub fn validate(&self) -> Result<()> {
        let fewest = self.fewest_tokens() as u64;
        let Some(vocab_size) = self.vocab_size() else { return self.validate_path() };
        at_most(VOCAB_SIZE, vocab_size as u64, MAX_VOCAB)?;
        if (vocab_size as u64) < fewest {
            let message = format!("`{VOCAB_SIZE}` = {vocab_size} must be at least {fewest}");
            return Err(Error::config([VOCAB_SIZE], message));
        }
        Ok(())
    }

    fn validate_path(&self) -> Result<()> {
        match self {
            Self::File(file) if file.path.as_os_str().is_empty() => {
                let key = "task.tokenizer.path";
                Err(Error::config(
                    [key],
                    format!("`{key}` is missing: a tokenizer.json or a folder"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// The special tokens, and room for what the model must know beside them: a character that may be two
    /// tokens, or all bytes.
    fn fewest_tokens(&self) -> usize {
        SPECIAL_TOKENS.len() + if matches!(self, Self::Bpe(_)) { 256 } else { 2 }
    }

    fn vocab_size(&self) -> Option<usize> {
        match self {
            Self::WordPiece(config) => Some(config.vocab_size),
            Self::Bpe(config) => Some(config.vocab_size),
            Self::Unigram(config) => Some(config.vocab_size),
            Self::Char(config) => Some(config.vocab_size),
            Self::Byte | Self::File(_) => None,
        }
    }
}
