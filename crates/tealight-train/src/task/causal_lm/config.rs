//! `[task] kind = "causal_lm"`: its settings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::data::text::corpus::CorpusConfig;
use crate::data::text::sequences::Layout;
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::Result;
use crate::task::text::{absolute_paths, validate_sizes};

/// `[task] kind = "causal_lm"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Tokens that the model reads, at most; the token after each of them is learned.
    pub seq_len: usize,
    /// How documents make sequences. In a `stream`, those of training begin anywhere.
    pub sequences: Layout,
    /// How many held-out sequences an evaluation takes, at most. The report at the end takes all.
    pub n_validation: usize,
    /// Rows of the token embedding; as many as the tokenizer has tokens when absent. Models from
    /// elsewhere may have more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Where tokenised text is kept, so that it is tokenised once; a folder of the user's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// `[task.corpus]`
    pub corpus: CorpusConfig,
    /// `[task.tokenizer]`
    pub tokenizer: TokenizerConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seq_len: 128,
            sequences: Layout::Stream,
            n_validation: 500,
            vocab_size: None,
            cache: None,
            corpus: CorpusConfig::default(),
            tokenizer: TokenizerConfig::default(),
        }
    }
}

impl Config {
    pub(in crate::task) fn absolute_paths(&mut self) -> Result<()> {
        absolute_paths(self.cache.as_mut(), &mut self.corpus, &mut self.tokenizer)
    }

    /// Checks what does not depend on the text.
    pub(super) fn validate(&self) -> Result<()> {
        validate_sizes(self.seq_len, self.n_validation)
    }
}
