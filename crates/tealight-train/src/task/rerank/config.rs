//! The settings of `[task] kind = "rerank"`.

use std::path::Path;

use tealight_model::models::read_out::ReadOut;
use tealight_model::{ModelSpec, Outputs, SpecRecord};

use super::loss::{ListNet, LossConfig};
use super::rows::{List, Wanted, read};
use super::source::{DataConfig, Generated};
use crate::checks::{at_most, check};
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::{Error, Result};
use crate::inference::readers::{Readers, TextFields};
use crate::settings::settings;
use crate::task::TaskSettings;
use crate::task::parts::{PATH, Read, Source as _};
use crate::task::settings::absolute_path;
use crate::task::table::thousands;

/// The longest sequence: the time of attention grows with its square.
const MAX_SEQ_LEN: u64 = 1 << 16;
/// The word of a classifier's record.
const CLASSIFY: &str = "classify";

settings! {
    /// `[task] kind = "rerank"`
    pub struct Config {
        /// The most tokens of a query with a passage, special ones included; of longer pairs, the longer text is truncated
        /// first.
        pub seq_len: usize = 256,
        /// Which positions the score is computed from.
        pub read_out: ReadOut = ReadOut::Cls,
        /// Token types that the model has embeddings for, 2 in BERT: 0 for the query, 1 for the passage.
        pub n_token_types: usize = 0,
        /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
        /// have more.
        pub vocab_size: Option<usize> = None,
        /// `[task.loss]`: what scores are trained for.
        pub loss: LossConfig = LossConfig::default(),
        /// `[task.data]`: the queries and their passages.
        pub data: DataConfig = DataConfig::default(),
        /// `[task.tokenizer]`; it is trained on the training texts unless it comes from a file.
        pub tokenizer: TokenizerConfig = TokenizerConfig::default(),
    }
}

impl Config {
    /// What is read of a file.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        let loss = self.loss.settings();
        Wanted {
            data: &self.data,
            passages: loss.passages(),
            labels_in: loss.labels_in(),
            loss: self.loss.kind(),
        }
    }

    fn check_source(&self) -> Result<()> {
        let DataConfig { generated, n_generated, .. } = &self.data;
        let drawn = (generated.is_some(), *n_generated);
        let what = "a file of queries with passages, such as a .jsonl";
        self.files().check_generated(drawn, "queries", what)?;
        if generated.is_some() && matches!(self.loss, LossConfig::MarginMse(_)) {
            let message = "`task.data.generated` = \"paraphrases\" has no margins, which \
                           `task.loss.kind` = \"margin_mse\" needs";
            return Err(Error::config(["task.data.generated", "task.loss.kind"], message));
        }
        Ok(())
    }

    /// Names the columns of test data. Their labels are grades, whatever the model was trained with.
    pub fn test_columns(
        &mut self,
        text: Option<String>,
        text_pair: Option<String>,
        label: Option<String>,
    ) {
        if text_pair.is_some() || label.is_some() {
            self.loss = LossConfig::ListNet(ListNet::default());
        }
        let DataConfig { query, passage, label: own, .. } = &mut self.data;
        *query = text.unwrap_or_else(|| query.clone());
        *passage = text_pair.unwrap_or_else(|| passage.clone());
        *own = label.unwrap_or_else(|| own.clone());
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        let Self { seq_len, n_token_types, .. } = *self;
        at_most("task.seq_len", seq_len as u64, MAX_SEQ_LEN)?;
        at_most("task.n_token_types", n_token_types as u64, MAX_SEQ_LEN)?;
        self.loss.settings().validate()?;
        self.check_source()?;
        let DataConfig { label_scale, max_passages, .. } = self.data;
        let is_scale = |scale: f64| scale.is_finite() && scale > 0.;
        check("task.data.label_scale", label_scale, is_scale, "must be positive")?;
        check("task.data.max_passages", max_passages, |n| n > 1, "must be at least 2")?;
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
        let DataConfig { path, generated, validation_path, test, .. } = &mut self.data;
        (*generated, *validation_path, *test) = (None, None, 0.);
        data.clone_into(path);
        absolute_path(path)
    }

    fn languages(&self) -> Vec<&'static str> {
        self.data.generated.map(|Generated::Paraphrases| "en").into_iter().collect()
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight rerank {} \"query\" \"passage\" \"passage\"", run.display())
    }

    fn outputs(&self) -> Option<Outputs> {
        (self.read_out == ReadOut::Cls).then_some(Outputs::First)
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("text-classification")
    }

    /// A loss of differences of scores does not depend on what all of them have in common.
    fn idle_parameters(&self) -> &'static [&'static str] {
        if self.loss.settings().is_of_differences() { &["classifier.bias"] } else { &[] }
    }

    fn model_spec(&self, record: SpecRecord, pad_id: Option<u32>) -> Option<ModelSpec> {
        let mut record =
            SpecRecord { task: CLASSIFY.to_owned(), read_out: Some(self.read_out), ..record };
        record.sizes.insert("n_token_types".to_owned(), self.n_token_types as u64);
        record.sizes.insert("n_classes".to_owned(), 1);
        record.spec(pad_id)
    }

    fn unused_model_settings(&self) -> &'static [&'static str] {
        &["model.lm_head.", "model.tied_output", "model.scale_output"]
    }

    fn check_data(&self) -> Result<Vec<String>> {
        if self.data.generated.is_some() {
            return Ok(Vec::new());
        }
        let Read { all, notes, .. } = read(PATH, &self.data.path, self.wanted())?;
        Ok(notes.into_iter().chain(remarks(&all)).collect())
    }

    fn add_readers(&self, readers: &mut Readers) -> Result<()> {
        let DataConfig { query, passage, .. } = &self.data;
        readers.fields = TextFields { text: query.clone(), text_pair: Some(passage.clone()) };
        readers.activation = Some(self.loss.settings().activation());
        Ok(())
    }
}

/// What a user should know about queries with their passages, a line each.
pub(super) fn remarks(lists: &[List]) -> Vec<String> {
    let n_passages: usize = lists.iter().map(|list| list.passages.len()).sum();
    let n_positive = |list: &&List| list.passages.iter().all(|passage| passage.label <= 0.);
    let n_without = lists.iter().filter(n_positive).count();
    let counts = format!(
        "{} queries with {} passages",
        thousands(lists.len() as u64),
        thousands(n_passages as u64)
    );
    let without = (n_without > 0).then(|| {
        format!(
            "{} queries have no passage with a label above 0: metrics leave them out",
            thousands(n_without as u64)
        )
    });
    [Some(counts), without].into_iter().flatten().collect()
}
