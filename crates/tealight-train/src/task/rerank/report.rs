//! Metrics of a model on held-out queries.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tealight_model::Mode;
use tealight_model::models::classifier::Classifier;

use super::rows::{List, Passage};
use super::{Example, Rerank, scores};
use crate::data::Split;
use crate::error::Result;
use crate::inference::values;
use crate::task::Task as _;
use crate::task::ranking::{Expected, Ranked, mean};
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::sample::{N_SAMPLES, Sample};
use crate::task::scores::{pearson, spearman};
use crate::task::table::thousands;
use crate::task::words::{in_common, words};

const COLUMNS: [(&str, &str); 4] =
    [("map", "MAP"), ("mrr@10", "MRR@10"), ("ndcg@10", "nDCG@10"), ("accuracy", "accuracy")];
const OF_PAIRS: [(&str, &str); 2] = [("spearman", "Spearman"), ("pearson", "Pearson")];
/// Mistakes that are listed, and those that are shown.
const N_MISTAKES: usize = 20;
const N_SHOWN: usize = 5;
/// Characters of a text of a mistake.
const MAX_TEXT: usize = 60;

pub(super) type Named = Vec<(&'static str, f64)>;

/// Whether no query has two passages: then its only label is compared with the score.
fn is_of_pairs(task: &Rerank) -> bool {
    task.data.held_out.iter().all(|list| list.passages.len() < 2)
}

/// The metrics of the scores of all held-out passages, in their order.
pub(super) fn metrics(task: &Rerank, scores: &[f64]) -> Named {
    let held_out = &task.data.held_out;
    if is_of_pairs(task) {
        let labels = held_out.iter().flat_map(|list| &list.passages).map(|passage| passage.label);
        let labels: Vec<f64> = labels.collect();
        return vec![
            ("spearman", spearman(&labels, scores)),
            ("pearson", pearson(&labels, scores)),
        ];
    }
    let mut rest = scores;
    let ranked: Vec<Ranked> = held_out
        .iter()
        .filter_map(|list| {
            let (own, others) = rest.split_at(list.passages.len().min(rest.len()));
            rest = others;
            ranked(list, own)
        })
        .collect();
    vec![
        ("map", mean(&ranked, |one| one.average_precision(usize::MAX))),
        ("mrr@10", mean(&ranked, |one| one.reciprocal_rank(10))),
        ("ndcg@10", mean(&ranked, |one| one.ndcg(10))),
        ("accuracy", mean(&ranked, Ranked::accuracy)),
    ]
}

/// The passages by descending score, of equal ones the earlier first; `None` if none has a label above 0.
fn ranked(list: &List, scores: &[f64]) -> Option<Ranked> {
    let gain = |passage: &Passage| passage.label.max(0.);
    let relevant: Vec<f64> = list.passages.iter().map(gain).filter(|gain| *gain > 0.).collect();
    let gains = order(scores).into_iter().map(|at| gain(&list.passages[at])).collect();
    (!relevant.is_empty()).then_some(Ranked { gains, relevant })
}

fn order(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| (scores[b] + 0.).total_cmp(&(scores[a] + 0.)));
    order
}

/// The metrics beside those of counting words in common, and of the best possible model where it is known.
pub(super) fn report(task: &Rerank, model: &Classifier) -> Result<Report> {
    let mut outputs = Vec::new();
    for index in 0..task.n_evaluation_batches() {
        let batch = task.batch(Split::Validation, index)?;
        outputs.extend(task.evaluate_batch(model, &batch)?.outputs);
    }
    let columns: &'static [(&str, &str)] = if is_of_pairs(task) { &OF_PAIRS } else { &COLUMNS };
    let mut report = Report::new(columns);
    report.no_score = "–";
    report.row(Predictor::Lookup, "words in common", of_words(task).clone());
    report.model(metrics(task, &outputs));
    if let Some(n_fitting) = &task.data.n_fitting {
        let queries: Vec<(usize, usize)> = n_fitting.iter().map(|&k| (k, 1)).collect();
        report.row(Predictor::Bayes, "best possible", Expected::mean(&queries));
    }
    add_mistakes(task, &outputs, &mut report);
    let (n_queries, n_passages) = (task.data.held_out.len(), outputs.len());
    report.value("n_queries", n_queries);
    report.value("n_passages", n_passages);
    report.footnote = format!(
        "over {} queries with {} passages{}",
        thousands(n_queries as u64),
        thousands(n_passages as u64),
        held_out_if(!task.data.is_test)
    );
    let remark = task.remark(&report.metrics);
    report.value("no_better_than_words", remark.is_some());
    let lines = [std::mem::take(&mut report.footnote)].into_iter().chain(remark);
    report.footnote = lines.collect::<Vec<_>>().join("\n");
    Ok(report)
}

