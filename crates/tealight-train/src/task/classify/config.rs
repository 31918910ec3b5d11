//! The settings of `[task] kind = "classify"`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tealight_model::models::read_out::ReadOut;
use tealight_model::names::Named as _;
use tealight_model::{ModelSpec, Outputs, SpecRecord};

use super::file::{Fields, Wanted, read};
use super::loss::{ClassWeights, LossConfig};
use super::remarks::remarks;
use super::split::SplitBy;
use crate::checks::{at_most, share_or_none};
use crate::data::survey::{Columns, column_names, labelled};
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::{Error, Result};
use crate::inference::labels::Objective;
use crate::inference::readers::{Readers, TextFields};
use crate::settings::settings;
use crate::task::calibration::Calibration;
use crate::task::parts::{PATH, Read, Source as _};
use crate::task::settings::{absolute_path, check_label_smoothing};
use crate::task::thresholds::Aim;
use crate::task::{Imitated, TaskSettings};

/// The longest sequence: the time of attention grows with its square.
const MAX_SEQ_LEN: u64 = 1 << 16;

settings! {
    /// `[task] kind = "classify"`
    pub struct Config {
        /// The target of a text, and so the loss.
        pub objective: Objective = Objective::Classes,
        /// The labels in the order of the model's outputs; those of the training texts in ascending order when
        /// absent. Of two, the second is the positive one of the F1.
        pub labels: Option<Vec<String>> = None,
        /// The most tokens of a text, or of both of a pair, special ones included; longer texts are truncated.
        pub seq_len: usize = 128,
        /// Which positions the class is predicted from.
        pub read_out: ReadOut = ReadOut::Cls,
        /// Token types that the model has embeddings for, 2 in BERT: 0 for the first text, 1 for the second.
        pub n_token_types: usize = 0,
        /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
        /// have more.
        pub vocab_size: Option<usize> = None,
        /// Probability mass that the loss spreads over all classes, or over both values of a label (Szegedy et al.
        /// 2016).
        pub label_smoothing: f64 = 0.,
        /// The share of the tokens of a text that training leaves out, drawn anew each time that it reads the text (word
        /// dropout; Iyyer et al. 2015). It helps where there are few texts, and the label is that of the whole text.
        pub token_dropout: f64 = 0.,
        /// `[task.loss]`: the loss of classes in training.
        pub loss: LossConfig = LossConfig::CrossEntropy,
        /// How much each class counts in the loss; of several labels, how much the texts count that have the label.
        pub class_weights: ClassWeights = ClassWeights::Equal,
        /// What corrects the probabilities after training; under `objective = "classes"` only.
        pub calibration: Calibration = Calibration::None,
        /// Chooses after training the probability from which on a text has a label: `f1` the one of the highest F1,
        /// `precision=0.9` the lowest at which that precision is reached; one half when absent. Of several labels one
        /// for each, of two classes one for the second.
        pub threshold: Option<String> = None,
        /// `[task.data]`: the texts.
        pub data: DataConfig = DataConfig::default(),
        /// `[task.tokenizer]`; it is trained on the training texts unless it comes from a file.
        pub tokenizer: TokenizerConfig = TokenizerConfig::default(),
    }

    /// `[task.data]`
    pub struct DataConfig {
        /// A `.jsonl` file with an object on each line, a `.json` file with a list of objects, a `.csv` or `.tsv` file
        /// with a heading, each also as `.gz` or `.zst`; or a folder with a folder of `.txt` files for each class. A
        /// relative path is relative to the working directory; a run keeps the absolute one.
        pub path: PathBuf = PathBuf::new(),
        /// The field or column of the text.
        pub text: String = "text".to_owned(),
        /// The field or column of the second text of a pair; single texts when absent.
        pub text_pair: Option<String> = None,
        /// The field or column of the label: a word, a number, true or false. Under `objective = "labels"` a list
        /// of these, which a `.csv` separates with `;`; under `objective = "regression"` a number.
        pub label: String = "label".to_owned(),
        /// The share of the texts that is held out for validation.
        pub validation: f64 = 0.1,
        /// Which texts that share consists of.
        pub split: SplitBy = SplitBy::Hashed,
        /// The share of the texts of `path` that is held out for a test: the report of the run has the scores on them, and
        /// `validation` is a share of the rest.
        pub test: f64 = 0.,
        /// A file of texts for validation, instead of a share.
        pub validation_path: Option<PathBuf> = None,
        /// Leave out rows that are no text with its label, and tell which, instead of ending with an error.
        pub skip_broken: bool = false,
    }
}

