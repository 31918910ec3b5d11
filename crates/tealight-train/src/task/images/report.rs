//! The scores of a model that gives each held-out picture one class, beside its baselines.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::Mode;
use tealight_model::models::image_classifier::ImageClassifier;

use super::Images;
use crate::data::Split;
use crate::data::images::Pictures;
use crate::error::Result;
use crate::inference::probabilities;
use crate::task::batch::likeliest;
use crate::task::class_scores::{
    ClassScore, Items, MistakeRow, N_MISTAKES, confusion_table, mistake_table, score_table,
};
use crate::task::scores::{Counts, confusion, macro_f1, standard_error};
use crate::task::table::{Table, thousands};
use crate::task::{Task, TaskReport};

/// Classes from which on the top-5 accuracy is told.
const MIN_TOP_5: usize = 10;

/// Scores on the held-out pictures, by the names in `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Share of the pictures whose class is predicted.
    pub accuracy: f64,
    /// Share of the pictures whose class is among the five likeliest; `None` of fewer than ten classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_5_accuracy: Option<f64>,
    /// Cross-entropy, in nats.
    pub nll: f64,
    /// The unweighted mean of the F1 of all classes.
    pub macro_f1: f64,
    /// Standard error of `accuracy`.
    pub accuracy_standard_error: f64,
    /// Accuracy of the most frequent class in training.
    pub majority_accuracy: f64,
    /// NLL of the frequencies of the classes in training.
    pub majority_nll: f64,
    /// The best accuracy that any model can expect on these pictures; `None` unless they are drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bayes_accuracy: Option<f64>,
    /// The NLL of the true distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bayes_nll: Option<f64>,
    /// Pictures evaluated.
    pub n_pictures: usize,
    /// Scores of each class.
    pub labels: Vec<ClassScore>,
    /// `(n_classes, n_classes)`: pictures of the row's class for which the column's was predicted.
    pub confusion: Vec<Vec<u64>>,
    /// The most confident mistakes, the most confident first.
    pub mistakes: Vec<Mistake>,
}

/// A held-out picture whose class is not predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mistake {
    /// Its number among the held-out pictures.
    pub index: usize,
    /// Its name, such as `test/cat/1.jpg`.
    pub picture: String,
    /// Its class.
    pub label: String,
    /// The predicted class.
    pub predicted: String,
    /// The probability of the predicted class.
    pub probability: f64,
}

impl Mistake {
    fn row(&self) -> MistakeRow<'_> {
        let Self { picture, label, predicted, probability, .. } = self;
        MistakeRow { item: picture.clone(), label, predicted, probability: *probability }
    }
}

/// Accuracy and NLL.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    accuracy: f64,
    nll: f64,
}

impl Score {
    /// The means over pictures, each given as the probabilities of all classes and its own class.
    fn of<'a>(rows: impl ExactSizeIterator<Item = (&'a [f64], usize)>) -> Self {
        let n = rows.len() as f64;
        let (mut right, mut nll) = (0., 0.);
        for (row, class) in rows {
            right += f64::from(u8::from(likeliest(row) == class));
            nll -= row[class].ln();
        }
        Self { accuracy: right / n, nll: nll / n }
    }
}

