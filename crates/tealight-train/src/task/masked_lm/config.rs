//! The settings of `[task] kind = "masked_lm"`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::text::corpus::CorpusConfig;
use crate::data::text::masking;
use crate::data::text::sequences::{Layout, Predicts, Spec};
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::Result;
use crate::task::text::{TextSettings, absolute_paths, validate_sizes};
use crate::task::{Attends, TaskSettings};

/// `[task] kind = "masked_lm"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The most tokens of a sequence, special ones included.
    pub seq_len: usize,
    /// How documents become sequences.
    pub sequences: Layout,
    /// The most held-out sequences in an evaluation.
    pub n_validation: usize,
    /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
    /// have more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Token types that the model has embeddings for, 2 in BERT. All tokens are of type 0.
    pub n_token_types: usize,
    /// The cache of tokenised text; a folder of the user's when absent.
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
    pub(super) fn texts(&self) -> TextSettings<'_> {
        let Self { seq_len, sequences: layout, n_validation, vocab_size, .. } = *self;
        TextSettings {
            corpus: &self.corpus,
            tokenizer: &self.tokenizer,
            vocab_size,
            cache: self.cache.as_deref(),
            spec: Spec { layout, seq_len, predicts: Predicts::Masked },
            n_validation,
        }
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        validate_sizes(self.seq_len, self.n_validation)?;
        self.masking.validate()
    }

    fn absolute_paths(&mut self) -> Result<()> {
        absolute_paths(self.cache.as_mut(), &mut self.corpus, &mut self.tokenizer)
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight fill-mask {} \"… [MASK] …\"", run.display())
    }

    fn attends(&self) -> Attends {
        Attends::Pretrained
    }
}
