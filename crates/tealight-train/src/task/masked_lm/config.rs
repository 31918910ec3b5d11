//! The settings of `[task] kind = "masked_lm"`.

use std::path::{Path, PathBuf};

use tealight_model::Outputs;

use crate::checks::{MAX_SIZE, at_most};
use crate::data::text::corpus::CorpusConfig;
use crate::data::text::masking;
use crate::data::text::sequences::Layout;
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::Result;
use crate::settings::settings;
use crate::task::text::{absolute_paths, validate_sizes};
use crate::task::{Imitated, TaskSettings};

settings! {
    /// `[task] kind = "masked_lm"`
    pub struct Config {
        /// The most tokens of a sequence, special ones included.
        pub seq_len: usize = 128,
        /// How documents become sequences.
        pub sequences: Layout = Layout::Padded,
        /// The most held-out sequences in an evaluation.
        pub n_validation: usize = 1000,
        /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
        /// have more.
        pub vocab_size: Option<usize> = None,
        /// Token types that the model has embeddings for, 2 in BERT. All tokens are of type 0.
        pub n_token_types: usize = 0,
        /// The folder in which tokenised text is cached; the user's cache folder when absent.
        pub cache: Option<PathBuf> = None,
        /// `[task.corpus]`
        pub corpus: CorpusConfig = CorpusConfig::default(),
        /// `[task.tokenizer]`
        pub tokenizer: TokenizerConfig = TokenizerConfig::default(),
        /// `[task.masking]`
        pub masking: masking::Config = masking::Config::default(),
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        validate_sizes(self.seq_len, self.n_validation)?;
        at_most("task.n_token_types", self.n_token_types as u64, MAX_SIZE)?;
        self.masking.validate()
    }

    fn test_on(&mut self, data: &Path) -> Result<()> {
        self.corpus.read_only(data);
        self.corpus.absolute_paths()
    }

    fn absolute_paths(&mut self) -> Result<()> {
        absolute_paths(self.cache.as_mut(), &mut self.corpus, &mut self.tokenizer)
    }

    fn languages(&self) -> Vec<&'static str> {
        self.corpus.languages()
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight fill-mask {} \"… [MASK] …\"", run.display())
    }

    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Logits)
    }

    /// The first token is a special one, which is never masked.
    fn outputs(&self) -> Option<Outputs> {
        Some(Outputs::AfterFirst)
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("fill-mask")
    }
}