impl Config {
    /// What is read of a file.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        let DataConfig { text, text_pair, label, skip_broken, .. } = &self.data;
        let fields = Fields { text, text_pair: text_pair.as_deref(), label: Some(label) };
        Wanted { fields, objective: self.objective, skips_broken: *skip_broken }
    }

    /// Checks `task.labels` and what a regression has no use for.
    fn check_labels(&self) -> Result<()> {
        let is_regression = self.objective == Objective::Regression;
        if is_regression && self.label_smoothing > 0. {
            let message = format!(
                "`task.label_smoothing` = {} spreads probability over classes, and `task.objective` = \
                 \"regression\" has none",
                self.label_smoothing
            );
            return Err(Error::config(["task.label_smoothing", "task.objective"], message));
        }
        let Some(labels) = &self.labels else { return Ok(()) };
        let different: BTreeSet<_> = labels.iter().collect();
        let (n, rule) = (
            labels.len(),
            match self.objective {
                _ if different.len() < labels.len() => "has a label twice",
                _ if labels.iter().any(|label| label.trim().is_empty()) => "has an empty label",
                Objective::Classes if labels.len() < 2 => "needs two labels at least",
                Objective::Labels if labels.is_empty() => "needs a label at least",
                Objective::Regression if labels.len() != 1 => {
                    "needs the name of the one number that `task.objective` = \"regression\" learns"
                }
                _ => return Ok(()),
            },
        );
        let message = format!("`task.labels`, a list of {n}, {rule}");
        Err(Error::config(["task.labels", "task.objective"], message))
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        let Self { seq_len, n_token_types, label_smoothing, .. } = *self;
        at_most("task.seq_len", seq_len as u64, MAX_SEQ_LEN)?;
        at_most("task.n_token_types", n_token_types as u64, MAX_SEQ_LEN)?;
        check_label_smoothing(label_smoothing)?;
        share_or_none("task.token_dropout", self.token_dropout)?;
        self.check_labels()?;
        self.class_weights.validate(self.objective)?;
        self.loss.validate(self.objective, label_smoothing)?;
        if self.calibration != Calibration::None && self.objective != Objective::Classes {
            let message = format!(
                "`task.calibration` = \"{}\" needs classes, and `task.objective` = \"{}\" learns none",
                self.calibration.name(),
                self.objective.name()
            );
            return Err(Error::config(["task.calibration", "task.objective"], message));
        }
        if let Some(threshold) = &self.threshold {
            Aim::parse(threshold)?;
            if self.objective == Objective::Regression {
                let message = format!(
                    "`task.threshold` = \"{threshold}\" chooses a probability, and `task.objective` = \"regression\" has none"
                );
                return Err(Error::config(["task.threshold", "task.objective"], message));
            }
        }
        self.files()
            .check("a table with texts and labels, such as a .csv, or a folder of class folders")?;
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
        data.clone_into(&mut self.data.path);
        (self.data.validation_path, self.data.test) = (None, 0.);
        absolute_path(&mut self.data.path)?;
        let Some(all) = column_names(data) else { return Ok(()) };
        // Another file may name its columns in another way. Those that it has stay.
        let DataConfig { text, text_pair, label, .. } = &mut self.data;
        let kept = |name: &String| all.contains(name).then(|| name.clone());
        let chosen = Columns {
            text: kept(text),
            text_pair: text_pair.as_ref().and_then(kept),
            label: kept(label),
        };
        let Ok(found) = labelled(data, &chosen) else { return Ok(()) };
        (*text, *label) = (found.text, found.label);
        if let (Some(pair), Some(other)) = (text_pair, found.text_pair) {
            *pair = other;
        }
        Ok(())
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight classify {} \"…\"", run.display())
    }

    fn imitated(&self) -> Option<Imitated> {
        (self.objective == Objective::Classes).then_some(Imitated::Logits)
    }

    fn outputs(&self) -> Option<Outputs> {
        (self.read_out == ReadOut::Cls).then_some(Outputs::First)
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("text-classification")
    }

    fn model_spec(&self, record: SpecRecord, pad_id: Option<u32>) -> Option<ModelSpec> {
        let mut record = SpecRecord { read_out: Some(self.read_out), ..record };
        record.sizes.insert("n_token_types".to_owned(), self.n_token_types as u64);
        record.spec(pad_id)
    }

    fn unused_model_settings(&self) -> &'static [&'static str] {
        &["model.lm_head.", "model.tied_output", "model.scale_output"]
    }

    fn check_data(&self) -> Result<Vec<String>> {
        let Read { all, mut notes, .. } = read(PATH, &self.data.path, self.wanted())?;
        notes.extend(remarks(&all, &[]));
        Ok(notes)
    }

    fn add_readers(&self, readers: &mut Readers) -> Result<()> {
        let DataConfig { text, text_pair, .. } = &self.data;
        readers.fields = TextFields { text: text.clone(), text_pair: text_pair.clone() };
        Ok(())
    }
}