/// A line for the user, if a model with these `metrics` is no better than the words in common.
pub(super) fn remark(task: &Rerank, found: &BTreeMap<String, f64>) -> Option<String> {
    let (metric, value) =
        ["map", "spearman"].into_iter().find_map(|name| Some((name, *found.get(name)?)))?;
    let of_words = of_words(task).iter().find(|(name, _)| *name == metric)?.1;
    (value <= of_words).then(|| {
        format!("no better than counting the words that query and passage have in common: {metric} {of_words:.4}")
    })
}

/// The metrics of the share of words that query and passage have in common (Jaccard 1901).
fn of_words(task: &Rerank) -> &Named {
    let of_list = |list: &List| {
        let query = words(&list.query);
        let common = |passage: &Passage| in_common(&query, &words(&passage.text));
        list.passages.iter().map(common).collect::<Vec<_>>()
    };
    task.of_words.get_or_init(|| {
        let scores: Vec<f64> = task.data.held_out.iter().flat_map(of_list).collect();
        metrics(task, &scores)
    })
}

/// Adds the queries whose best passage has the worst rank.
fn add_mistakes(task: &Rerank, scores: &[f64], report: &mut Report) {
    if is_of_pairs(task) {
        return;
    }
    let shown = |text: &str| text.chars().take(MAX_TEXT).collect::<String>();
    let (mut mistakes, mut rest) = (Vec::<(usize, Value)>::new(), scores);
    for list in &task.data.held_out {
        let (own, others) = rest.split_at(list.passages.len());
        rest = others;
        let order = order(own);
        let Some(rank) = order.iter().position(|&at| list.passages[at].label > 0.) else {
            continue;
        };
        if rank > 0 {
            mistakes.push((
                rank,
                json!({
                    "query": shown(&list.query),
                    "right": shown(&list.passages[order[rank]].text),
                    "rank": rank + 1,
                    "first": shown(&list.passages[order[0]].text),
                    "place": list.origin.short(),
                }),
            ));
        }
    }
    mistakes.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    let listed = mistakes.into_iter().map(|(_, mistake)| mistake).take(N_MISTAKES).collect();
    let columns = [
        ("worst ranked", "query"),
        ("answer", "right"),
        ("its rank", "rank"),
        ("first", "first"),
        ("from", "place"),
    ];
    report.list("mistakes", listed, &columns, N_SHOWN);
}

/// The first passage of each of the first queries.
pub(super) fn samples(task: &Rerank, model: &Classifier) -> Result<Vec<Sample>> {
    if is_of_pairs(task) {
        return Ok(Vec::new());
    }
    let both = task.data.held_out.iter().zip(&task.data.validation).take(N_SAMPLES);
    let sample = |(list, example): (&List, &Example)| {
        let batch = task.batch_of(&[example])?;
        let scores = values(&scores(model, &batch, Mode::Eval)?.unsqueeze(0)?)?.concat();
        let first = order(&scores).first().map(|&at| &list.passages[at]);
        let best = list.passages.iter().max_by(|a, b| a.label.total_cmp(&b.label));
        Ok(Sample {
            input: list.query.clone(),
            is_right: first.zip(best).map(|(first, best)| first.label >= best.label),
            truth: best.map(|passage| passage.text.clone()).into_iter().collect(),
            text: first.map(|passage| passage.text.clone()),
            ..Sample::default()
        })
    };
    both.map(sample).collect()
}
