//! The settings of `[task] kind = "tag"`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tealight_model::{ModelSpec, Outputs, SpecRecord, names};

use super::remarks::remarks;
use crate::checks::{at_most, check};
use crate::data::tags::scheme::Scheme;
use crate::data::tags::{Wanted, read};
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::{Error, Result};
use crate::inference::labels::Objective;
use crate::settings::settings;
use crate::task::classify::ClassWeights;
use crate::task::parts::{Files, PATH};
use crate::task::settings::{absolute_path, check_label_smoothing};
use crate::task::{Imitated, TaskSettings};

/// The longest sequence: the time of attention grows with its square.
const MAX_SEQ_LEN: u64 = 1 << 16;

settings! {
    /// `[task] kind = "tag"`
    pub struct Config {
        /// The tags in the order of the model's outputs; those of the training sentences in ascending order when absent.
        pub labels: Option<Vec<String>> = None,
        /// How the tags that are learnt mark where entities begin and end; `iob2` when absent, or `none` if the tags of
        /// the file have no prefixes. Tags of another scheme are converted.
        pub scheme: Option<Scheme> = None,
        /// Which tokens of a word have its tag in training.
        pub sub_words: SubWords = SubWords::First,
        /// The most tokens of a sentence, special ones included; longer ones are read in pieces.
        pub seq_len: usize = 128,
        /// The number of tokens that a piece shares with the one before.
        pub stride: usize = 0,
        /// Token types that the model has embeddings for, 2 in BERT.
        pub n_token_types: usize = 0,
        /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
        /// have more.
        pub vocab_size: Option<usize> = None,
        /// Probability mass that the loss spreads over all tags (Szegedy et al. 2016).
        pub label_smoothing: f64 = 0.,
        /// How much the words of each tag count in the loss.
        pub class_weights: ClassWeights = ClassWeights::Equal,
        /// `[task.data]`: the sentences.
        pub data: DataConfig = DataConfig::default(),
        /// `[task.tokenizer]`; it is trained on the training sentences unless it comes from a file. Byte-level tokenizers
        /// get a blank before each word.
        pub tokenizer: TokenizerConfig = TokenizerConfig::default(),
    }

    /// `[task.data]`
    pub struct DataConfig {
        /// A file of words and tags in columns (`.conll`, `.bio`, `.txt`, `.tsv`), with an empty line behind each sentence;
        /// or a `.jsonl` or `.json` file of objects with words and tags, or with a text and its entities. Each also as
        /// `.gz` or `.zst`. A relative path is relative to the working directory; a run keeps the absolute one.
        pub path: PathBuf = PathBuf::new(),
        /// Sentences that Tealight draws, in place of a file.
        pub generated: Option<Generated> = None,
        /// How many of them to train on; a fifth as many are held out.
        pub n_generated: usize = 4000,
        /// The scheme of the file's tags; found by their prefixes when absent.
        pub scheme: Option<Scheme> = None,
        /// The columns of words and tags, counted from 0, or from -1 back to the first; the first and the last when absent, in
        /// CoNLL-U the word and its part of speech.
        pub columns: Option<Vec<i64>> = None,
        /// The field of the words of an object.
        pub words: String = "tokens".to_owned(),
        /// The field of their tags: names, or numbers that `task.labels` names.
        pub tags: String = "ner_tags".to_owned(),
        /// The field of the text of an object without words.
        pub text: String = "text".to_owned(),
        /// The field of its entities: objects with `start`, `end` and `label`, or lists of these three. Places count
        /// characters; `spans` is read, too.
        pub entities: String = "entities".to_owned(),
        /// The share of the sentences, or of the documents between lines with `-DOCSTART-`, that is held out for validation.
        pub validation: f64 = 0.1,
        /// The share of the sentences of `path`, or of its documents, that is held out for a test: the report of the run has
        /// the scores on them, and `validation` is a share of the rest.
        pub test: f64 = 0.,
        /// A file of sentences for validation, instead of a share.
        pub validation_path: Option<PathBuf> = None,
    }
}

names! {
    /// Which tokens of a word have its tag in training.
    pub enum SubWords {
        /// The first one; the others have no loss.
        "first" => First,
        /// All: an entity that begins with the word goes on with its further tokens.
        "all" => All,
    }
}

