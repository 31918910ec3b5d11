//! `[task.tokenizer]`: the settings of a tokenizer.

use std::path::PathBuf;

use tealight_model::choice;

use super::special::SPECIAL_TOKENS;
use crate::checks::{at_most, check, given};
use crate::error::{Error, Result};
use crate::settings::settings;

/// The maximal size of a vocabulary.
pub(super) const MAX_VOCAB: u64 = 1 << 24;
const VOCAB_SIZE: &str = "task.tokenizer.vocab_size";

choice! {
    /// `[task.tokenizer]`: the kind of tokenizer.
    pub enum TokenizerConfig = "wordpiece" {
        /// Words and their pieces, as in BERT (Schuster & Nakajima 2012).
        "wordpiece" => WordPiece(WordPieceConfig),
        /// Frequent strings of bytes, as in GPT-2 (Sennrich et al. 2016).
        "bpe" => Bpe(BpeConfig),
        /// Pieces of a unigram language model, for text with and without spaces, as in T5 (Kudo 2018).
        "unigram" => Unigram(UnigramConfig),
        /// Characters (Unicode scalar values).
        "char" => Char(CharConfig),
        /// The 256 bytes.
        "byte" => Byte,
        /// Read from a tokenizer.json, or from a folder with one or with a vocabulary.
        "file" => File(FileConfig),
    }
}

settings! {
    /// `[task.tokenizer] kind = "wordpiece"`
    pub struct WordPieceConfig {
        /// The maximal number of tokens.
        pub vocab_size: usize = 8000,
        /// The minimal count of a pair of pieces to be merged.
        pub min_frequency: u64 = 2,
        /// Converts the text to lower case.
        pub lowercase: bool = false,
        /// Strips accents: `é` becomes `e`, but also `が` becomes `か`.
        pub strip_accents: bool = false,
    }

    /// `[task.tokenizer] kind = "bpe"`: byte-level.
    pub struct BpeConfig {
        /// The maximal number of tokens, including the 256 bytes and 5 special tokens.
        pub vocab_size: usize = 8000,
        /// The minimal count of a pair of pieces to be merged.
        pub min_frequency: u64 = 2,
        /// Converts the text to lower case.
        pub lowercase: bool = false,
        /// Strips accents: `é` becomes `e`, but also `が` becomes `か`.
        pub strip_accents: bool = false,
    }

    /// `[task.tokenizer] kind = "unigram"`
    pub struct UnigramConfig {
        /// The maximal number of tokens.
        pub vocab_size: usize = 8000,
        /// Converts the text to lower case.
        pub lowercase: bool = false,
        /// Strips accents: `é` becomes `e`, but also `が` becomes `か`.
        pub strip_accents: bool = false,
    }

    /// `[task.tokenizer] kind = "char"`
    pub struct CharConfig {
        /// The maximal number of tokens; the rarest characters are unknown.
        pub vocab_size: usize = 8000,
        /// The minimal count of a character to get a token.
        pub min_frequency: u64 = 1,
        /// Converts the text to lower case.
        pub lowercase: bool = false,
        /// Strips accents: `é` becomes `e`, but also `が` becomes `か`.
        pub strip_accents: bool = false,
    }

    /// `[task.tokenizer] kind = "file"`
    pub struct FileConfig {
        /// A `tokenizer.json`, or a folder: a run, or one saved by `transformers`. A relative path starts in
        /// the current directory; a run stores the absolute one.
        pub path: PathBuf = PathBuf::new(),
    }
}

impl TokenizerConfig {
    /// Makes the path absolute, so that a run can be resumed from another directory.
    pub fn absolute_paths(&mut self) -> Result<()> {
        let Self::File(FileConfig { path }) = self else { return Ok(()) };
        // An empty path stays empty: reading the tokenizer reports it.
        if !path.as_os_str().is_empty() {
            *path = std::path::absolute(&*path).map_err(Error::io("find", path))?;
        }
        Ok(())
    }

    /// Checks the settings, without a text.
    pub fn validate(&self) -> Result<()> {
        let vocab_size = match self {
            Self::Byte => return Ok(()),
            Self::File(FileConfig { path }) => {
                return given("task.tokenizer.path", path, "a tokenizer.json or a folder");
            }
            Self::WordPiece(WordPieceConfig { vocab_size, .. })
            | Self::Bpe(BpeConfig { vocab_size, .. })
            | Self::Unigram(UnigramConfig { vocab_size, .. })
            | Self::Char(CharConfig { vocab_size, .. }) => *vocab_size,
        };
        at_most(VOCAB_SIZE, vocab_size as u64, MAX_VOCAB)?;
        // The special tokens, and all bytes or one character, which may take two tokens.
        let min = SPECIAL_TOKENS.len() + if matches!(self, Self::Bpe(_)) { 256 } else { 2 };
        check(VOCAB_SIZE, vocab_size, |size| size >= min, &format!("must be at least {min}"))
    }
}
