//! The labels of a classifier's outputs, and those that it gives a text or a picture.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tealight_model::hf::{Classification, ProblemType};
use tealight_model::models::read_out::ReadOut;
use tealight_model::names;

use crate::data::shown::on_one_line;
use crate::error::{Error, Result};
use crate::storage::files::{read_json, to_json};

/// The file that a run keeps them in.
pub(crate) const FILE: &str = "labels.json";
const FORMAT_VERSION: u64 = 1;
/// What `transformers` calls the only output of a model without a name for it.
pub(crate) const UNNAMED: &str = "LABEL_0";
/// The probability above which a text has a label, if no threshold is kept for it.
const THRESHOLD: f64 = 0.5;

names! {
    /// `task.objective`: the target of a text, and so the loss.
    pub enum Objective {
        /// Which one of several classes it belongs to: cross-entropy.
        "classes" => Classes,
        /// Which labels it has, any number of them: binary cross-entropy.
        "labels" => Labels,
        /// A number: mean squared error.
        "regression" => Regression,
    }
}

/// The labels in the order of the outputs; a class is an index into them. Serialised as the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    format_version: u64,
    #[serde(default = "classes", skip_serializing_if = "is_classes")]
    objective: Objective,
    #[serde(rename = "labels")]
    names: Vec<String>,
    /// The probability from which on a text has a label, of several labels or of the second of two classes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    thresholds: BTreeMap<String, f64>,
}

/// The objective of a file that names none.
fn classes() -> Objective {
    Objective::Classes
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_classes(objective: &Objective) -> bool {
    *objective == Objective::Classes
}

impl Labels {
    /// Outputs with these labels, in this order.
    pub(crate) fn new(objective: Objective, names: Vec<String>) -> Self {
        Self { format_version: FORMAT_VERSION, objective, names, thresholds: BTreeMap::new() }
    }

    /// The same labels with these thresholds.
    pub(crate) fn with_thresholds(self, thresholds: BTreeMap<String, f64>) -> Self {
        Self { thresholds, ..self }
    }

    /// The probability from which on a text has a label, of the labels that a run has chosen one for.
    pub fn thresholds(&self) -> &BTreeMap<String, f64> {
        &self.thresholds
    }

    /// The different labels, in ascending order.
    pub(crate) fn from_given<'a>(
        objective: Objective,
        labels: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let labels: BTreeSet<&str> = labels.into_iter().collect();
        Self::new(objective, labels.into_iter().map(str::to_owned).collect())
    }

    /// Those of a classifier or a tagger of `transformers`, with the scores that its pipeline gives: without a
    /// `problem_type`, one label alone has the probability σ(x).
    pub(crate) fn of_hugging_face(outputs: &Classification) -> Self {
        let objective = match (outputs.problem_type, outputs.labels.len()) {
            _ if outputs.read_out.is_none() => Objective::Classes,
            (Some(ProblemType::Regression), _) => Objective::Regression,
            (Some(ProblemType::MultiLabel), _) | (_, 1) => Objective::Labels,
            (Some(ProblemType::SingleLabel) | None, _) => Objective::Classes,
        };
        Self::new(objective, outputs.labels.clone())
    }

    /// The keys of `config.json` by which `transformers` knows the outputs of a model with this read-out; of a tagger,
    /// which has none, without a `problem_type`.
    pub(crate) fn for_hugging_face(&self, read_out: Option<ReadOut>) -> Classification {
        let problem_type = read_out.map(|_| match self.objective {
            Objective::Classes => ProblemType::SingleLabel,
            Objective::Labels => ProblemType::MultiLabel,
            Objective::Regression => ProblemType::Regression,
        });
        Classification { labels: self.names.clone(), problem_type, read_out }
    }

    /// The labels in the directory of a run.
    ///
    /// # Errors
    /// If the file cannot be read, or if a threshold is invalid.
    pub fn read(run: &Path) -> Result<Self> {
        Self::parse(run)?.checked(&run.join(FILE))
    }

    /// The labels in a folder; the thresholds may be anything.
    pub(crate) fn parse(folder: &Path) -> Result<Self> {
        read_json(&folder.join(FILE), FORMAT_VERSION)
    }

    /// These labels, whose thresholds are from `file`.
    ///
    /// # Errors
    /// If a threshold is not from 0 to 1, belongs to an unknown label, or belongs to a label that is not decided by a
    /// threshold: a number, or a class other than the second of two.
    pub(crate) fn checked(self, file: &Path) -> Result<Self> {
        for (name, &threshold) in &self.thresholds {
            let shown = on_one_line(name);
            let rule = if !self.names.contains(name) {
                format!("`thresholds` has \"{shown}\", which is no label")
            } else if !(0. ..=1.).contains(&threshold) {
                format!("the threshold of \"{shown}\" is {threshold}, and must be from 0 to 1")
            } else if self.objective == Objective::Classes
                && (self.names.len() != 2 || self.names[1] != *name)
            {
                format!(
                    "\"{shown}\" has a threshold: of classes, only the second of two can have one"
                )
            } else if self.objective == Objective::Regression {
                format!("\"{shown}\" has a threshold, and is a number")
            } else {
                continue;
            };
            return Err(Error::unusable(file, &rule));
        }
        Ok(self)
    }

    /// Name and content of the file that a run, or an exported folder, keeps them in.
    pub(crate) fn file(&self) -> Result<(&'static str, Vec<u8>)> {
        Ok((FILE, to_json(Path::new(FILE), self)?))
    }

    /// The labels in their order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What the outputs predict.
    pub fn objective(&self) -> Objective {
        self.objective
    }

    /// The class of each label.
    pub(crate) fn by_name(&self) -> BTreeMap<&str, u32> {
        self.names.iter().map(String::as_str).zip(0..).collect()
    }
}