impl TaskReport<Images> for Report {
    fn new(task: &Images, model: &ImageClassifier) -> Result<Self> {
        let names = task.labels().names();
        let mut rows = Vec::new();
        let mut classes = Vec::new();
        for index in 0..task.n_evaluation_batches() {
            let pictures = task.held_out_batch(index);
            let batch = task.batches.plain(&pictures)?;
            rows.extend(probabilities(&model.forward(&batch.pictures, Mode::Eval)?)?);
            classes.extend(pictures.iter().map(|picture| picture.class as usize));
        }
        let predicted: Vec<usize> = rows.iter().map(|row| likeliest(row)).collect();
        let confusion =
            confusion(names.len(), classes.iter().copied().zip(predicted.iter().copied()));
        let counts = Counts::of_classes(&confusion);
        let of = |rows: &[Vec<f64>]| {
            Score::of(rows.iter().zip(&classes).map(|(row, &class)| (&row[..], class)))
        };
        let score = of(&rows);
        let majority = vec![frequencies(task, names.len()); rows.len()];
        let majority = of(&majority);
        let limit = limit(task, rows.len()).map(|rows| of(&rows));
        Ok(Self {
            accuracy: score.accuracy,
            top_5_accuracy: (names.len() >= MIN_TOP_5).then(|| top_5(&rows, &classes)),
            nll: score.nll,
            macro_f1: macro_f1(&counts),
            accuracy_standard_error: standard_error(score.accuracy, rows.len()),
            majority_accuracy: majority.accuracy,
            majority_nll: majority.nll,
            bayes_accuracy: limit.map(|limit| limit.accuracy),
            bayes_nll: limit.map(|limit| limit.nll),
            n_pictures: rows.len(),
            labels: ClassScore::of_counts(Items::Pictures, names, &counts),
            confusion,
            mistakes: mistakes(task, &rows, &classes),
        })
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let all = [
            ("accuracy", Some(self.accuracy)),
            ("top_5_accuracy", self.top_5_accuracy),
            ("nll", Some(self.nll)),
            ("macro_f1", Some(self.macro_f1)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// The share of each class among the pictures to train on. One of which there is none counts as half a picture.
fn frequencies(task: &Images, n_classes: usize) -> Vec<f64> {
    let mut counts = vec![0.; n_classes];
    for at in 0..task.pictures.n(Split::Train) {
        counts[task.pictures.at(Split::Train, at).class as usize] += 1.;
    }
    for count in &mut counts {
        *count = f64::max(*count, 0.5);
    }
    let total: f64 = counts.iter().sum();
    counts.into_iter().map(|count| count / total).collect()
}

/// The true distribution of the class of each held-out picture, where they are drawn.
fn limit(task: &Images, n: usize) -> Option<Vec<Vec<f64>>> {
    use rayon::prelude::*;
    let pictures: &Pictures = &task.pictures;
    let shapes = pictures.shapes()?;
    // A class that `task.labels` adds is never drawn.
    let n_classes = task.labels().names().len();
    let row = |index: usize| {
        let (rows, _) = shapes.draw(Split::Validation, index as u64);
        let mut posterior = shapes.posterior(&rows);
        posterior.resize(n_classes, 0.);
        posterior
    };
    Some((0..n).into_par_iter().map(row).collect())
}

fn top_5(rows: &[Vec<f64>], classes: &[usize]) -> f64 {
    let is_in = |(row, &class): (&Vec<f64>, &usize)| {
        let n_likelier = row.iter().filter(|&&other| other > row[class]).count();
        n_likelier < 5
    };
    let n_right = rows.iter().zip(classes).filter(|&pair| is_in(pair)).count();
    n_right as f64 / rows.len() as f64
}

fn mistakes(task: &Images, rows: &[Vec<f64>], classes: &[usize]) -> Vec<Mistake> {
    let names = task.labels().names();
    let wrong = rows.iter().zip(classes).enumerate().filter_map(|(index, (row, &class))| {
        let predicted = likeliest(row);
        (predicted != class).then_some((index, class, predicted, row[predicted]))
    });
    let mut wrong: Vec<_> = wrong.collect();
    wrong.sort_by(|a, b| b.3.total_cmp(&a.3).then(a.0.cmp(&b.0)));
    let mistake = |(index, class, predicted, probability): (usize, usize, usize, f64)| Mistake {
        index,
        picture: task.held_out(index).map_or(String::new(), |(_, name, _)| name.to_owned()),
        label: names[class].clone(),
        predicted: names[predicted].clone(),
        probability,
    };
    wrong.into_iter().take(N_MISTAKES).map(mistake).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut heading = vec!["", "accuracy", "NLL"];
        heading.extend(self.top_5_accuracy.map(|_| "top 5"));
        let mut table = Table::new(heading);
        let mut row = |name: &str, accuracy: f64, nll: f64, top_5: Option<f64>| {
            let cells = [name.to_owned(), format!("{accuracy:.4}"), format!("{nll:.4}")];
            let last = self
                .top_5_accuracy
                .map(|_| top_5.map_or(String::new(), |top_5| format!("{top_5:.4}")));
            table.row(cells.into_iter().chain(last));
        };
        row("majority", self.majority_accuracy, self.majority_nll, None);
        row("transformer", self.accuracy, self.nll, self.top_5_accuracy);
        if let (Some(accuracy), Some(nll)) = (self.bayes_accuracy, self.bayes_nll) {
            row("Bayes limit", accuracy, nll, None);
        }
        let (n, error) = (thousands(self.n_pictures as u64), self.accuracy_standard_error);
        writeln!(
            f,
            "{table}over {n} pictures held out; standard error of the accuracy {error:.4}"
        )?;
        write!(f, "\n{}", score_table(Items::Pictures, &self.labels))?;
        let confusion = confusion_table(Items::Pictures, &self.labels, &self.confusion);
        let mistakes = mistake_table(Items::Pictures, self.mistakes.iter().map(Mistake::row));
        confusion.iter().chain(&mistakes).try_for_each(|table| write!(f, "\n{table}"))
    }
}

impl Report {
    /// Pictures whose class is not predicted.
    pub(super) fn n_wrong(&self) -> u64 {
        let of_row = |(class, row): (usize, &Vec<u64>)| row.iter().sum::<u64>() - row[class];
        self.confusion.iter().enumerate().map(of_row).sum()
    }
}
