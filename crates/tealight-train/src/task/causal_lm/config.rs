//! The settings of `[task] kind = "causal_lm"`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::text::corpus::CorpusConfig;
use crate::data::text::sequences::{Layout, Predicts, Spec};
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::Result;
use crate::task::text::{TextSettings, absolute_paths, validate_sizes};
use crate::task::{Attends, TaskSettings};

/// `[task] kind = "causal_lm"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The most tokens that the model reads; the label of each is the token after it.
    pub seq_len: usize,
    /// How documents become sequences. In a `stream`, training sequences begin at any token.
    pub sequences: Layout,
    /// The most held-out sequences in an evaluation. The report at the end takes all.
    pub n_validation: usize,
    /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
    /// have more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// The cache of tokenised text; a folder of the user's when absent.
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
    pub(super) fn texts(&self) -> TextSettings<'_> {
        let Self { seq_len, sequences: layout, n_validation, vocab_size, .. } = *self;
        TextSettings {
            corpus: &self.corpus,
            tokenizer: &self.tokenizer,
            vocab_size,
            cache: self.cache.as_deref(),
            spec: Spec { layout, seq_len, predicts: Predicts::Next },
            n_validation,
        }
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        validate_sizes(self.seq_len, self.n_validation)
    }

    fn absolute_paths(&mut self) -> Result<()> {
        absolute_paths(self.cache.as_mut(), &mut self.corpus, &mut self.tokenizer)
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight generate {} \"…\"", run.display())
    }

    fn attends(&self) -> Attends {
        Attends::Pretrained
    }
}
