//! Metrics of a model on held-out sentences.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tealight_model::Mode;
use tealight_model::models::tagger::Tagger;

use super::data::{Data, HeldOut};
use super::scores::Tally;
use super::{Batch, Tag};
use crate::data::Split;
use crate::data::tags::scheme::{Entity, OUTSIDE, Scheme};
use crate::error::Result;
use crate::inference::tagger::{Input, Tagging};
use crate::inference::{likeliest, values};
use crate::task::metrics::Measures;
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::scores::Counts;
use crate::task::table::{Table, thousands};
use crate::task::{Evaluated, Task as _};

/// Characters of the text of a mistake.
const MAX_TEXT: usize = 300;
/// The most sentences with mistakes in JSON, and that are shown.
const N_MISTAKES: usize = 100;
const N_SHOWN: usize = 5;
/// The most types of a table of confusions that is shown.
const MAX_TYPES: usize = 12;
const COLUMNS: [(&str, &str); 6] = [
    ("f1", "F1"),
    ("precision", "precision"),
    ("recall", "recall"),
    ("macro_f1", "macro F1"),
    ("strict_f1", "strict F1"),
    ("accuracy", "accuracy"),
];

/// The scores on the held-out sentences ([`Tally::scores`]). The majority gives every word the most frequent tag; the
/// lookup table gives a word the tag that it has most often in training; the limit are the tags of the best possible tagger,
/// where the sentences are drawn.
pub(super) fn report(task: &Tag, model: &Tagger) -> Result<Report> {
    let (data, scheme) = (&task.data, task.data.scheme);
    let mut classes = Vec::new();
    for index in 0..task.n_evaluation_batches() {
        let batch = task.batch(Split::Validation, index)?;
        let Evaluated { outputs, .. } = task.evaluate_batch(model, &batch)?;
        classes.extend(outputs);
    }
    let predicted = data.predicted(&classes);
    let tally = tally(data, &predicted);
    let mut report = Report::new(&COLUMNS);
    report.no_score = "–";
    report.model(tally.scores(scheme));
    let usual = usual(data);
    let majority = tags_by(data, |_| usual.clone());
    report.row(
        Predictor::Majority,
        format!("always {usual}"),
        self::tally(data, &majority).scores(scheme),
    );
    let lookup = tags_by(data, |word| looked_up(data, word).unwrap_or(&usual).to_owned());
    report.row(Predictor::Lookup, "tag of the word", self::tally(data, &lookup).scores(scheme));
    if data.held_out.iter().all(|one| one.best.is_some()) {
        let best: Vec<_> = data
            .held_out
            .iter()
            .map(|one| scheme.tags(one.best.as_deref().unwrap_or_default(), one.words.len()))
            .collect();
        report.row(Predictor::Bayes, "best possible", self::tally(data, &best).scores(scheme));
    }
    let n_entities: u64 = tally.types.values().map(Counts::n_given).sum();
    report.value("n_sentences", data.held_out.len());
    report.value("n_words", tally.n_words);
    report.value("n_entities", n_entities);
    add_types(&tally, &mut report);
    add_confusion(data, &predicted, &mut report);
    add_mistakes(data, &predicted, &mut report);
    let what = if scheme == Scheme::None { "tagged words" } else { "entities" };
    report.footnote = format!(
        "over {} {what} in {} sentences{}",
        thousands(n_entities),
        thousands(data.held_out.len() as u64),
        held_out_if(!task.is_test)
    );
    let remark = task.remark(&report.metrics);
    report.add_remark(remark);
    Ok(report)
}

/// The scores of the predicted tags of all held-out sentences.
pub(super) fn tally(data: &Data, predicted: &[Vec<String>]) -> Tally {
    let both = data.held_out.iter().zip(predicted);
    Tally::new(data.scheme, both.map(|(one, predicted)| (&one.tags[..], &predicted[..])))
}

/// A line for the user, if a model with these `metrics` is no better than the most frequent tag.
pub(super) fn remark(task: &Tag, metrics: &BTreeMap<String, f64>) -> Option<String> {
    let f1 = *metrics.get("f1")?;
    let majority = tags_by(&task.data, |_| usual(&task.data));
    let of_majority = tally(&task.data, &majority).scores(task.data.scheme);
    let of_majority = of_majority.iter().find(|(name, _)| *name == "f1").map_or(0., |one| one.1);
    (f1 <= of_majority).then(|| {
        format!("no better than the tag \"{}\" for every word: F1 {f1:.4}", usual(&task.data))
    })
}

fn tags_by(data: &Data, tag: impl Fn(&str) -> String) -> Vec<Vec<String>> {
    data.held_out.iter().map(|one| one.words.iter().map(|word| tag(word)).collect()).collect()
}

/// The most frequent tag of training; of equals the first.
fn usual(data: &Data) -> String {
    let most = data.frequencies.iter().max().copied().unwrap_or(0);
    let at = data.frequencies.iter().position(|&n| n == most).unwrap_or(0);
    data.labels.names()[at].clone()
}

/// The tag that a word has most often in training.
fn looked_up<'a>(data: &'a Data, word: &str) -> Option<&'a str> {
    let tags = data.lookup.get(word)?;
    let most = tags.values().max()?;
    tags.iter().find(|(_, n)| *n == most).map(|(tag, _)| &**tag)
}

/// Adds the scores of each type.
fn add_types(tally: &Tally, report: &mut Report) {
    let score = |(label, counts): (&String, &Counts)| {
        json!({
            "label": label,
            "precision": counts.precision(),
            "recall": counts.recall(),
            "f1": counts.f1(),
            "n_entities": counts.n_given(),
        })
    };
    let types: Vec<Value> = tally.types.iter().map(score).collect();
    let columns = [
        ("type", "label"),
        ("entities", "n_entities"),
        ("precision", "precision"),
        ("recall", "recall"),
        ("F1", "f1"),
    ];
    let n = types.len();
    report.list("types", types, &columns, n);
}

