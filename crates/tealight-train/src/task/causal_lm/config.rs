//! The settings of `[task] kind = "causal_lm"`.

use std::path::{Path, PathBuf};

use crate::data::text::corpus::CorpusConfig;
use crate::data::text::sequences::Layout;
use crate::data::text::tokenizer::{Tokenizer, TokenizerConfig};
use crate::error::Result;
use crate::settings::settings;
use crate::task::text::{absolute_paths, validate_sizes};
use crate::task::{Imitated, TaskSettings};

settings! {
    /// `[task] kind = "causal_lm"`
    pub struct Config {
        /// The most tokens that the model reads; the label of each is the token after it.
        pub seq_len: usize = 128,
        /// How documents become sequences. In a `stream`, training sequences begin at any token.
        pub sequences: Layout = Layout::Stream,
        /// The most held-out sequences in an evaluation. The report at the end takes all.
        pub n_validation: usize = 500,
        /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
        /// have more.
        pub vocab_size: Option<usize> = None,
        /// The folder in which tokenised text is cached; the user's cache folder when absent.
        pub cache: Option<PathBuf> = None,
        /// `[task.corpus]`
        pub corpus: CorpusConfig = CorpusConfig::default(),
        /// `[task.tokenizer]`
        pub tokenizer: TokenizerConfig = TokenizerConfig::default(),
    }
}

impl Config {
    /// The tokenizer for texts that the model is to continue. Training puts the begin token before each piece of a
    /// document, but a `stream` has none.
    pub(crate) fn for_prompts(&self, tokenizer: &Tokenizer) -> Result<Tokenizer> {
        tokenizer.for_prompts(match self.sequences {
            Layout::Padded | Layout::Packed => tokenizer.special().begin,
            Layout::Stream => None,
        })
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        validate_sizes(self.seq_len, self.n_validation)
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
        format!("tealight generate {} \"…\"", run.display())
    }

    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Logits)
    }

    fn continues_text(&self) -> bool {
        true
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("text-generation")
    }
}