names! {
    /// Sentences that Tealight draws.
    pub enum Generated {
        /// Sentences about persons, places and firms, whose best possible F1 is known.
        "visits" => Visits,
    }
}

impl Config {
    /// What is read of a file.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        let DataConfig { columns, words, tags, text, entities, .. } = &self.data;
        let columns = columns.as_deref().and_then(|columns| columns.try_into().ok());
        let labels = self.labels.as_deref();
        Wanted { columns, words, tags, text, entities, labels, needs_tags: true }
    }

    /// The files and shares.
    pub(super) fn files(&self) -> Files<'_> {
        let DataConfig { path, validation_path, validation, test, .. } = &self.data;
        Files::new(path, validation_path.as_ref(), *validation, *test)
    }

    fn check_labels(&self) -> Result<()> {
        let Some(labels) = &self.labels else { return Ok(()) };
        let different: BTreeSet<_> = labels.iter().collect();
        let rule = match labels.len() {
            n if different.len() < n => "has a tag twice",
            _ if labels.iter().any(|label| label.trim().is_empty()) => "has an empty tag",
            0 | 1 => "needs two tags at least",
            _ => return Ok(()),
        };
        let message = format!("`task.labels`, a list of {}, {rule}", labels.len());
        Err(Error::config(["task.labels"], message))
    }

    fn check_source(&self) -> Result<()> {
        let DataConfig { generated, n_generated, columns, .. } = &self.data;
        let drawn = (generated.is_some(), *n_generated);
        let what = "a file of words and tags, such as a .conll";
        self.files().check_generated(drawn, "sentences", what)?;
        match columns.as_deref() {
            None => Ok(()),
            Some([word, tag]) if word != tag => Ok(()),
            Some(other) => {
                let message = format!(
                    "`task.data.columns` = {other:?} must be two different numbers: the columns of words and of tags"
                );
                Err(Error::config(["task.data.columns"], message))
            }
        }
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        let Self { seq_len, stride, n_token_types, label_smoothing, .. } = *self;
        at_most("task.seq_len", seq_len as u64, MAX_SEQ_LEN)?;
        at_most("task.n_token_types", n_token_types as u64, MAX_SEQ_LEN)?;
        check(
            "task.stride",
            stride,
            |stride| stride < seq_len,
            "must be less than `task.seq_len`",
        )?;
        check_label_smoothing(label_smoothing)?;
        self.check_labels()?;
        self.class_weights.validate(Objective::Classes)?;
        self.check_source()?;
        self.tokenizer.validate()
    }

    fn absolute_paths(&mut self) -> Result<()> {
        let DataConfig { path, validation_path, .. } = &mut self.data;
        absolute_path(path)?;
        validation_path.as_mut().map_or(Ok(()), absolute_path)?;
        self.tokenizer.absolute_paths()
    }

    fn test_share(&self) -> Option<(&Path, f64)> {
        self.files().test_share()
    }

    fn test_on(&mut self, data: &Path) -> Result<()> {
        let DataConfig { path, generated, validation_path, test, scheme, .. } = &mut self.data;
        (*generated, *validation_path, *test, *scheme) = (None, None, 0., None);
        data.clone_into(path);
        absolute_path(path)
    }

    fn languages(&self) -> Vec<&'static str> {
        self.data.generated.map(|Generated::Visits| "en").into_iter().collect()
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight tag {} \"…\"", run.display())
    }

    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Logits)
    }

    /// The first token is a special one, which has no tag.
    fn outputs(&self) -> Option<Outputs> {
        Some(Outputs::AfterFirst)
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("token-classification")
    }

    fn model_spec(&self, mut record: SpecRecord, pad_id: Option<u32>) -> Option<ModelSpec> {
        record.sizes.insert("n_token_types".to_owned(), self.n_token_types as u64);
        record.spec(pad_id)
    }

    fn unused_model_settings(&self) -> &'static [&'static str] {
        &["model.lm_head.", "model.tied_output", "model.scale_output"]
    }

    fn check_data(&self) -> Result<Vec<String>> {
        if self.data.generated.is_some() {
            return Ok(Vec::new());
        }
        let read = read(PATH, &self.data.path, &self.wanted(), self.data.scheme)?;
        let remarks = remarks([(&read.all, read.scheme), (&[], None)]);
        Ok(read.notes.into_iter().chain(remarks).collect())
    }
}