/// Adds a table of types: how often an entity of the row's type is predicted with the same words and the column's type, with
/// other words, or not at all; its last row counts predicted entities that overlap no given one.
fn add_confusion(data: &Data, predicted: &[Vec<String>], report: &mut Report) {
    const OTHER_WORDS: &str = "other words";
    const MISSED: &str = "missed";
    const NONE: &str = "nothing";
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut types: BTreeSet<String> = BTreeSet::new();
    let mut add = |row: &str, column: &str| {
        *counts.entry((row.to_owned(), column.to_owned())).or_default() += 1;
    };
    for (one, predicted) in data.held_out.iter().zip(predicted) {
        let [given, predicted] = [&one.tags, predicted].map(|tags| data.scheme.entities(tags));
        types.extend(given.iter().chain(&predicted).map(|entity| entity.label.clone()));
        let overlaps = |a: &Entity, b: &Entity| a.start < b.end && b.start < a.end;
        for entity in &given {
            let same = predicted
                .iter()
                .find(|other| (other.start, other.end) == (entity.start, entity.end));
            let column = match same {
                Some(same) => &same.label,
                None if predicted.iter().any(|other| overlaps(entity, other)) => OTHER_WORDS,
                None => MISSED,
            };
            add(&entity.label, column);
        }
        for entity in predicted.iter().filter(|one| !given.iter().any(|other| overlaps(one, other)))
        {
            add(NONE, &entity.label);
        }
    }
    let columns: Vec<&str> =
        types.iter().map(String::as_str).chain([OTHER_WORDS, MISSED]).collect();
    let rows: Vec<&str> = types.iter().map(String::as_str).chain([NONE]).collect();
    let count = |row: &str, column: &str| {
        counts.get(&(row.to_owned(), column.to_owned())).copied().unwrap_or(0)
    };
    let table: BTreeMap<&str, BTreeMap<&str, u64>> = rows
        .iter()
        .map(|row| (*row, columns.iter().map(|column| (*column, count(row, column))).collect()))
        .collect();
    report.value("type_confusion", table);
    if types.len() > MAX_TYPES || types.is_empty() {
        return;
    }
    let heading =
        ["type ╲ predicted".to_owned()].into_iter().chain(columns.iter().map(ToString::to_string));
    let mut shown = Table::new(heading);
    for row in &rows {
        let cells = columns.iter().map(|column| thousands(count(row, column)));
        shown.row([row.to_string()].into_iter().chain(cells));
    }
    report.section(&shown);
}

/// Adds the sentences with most wrong and missed entities.
fn add_mistakes(data: &Data, predicted: &[Vec<String>], report: &mut Report) {
    let mut mistakes: Vec<(usize, &HeldOut, &Vec<String>)> = data
        .held_out
        .iter()
        .zip(predicted)
        .map(|(one, tags)| {
            let [given, found] = [&one.tags, tags]
                .map(|tags| data.scheme.entities(tags).into_iter().collect::<BTreeSet<_>>());
            (given.symmetric_difference(&found).count(), one, tags)
        })
        .filter(|(n, ..)| *n > 0)
        .collect();
    mistakes.sort_by_key(|(n, ..)| std::cmp::Reverse(*n));
    let listed = mistakes.iter().take(N_MISTAKES).map(|(_, one, tags)| {
        json!({
            "text": one.text.chars().take(MAX_TEXT).collect::<String>(),
            "label": spans(data.scheme, one, &one.tags),
            "predicted": spans(data.scheme, one, tags),
            "place": one.origin.short(),
        })
    });
    let columns = [
        ("sentences with most mistakes", "text"),
        ("entities", "label"),
        ("predicted", "predicted"),
        ("from", "place"),
    ];
    report.list("mistakes", listed.collect(), &columns, N_SHOWN);
}

/// `Anna Müller (PER), Köln (LOC)`; `–` of no entity.
pub(super) fn spans(scheme: Scheme, HeldOut { words, .. }: &HeldOut, tags: &[String]) -> String {
    let entities = scheme.entities(tags).into_iter();
    let shown: Vec<String> = entities
        .filter(|entity| entity.label != OUTSIDE)
        .map(|Entity { label, start, end }| format!("{} ({label})", words[start..end].join(" ")))
        .collect();
    if shown.is_empty() { "–".to_owned() } else { shown.join(", ") }
}

/// The tags of one held-out sentence by `model`.
pub(super) fn tags_of(task: &Tag, model: &Tagger, one: &HeldOut) -> Result<Vec<String>> {
    let words = Input::Words(one.words.clone());
    let answers = task.tagger(model).tag(&[words], &Tagging::default())?;
    Ok(answers.into_iter().flat_map(|answer| answer.words).map(|word| word.tag).collect())
}

/// What one batch of an evaluation needs.
pub(super) fn evaluated(model: &Tagger, batch: &Batch) -> Result<Evaluated> {
    let logits = batch.logits(model, Mode::Eval)?;
    let mut loss = batch.loss(logits.as_ref(), 0.)?;
    // The accuracy counts words without a token, too.
    loss.metrics = Measures::default();
    let rows = logits.as_ref().map(values).transpose()?.unwrap_or_default();
    let outputs = rows.iter().map(|row| likeliest(row) as f64).collect();
    Ok(Evaluated { measures: loss.measures(), outputs })
}