/// The labels that a model gives to a text or a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Classified {
    /// The likeliest class; or the labels with a probability above one half, the likeliest first; or the name of
    /// the number. A threshold decides instead where there is one: on its label, or between two classes.
    pub labels: Vec<String>,
    /// All labels, the highest score first. A score is a probability, under `objective = "regression"` the number.
    pub scores: Vec<Score>,
}

/// A label with its score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// The label.
    pub label: String,
    /// Its score.
    pub score: f64,
    /// Whether the score reaches the threshold of the label; `None` if the label has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<bool>,
}

impl Classified {
    /// Sorts `scores`, which has one score for each of the labels.
    pub(super) fn new(of: &Labels, scores: &[f64]) -> Self {
        let score = |(label, &score): (&String, &f64)| {
            let accepted = of.thresholds.get(label).map(|&threshold| score >= threshold);
            Score { label: label.clone(), score, accepted }
        };
        let mut scores: Vec<_> = of.names.iter().zip(scores).map(score).collect();
        scores.sort_by(|a, b| b.score.total_cmp(&a.score));
        let is_given = |(place, one): &(usize, &Score)| match of.objective {
            Objective::Regression => true,
            Objective::Labels => one.accepted.unwrap_or(one.score > THRESHOLD),
            Objective::Classes => {
                // Only the second of two classes has a threshold: a text that does not reach it gets the first.
                let of_second = scores.iter().find_map(|other| other.accepted);
                let by_threshold = of_second.map(|is| is == one.accepted.is_some());
                by_threshold.unwrap_or(*place == 0)
            }
        };
        let given = scores.iter().enumerate().filter(is_given);
        let labels = given.map(|(_, one)| one.label.clone()).collect();
        Self { labels, scores }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_keeps_its_labels_in_their_order() {
        let labels = Labels::from_given(Objective::Classes, ["b", "a", "b", "ü"]);
        assert_eq!(labels.names(), ["a", "b", "ü"]);
        let by_name = labels.by_name();
        assert_eq!(["b", "c"].map(|label| by_name.get(label)), [Some(&1), None]);
        let given = Labels::new(Objective::Labels, ["ü", "a"].map(str::to_owned).into());
        for labels in [labels, given] {
            let run = tempfile::tempdir().unwrap();
            let (name, content) = labels.file().unwrap();
            std::fs::write(run.path().join(name), content).unwrap();
            assert_eq!(Labels::read(run.path()).unwrap(), labels);
        }
    }

    #[test]
    fn a_threshold_decides_between_two_classes_and_on_a_label() {
        let names = || ["ham", "spam"].map(str::to_owned).to_vec();
        let given = |objective, threshold: Option<f64>, scores: [f64; 2]| {
            let thresholds = threshold.map(|threshold| ("spam".to_owned(), threshold));
            let labels = Labels::new(objective, names());
            let labels = labels.with_thresholds(thresholds.into_iter().collect());
            let Classified { labels, scores } = Classified::new(&labels, &scores);
            (labels.join("+"), scores.iter().find(|one| one.label == "spam").unwrap().accepted)
        };
        let classes = |threshold, spam| given(Objective::Classes, threshold, [1. - spam, spam]);
        assert_eq!(classes(None, 0.75), ("spam".to_owned(), None));
        assert_eq!(classes(Some(0.8), 0.75), ("ham".to_owned(), Some(false)));
        assert_eq!(classes(Some(0.25), 0.25), ("spam".to_owned(), Some(true)));
        let several = |threshold, spam| given(Objective::Labels, threshold, [0.9, spam]);
        assert_eq!(several(None, 0.5), ("ham".to_owned(), None));
        assert_eq!(several(Some(0.25), 0.25), ("ham+spam".to_owned(), Some(true)));
        assert_eq!(several(Some(0.8), 0.75), ("ham".to_owned(), Some(false)));
    }

    #[test]
    fn thresholds_that_decide_nothing_are_refused() {
        let message = |objective, names: &[&str], name: &str, threshold| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            let thresholds = [(name.to_owned(), threshold)].into();
            let labels = Labels::new(objective, names).with_thresholds(thresholds);
            labels
                .checked(Path::new(FILE))
                .map_or_else(|error| error.to_string(), |_| String::new())
        };
        let (classes, labels) = (Objective::Classes, Objective::Labels);
        for (objective, names, name, threshold, rule) in [
            (labels, &["a", "b"][..], "c", 0.5, "which is no label"),
            (labels, &["a"], "a", 1.5, "is 1.5, and must be from 0 to 1"),
            (labels, &["a"], "a", -0.5, "must be from 0 to 1"),
            (labels, &["a"], "a", f64::NAN, "must be from 0 to 1"),
            (classes, &["a", "b"], "a", 0.5, "only the second of two"),
            (classes, &["a", "b", "c"], "b", 0.5, "only the second of two"),
            (Objective::Regression, &["a"], "a", 0.5, "is a number"),
        ] {
            let message = message(objective, names, name, threshold);
            assert!(message.contains(FILE) && message.contains(rule), "{message}");
        }
        assert_eq!(message(classes, &["a", "b"], "b", 0.), "");
        assert_eq!(message(labels, &["a", "b"], "a", 1.), "");
    }

    /// Runs of before there were other objectives have such a file.
    #[test]
    fn a_file_without_an_objective_is_of_classes() {
        let run = tempfile::tempdir().unwrap();
        let content = r#"{"format_version":1,"labels":["a","b"]}"#;
        std::fs::write(run.path().join(FILE), content).unwrap();
        let labels = Labels::read(run.path()).unwrap();
        assert_eq!(labels, Labels::from_given(Objective::Classes, ["b", "a"]));
        let (_, written) = labels.file().unwrap();
        assert!(!String::from_utf8(written).unwrap().contains("objective"));
    }
}
