//! Metrics of a model on held-out rows and on other texts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::evaluations::{Retrieval, correlations, metrics};
use super::model::Model;
use super::{Embed, Vectors, shortened};
use crate::error::Result;
use crate::task::evaluate::losses;
use crate::task::ranking::{Expected, Ranked, highest};
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::sample::{N_SAMPLES, Sample};
use crate::task::table::thousands;
use crate::task::words::{WordIndex, in_common, words};

const OF_PAIRS: [(&str, &str); 4] = [
    ("accuracy", "accuracy"),
    ("mrr@10", "MRR@10"),
    ("ndcg@10", "nDCG@10"),
    ("recall@10", "recall@10"),
];
const OF_LABELS: [(&str, &str); 2] = [("spearman", "Spearman"), ("pearson", "Pearson")];
const OF_TEXTS: [(&str, &str); 1] = [("loss", "loss")];
/// Mistakes that are listed, and those that are shown.
const N_MISTAKES: usize = 20;
const N_SHOWN: usize = 5;
/// Documents that the queries of samples are compared with.
const AMONG: usize = 50;

/// Scores of one set of texts.
pub(super) type Named = Vec<(&'static str, f64)>;

/// All scores of a model.
pub(super) struct Scores {
    /// On the held-out rows.
    held_out: Named,
    /// On other texts, by the name of the evaluation.
    others: Vec<(String, Named)>,
}

impl Scores {
    pub(super) fn new(task: &Embed, model: &Model) -> Result<Self> {
        Self::of(task, &task.evaluated_vectors(model)?)
    }

    fn of(task: &Embed, vectors: &Vectors) -> Result<Self> {
        let evaluations = &task.data.evaluations;
        let held_out = match &task.data.pairs {
            Some(pairs) => metrics(&ranked(task, pairs, vectors)?),
            None => of_labels(task, |a, b| vectors.cosine(a, b)),
        };
        let mut others = Vec::new();
        for one in &evaluations.similarity {
            let scores = one.scores(|a, b| vectors.cosine(a, b));
            others.push((one.name.clone(), scores.to_vec()));
        }
        for one in &evaluations.retrieval {
            others.push((one.name.clone(), one.scores(cosines(one, vectors)?)?));
        }
        Ok(Self { held_out, others })
    }

    /// Each score: of an evaluation, its name comes first.
    pub(super) fn named(self) -> impl Iterator<Item = (String, f64)> {
        let held_out = self.held_out.into_iter().map(|(metric, value)| (metric.to_owned(), value));
        let others = self.others.into_iter().flat_map(|(name, scores)| {
            let named = move |(metric, value)| (format!("{name}/{metric}"), value);
            scores.into_iter().map(named)
        });
        held_out.chain(others)
    }
}

/// The correlations of the labels of held-out rows with the cosines of their texts; nothing of rows without labels, or
/// whose labels are margins.
fn of_labels(task: &Embed, cosine: impl Fn(usize, usize) -> f64) -> Named {
    let rows = &task.data.validation;
    let labels: Vec<f64> = rows.iter().filter_map(|row| row.label).collect();
    if labels.is_empty() || task.config.wanted().wants.margins {
        return Vec::new();
    }
    let cosines: Vec<f64> = rows.iter().map(|row| cosine(row.anchor, row.positive)).collect();
    correlations(&labels, &cosines).to_vec()
}

/// The cosines of a query with all documents.
fn cosines(retrieval: &Retrieval, vectors: &Vectors) -> Result<impl Fn(usize) -> Result<Vec<f32>>> {
    let (queries, documents) = (vectors.of(&retrieval.queries)?, vectors.of(&retrieval.documents)?);
    let documents = documents.t()?.contiguous()?;
    Ok(move |query: usize| {
        Ok(queries.narrow(0, query, 1)?.matmul(&documents)?.flatten_all()?.to_vec1()?)
    })
}

/// The documents of each query among held-out pairs. A document with the text of the query is no answer, unless it is
/// given as one.
fn ranked(task: &Embed, pairs: &Retrieval, vectors: &Vectors) -> Result<Vec<Ranked>> {
    let cosines = cosines(pairs, vectors)?;
    pairs.ranked(|query| {
        let mut all = cosines(query)?;
        leave_out_own(task, pairs, query, &mut all);
        Ok(all)
    })
}

/// Puts documents with the text of the query last, unless they are given as its answers.
fn leave_out_own(task: &Embed, pairs: &Retrieval, query: usize, scores: &mut [f32]) {
    let source = |place: usize| task.data.texts[place].source;
    let own = source(pairs.queries[query]);
    for (at, (score, &document)) in scores.iter_mut().zip(&pairs.documents).enumerate() {
        if source(document) == own && !pairs.relevant[query].contains_key(&at) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// The scores on held-out rows beside those of counting words in common, and of the best possible model where it is
/// known; below them, the scores on other texts.
pub(super) fn report(task: &Embed, model: &Model) -> Result<Report> {
    let vectors = task.evaluated_vectors(model)?;
    let Scores { held_out, others } = Scores::of(task, &vectors)?;
    let columns: &'static [(&str, &str)] = match &task.data.pairs {
        Some(_) => &OF_PAIRS,
        None if held_out.is_empty() => &OF_TEXTS,
        None => &OF_LABELS,
    };
    let mut report = Report::new(columns);
    report.no_score = "–";
    if held_out.is_empty() {
        report.model(losses(task, model)?.mean("loss").map(|loss| ("loss", loss)));
    } else {
        report.row(Predictor::Lookup, "words in common", of_words(task).clone());
        report.model(held_out);
    }
    let best = best_possible(task);
    if !best.is_empty() {
        report.row(Predictor::Bayes, "best possible", best);
    }
    let held_out = held_out_if(!task.data.is_test);
    if let Some(pairs) = &task.data.pairs {
        add_mistakes(task, pairs, &vectors, &mut report)?;
        report.value("n_queries", pairs.queries.len());
        report.value("n_documents", pairs.documents.len());
        report.footnote = format!(
            "over {} queries{held_out}, each among {} documents",
            thousands(pairs.queries.len() as u64),
            thousands(pairs.documents.len() as u64)
        );
    } else {
        let n = task.data.validation.len();
        report.value("n_rows", n);
        report.footnote = format!("over {} rows{held_out}", thousands(n as u64));
    }
    let mut listed: Vec<Value> = Vec::new();
    for (name, scores) in others {
        for (metric, value) in scores {
            report.metrics.insert(format!("{name}/{metric}"), value);
            listed.push(json!({ "evaluation": name, "metric": metric, "value": value }));
        }
    }
    let n = listed.len();
    let columns = [("evaluation", "evaluation"), ("metric", "metric"), ("value", "value")];
    report.list("evaluations", listed, &columns, n);
    let remark = remark(task, &report.metrics);
    report.value("no_better_than_words", remark.is_some());
    let lines = [std::mem::take(&mut report.footnote)].into_iter().chain(remark);
    report.footnote = lines.collect::<Vec<_>>().join("\n");
    Ok(report)
}

/// A line for the user, if a model with these `metrics` is no better than the words in common.
pub(super) fn remark(task: &Embed, metrics: &BTreeMap<String, f64>) -> Option<String> {
    let (metric, value) =
        ["mrr@10", "spearman"].into_iter().find_map(|name| Some((name, *metrics.get(name)?)))?;
    let of_words = of_words(task);
    let of_words = of_words.iter().find(|(name, _)| *name == metric)?.1;
    (value <= of_words).then(|| {
        format!("no better than counting the words that two texts have in common: {metric} {of_words:.4}")
    })
}

/// The scores of the share of words that two texts have in common (Jaccard 1901).
fn of_words(task: &Embed) -> &Named {
    task.of_words.get_or_init(|| {
        let plain = |place: usize| &*task.data.texts[place].plain;
        let Some(pairs) = &task.data.pairs else {
            return of_labels(task, |a, b| in_common(&words(plain(a)), &words(plain(b))));
        };
        let index = WordIndex::new(pairs.documents.iter().map(|&document| plain(document)));
        let ranked = pairs.ranked(|query| {
            let mut scores = index.in_common(plain(pairs.queries[query]));
            leave_out_own(task, pairs, query, &mut scores);
            Ok(scores)
        });
        ranked.map_or_else(|_| Vec::new(), |ranked| metrics(&ranked))
    })
}

/// The expected scores of the best possible model: among k documents that fit as well, the r right ones have every order
/// with the same probability. Nothing where that is not known.
fn best_possible(task: &Embed) -> Named {
    let (Some(pairs), Some(n_fitting)) = (&task.data.pairs, &task.data.n_fitting) else {
        return Vec::new();
    };
    let both = pairs.queries.iter().zip(&pairs.relevant);
    let of_query: Vec<(usize, usize)> = both
        .map(|(query, relevant)| (n_fitting.get(query).copied().unwrap_or(1), relevant.len()))
        .collect();
    let named = Expected::mean(&of_query).into_iter();
    named.map(|(name, value)| (if name == "map" { "map@100" } else { name }, value)).collect()
}

/// Adds the queries whose right document has the worst rank.
fn add_mistakes(
    task: &Embed,
    pairs: &Retrieval,
    vectors: &Vectors,
    report: &mut Report,
) -> Result<()> {
    let cosines = cosines(pairs, vectors)?;
    let mut mistakes: Vec<(usize, Value)> = Vec::new();
    for (query, relevant) in pairs.relevant.iter().enumerate() {
        let mut scores = cosines(query)?;
        leave_out_own(task, pairs, query, &mut scores);
        // Of equal scores the earlier comes first.
        let is_before =
            |a: usize, b: usize| scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
        let best = |places: &mut dyn Iterator<Item = usize>| {
            places.reduce(|best, at| if is_before(at, best) { at } else { best })
        };
        let answer = best(&mut relevant.keys().copied());
        let Some((answer, nearest)) = answer.zip(best(&mut (0..scores.len()))) else { continue };
        let rank = (0..scores.len()).filter(|&at| is_before(at, answer)).count();
        if rank == 0 {
            continue;
        }
        let text = |place: usize| shortened(&task.data.texts[place].plain);
        mistakes.push((
            rank,
            json!({
                "query": text(pairs.queries[query]),
                "right": text(pairs.documents[answer]),
                "rank": rank + 1,
                "nearest": text(pairs.documents[nearest]),
            }),
        ));
    }
    mistakes.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    let listed = mistakes.into_iter().map(|(_, mistake)| mistake).take(N_MISTAKES).collect();
    let columns = [
        ("worst found", "query"),
        ("answer", "right"),
        ("its rank", "rank"),
        ("nearest", "nearest"),
    ];
    report.list("mistakes", listed, &columns, N_SHOWN);
    Ok(())
}

/// The nearest of the first documents to each of the first queries; nothing of rows with labels.
pub(super) fn samples(task: &Embed, model: &Model) -> Result<Vec<Sample>> {
    let Some(pairs) = &task.data.pairs else { return Ok(Vec::new()) };
    let (queries, documents) = (first(&pairs.queries, N_SAMPLES), first(&pairs.documents, AMONG));
    let places: BTreeSet<usize> = queries.iter().chain(documents).copied().collect();
    let vectors = task.unit_vectors(model, &places.into_iter().collect::<Vec<_>>())?;
    let text = |place: usize| task.data.texts[place].plain.clone();
    let sample = |(query, &place): (usize, &usize)| {
        let cosines = documents.iter().map(|&at| vectors.cosine(place, at) as f32);
        let mut cosines: Vec<f32> = cosines.collect();
        leave_out_own(task, pairs, query, &mut cosines);
        let nearest = highest(&cosines, 1);
        let relevant = &pairs.relevant[query];
        Sample {
            input: text(place),
            is_right: Some(nearest.iter().all(|at| relevant.contains_key(at))),
            truth: relevant.keys().take(1).map(|&at| text(pairs.documents[at])).collect(),
            text: nearest.first().map(|&at| text(documents[at])),
            ..Sample::default()
        }
    };
    Ok(queries.iter().enumerate().map(sample).collect())
}

fn first(places: &[usize], n: usize) -> &[usize] {
    &places[..n.min(places.len())]
}
