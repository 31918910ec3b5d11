//! `[task] kind = "masked_lm"`: its settings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::data::text::corpus::CorpusConfig;
use crate::data::text::masking;
use crate::data::text::sequences::Layout;
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::Result;
use crate::task::text::{absolute_paths, validate_sizes};

/// `[task] kind = "masked_lm"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Tokens of a sequence, at most, special ones included.
    pub seq_len: usize,
    /// How documents make sequences.
    pub sequences: Layout,
    /// How many held-out sequences an evaluation takes, at most.
    pub n_validation: usize,
    /// Rows of the token embedding; as many as the tokenizer has tokens when absent. Models from
    /// elsewhere may have more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Token types that the model has embeddings for; all tokens here are of type 0. BERT has 2.
    pub n_token_types: usize,
    /// Where tokenised text is kept, so that it is tokenised once; a folder of the user's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// `[task.corpus]`
    pub corpus: CorpusConfig,
    /// `[task.tokenizer]`
    pub tokenizer: TokenizerConfig,
    /// `[task.masking]`
    pub masking: masking::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seq_len: 128,
            sequences: Layout::Padded,
            n_validation: 1000,
            vocab_size: None,
            n_token_types: 0,
            cache: None,
            corpus: CorpusConfig::default(),
            tokenizer: TokenizerConfig::default(),
            masking: masking::Config::default(),
        }
    }
}

impl Config {
    pub(in crate::task) fn absolute_paths(&mut self) -> Result<()> {
        absolute_paths(self.cache.as_mut(), &mut self.corpus, &mut self.tokenizer)
    }

    /// Checks what does not depend on the text.
    pub(super) fn validate(&self) -> Result<()> {
        validate_sizes(self.seq_len, self.n_validation)?;
        self.masking.validate()
    }
}
