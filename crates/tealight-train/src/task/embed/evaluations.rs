//! Evaluations on other texts than those of training: pairs with scores, and queries with the documents that answer
//! them in the layout of BEIR (Thakur et al. 2021, <https://arxiv.org/abs/2104.08663>).
//!
//! ```text
//! folder/corpus.jsonl      {"_id": "d1", "title": "", "text": "…"}
//! folder/queries.jsonl     {"_id": "q1", "text": "…"}
//! folder/qrels/test.tsv    query-id  corpus-id  score        in columns between tabs, below such a heading
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::rows::word;
use crate::data::DataFile;
use crate::data::fingerprint::TextHash;
use crate::data::table::Table;
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::ranking::{Ranked, highest, mean};
use crate::task::scores::{pearson, spearman};

settings! {
    /// `[[task.similarity]]`
    pub struct SimilarityConfig {
        /// What its metrics begin with, as in `stsb/spearman`; the name of the file when absent.
        pub name: Option<String> = None,
        /// A table of pairs with scores.
        pub path: PathBuf = PathBuf::new(),
        /// The field or column of the first text.
        pub text: String = "text".to_owned(),
        /// The field or column of the second text.
        pub text_pair: String = "text_pair".to_owned(),
        /// The field or column of the score.
        pub label: String = "label".to_owned(),
    }

    /// `[[task.retrieval]]`
    pub struct RetrievalConfig {
        /// What its metrics begin with, as in `faq/ndcg@10`; the name of the folder when absent.
        pub name: Option<String> = None,
        /// A folder with `corpus.jsonl`, `queries.jsonl` and `qrels`.
        pub folder: PathBuf = PathBuf::new(),
        /// The file of `qrels` without its ending.
        pub split: String = "test".to_owned(),
    }
}

/// The settings of the files.
const SIMILARITY: &str = "task.similarity.path";
const RETRIEVAL: &str = "task.retrieval.folder";

/// Answers of which a query has this many at most.
const N_RANKED: usize = 100;

impl SimilarityConfig {
    /// What its metrics begin with.
    pub(super) fn name(&self) -> String {
        named(self.name.as_ref(), &self.path)
    }
}

impl RetrievalConfig {
    /// What its metrics begin with.
    pub(super) fn name(&self) -> String {
        named(self.name.as_ref(), &self.folder)
    }
}

fn named(name: Option<&String>, path: &Path) -> String {
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    name.cloned().unwrap_or_else(stem)
}

/// Pairs of texts, each with its score.
#[derive(Debug)]
pub(super) struct Similarity {
    pub(super) name: String,
    /// Places of texts.
    pub(super) pairs: Vec<[usize; 2]>,
    pub(super) labels: Vec<f64>,
}

/// Queries and documents, as places of texts.
#[derive(Debug)]
pub(super) struct Retrieval {
    pub(super) name: String,
    pub(super) queries: Vec<usize>,
    pub(super) documents: Vec<usize>,
    /// By query: the documents that answer it, as their places in `documents`, with how well they do.
    pub(super) relevant: Vec<BTreeMap<usize, f64>>,
}

/// The evaluations of a task, and the files that they are from.
#[derive(Debug, Default)]
pub(super) struct Evaluations {
    pub(super) similarity: Vec<Similarity>,
    pub(super) retrieval: Vec<Retrieval>,
    pub(super) files: Vec<DataFile>,
}

/// Whether a text is a query or a document, which have different prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Query,
    Document,
}

impl Evaluations {
    /// Reads the files. `place` is called with each text, and returns its place among all texts.
    pub(super) fn read(
        similarity: &[SimilarityConfig],
        retrieval: &[RetrievalConfig],
        mut place: impl FnMut(Role, &str) -> usize,
    ) -> Result<Self> {
        let mut read = Self::default();
        for config in similarity {
            read.add_similarity(config, &mut place)?;
        }
        for config in retrieval {
            read.add_retrieval(config, &mut place)?;
        }
        Ok(read)
    }

    fn add_similarity(
        &mut self,
        config: &SimilarityConfig,
        place: &mut impl FnMut(Role, &str) -> usize,
    ) -> Result<()> {
        let SimilarityConfig { path, text: first, text_pair: second, label, .. } = config;
        let table = Table::open(SIMILARITY, path)?;
        table.check_heading([first, second, label].map(String::as_str))?;
        let (mut broken, mut hash) = (table.broken(), TextHash::default());
        let (mut pairs, mut labels) = (Vec::new(), Vec::new());
        table.each(|origin, row| {
            let read = row.and_then(|cells| {
                let texts = [cells.filled_text(first)?, cells.filled_text(second)?];
                Ok((texts, cells.field(label)?.number(label, "a correlation")?))
            });
            if let Some((texts, score)) = broken.row(&origin, read) {
                for text in &texts {
                    hash.add(text);
                }
                hash.add(&score.to_string());
                pairs.push(texts.map(|text| place(Role::Query, &text)));
                labels.push(score);
            }
            Ok(())
        })?;
        broken.check("")?;
        if pairs.len() < 2 {
            let message = format!(
                "`{SIMILARITY}` = `{}` has {} pairs: a correlation needs two",
                path.display(),
                pairs.len()
            );
            return Err(Error::config([SIMILARITY], message));
        }
        self.files.push(DataFile::new(SIMILARITY, path, hash.finish()));
        self.similarity.push(Similarity { name: config.name(), pairs, labels });
        Ok(())
    }

    fn add_retrieval(
        &mut self,
        config: &RetrievalConfig,
        place: &mut impl FnMut(Role, &str) -> usize,
    ) -> Result<()> {
        let folder = &config.folder;
        let mut hash = TextHash::default();
        let mut texts = |file: &str| texts(&folder.join(file), &mut hash);
        let (corpus, queries) = (texts("corpus.jsonl")?, texts("queries.jsonl")?);
        let judged = judgements(&folder.join(format!("qrels/{}.tsv", config.split)), &mut hash)?;
        let numbers: BTreeMap<&String, usize> = corpus.keys().zip(0..).collect();
        let mut retrieval = Retrieval {
            name: config.name(),
            queries: Vec::new(),
            documents: corpus.values().map(|text| place(Role::Document, text)).collect(),
            relevant: Vec::new(),
        };
        for (query, of_query) in &judged {
            let Some(text) = queries.get(query) else {
                return Err(unknown(folder, "query", query));
            };
            let mut relevant = BTreeMap::new();
            for (document, score) in of_query {
                let number = numbers.get(document);
                let number = number.ok_or_else(|| unknown(folder, "document", document))?;
                relevant.insert(*number, *score);
            }
            retrieval.queries.push(place(Role::Query, text));
            retrieval.relevant.push(relevant);
        }
        if retrieval.queries.is_empty() {
            let message =
                format!("`{RETRIEVAL}` = `{}`: no query has a document", folder.display());
            return Err(Error::config([RETRIEVAL], message));
        }
        self.files.push(DataFile::new(RETRIEVAL, folder, hash.finish()));
        self.retrieval.push(retrieval);
        Ok(())
    }
}

/// The texts of the file at `path` by their `_id`, each behind its title.
fn texts(path: &Path, hash: &mut TextHash) -> Result<BTreeMap<String, String>> {
    let table = Table::open(RETRIEVAL, path)?;
    let (mut broken, mut all) = (table.broken(), BTreeMap::new());
    table.each(|origin, row| {
        let read = row.and_then(|cells| {
            let title = cells.get("title").and_then(|_| cells.text("title").ok());
            let title = title.filter(|title| !title.trim().is_empty());
            let text = cells.text("text")?;
            let whole = title.map_or(text.clone(), |title| format!("{title} {text}"));
            Ok((word(cells, "_id")?, whole))
        });
        if let Some((id, whole)) = broken.row(&origin, read) {
            hash.add(&id);
            hash.add(&whole);
            if all.insert(id.clone(), whole).is_some() {
                return Err(origin.error(format!("the `_id` \"{id}\" is given twice")));
            }
        }
        Ok(())
    })?;
    broken.check("")?;
    Ok(all)
}

/// The documents of each query whose score is more than 0, as the file at `path` has them.
fn judgements(path: &Path, hash: &mut TextHash) -> Result<BTreeMap<String, BTreeMap<String, f64>>> {
    let table = Table::open(RETRIEVAL, path)?;
    table.check_heading(["query-id", "corpus-id", "score"])?;
    let (mut broken, mut judged) = (table.broken(), BTreeMap::<_, BTreeMap<_, _>>::new());
    table.each(|origin, row| {
        let read = row.and_then(|cells| {
            let score = cells.field("score")?.number("score", "a judgement")?;
            Ok((word(cells, "query-id")?, word(cells, "corpus-id")?, score))
        });
        if let Some((query, document, score)) = broken.row(&origin, read)
            && score > 0.
        {
            for part in [&query, &document, &score.to_string()] {
                hash.add(part);
            }
            judged.entry(query).or_default().insert(document, score);
        }
        Ok(())
    })?;
    broken.check("")?;
    Ok(judged)
}

fn unknown(folder: &Path, what: &str, id: &str) -> Error {
    let message = format!(
        "`{RETRIEVAL}` = `{}`: `qrels` name the {what} \"{id}\", which is in no file",
        folder.display()
    );
    Error::config([RETRIEVAL], message)
}

impl Similarity {
    /// The correlations of the labels with the cosines of the pairs.
    pub(super) fn scores(&self, cosine: impl Fn(usize, usize) -> f64) -> [(&'static str, f64); 2] {
        let cosines: Vec<f64> = self.pairs.iter().map(|&[a, b]| cosine(a, b)).collect();
        correlations(&self.labels, &cosines)
    }
}

/// Spearman's and Pearson's correlation of labels with cosines.
pub(super) fn correlations(labels: &[f64], cosines: &[f64]) -> [(&'static str, f64); 2] {
    [("spearman", spearman(labels, cosines)), ("pearson", pearson(labels, cosines))]
}

impl Retrieval {
    /// The metrics of the documents in the order of their cosines: `cosines` gives those of a query with all documents.
    pub(super) fn scores(
        &self,
        cosines: impl Fn(usize) -> Result<Vec<f32>>,
    ) -> Result<Vec<(&'static str, f64)>> {
        Ok(metrics(&self.ranked(cosines)?))
    }

    /// The best documents of each query.
    pub(super) fn ranked(
        &self,
        cosines: impl Fn(usize) -> Result<Vec<f32>>,
    ) -> Result<Vec<Ranked>> {
        let ranked = |(query, relevant): (usize, &BTreeMap<usize, f64>)| {
            let first = highest(&cosines(query)?, N_RANKED);
            let gains = first.iter().map(|at| relevant.get(at).copied().unwrap_or(0.)).collect();
            Ok(Ranked { gains, relevant: relevant.values().copied().collect() })
        };
        self.relevant.iter().enumerate().map(ranked).collect()
    }
}

/// The metrics of ranked documents.
pub(super) fn metrics(ranked: &[Ranked]) -> Vec<(&'static str, f64)> {
    vec![
        ("accuracy", mean(ranked, Ranked::accuracy)),
        ("mrr@10", mean(ranked, |one| one.reciprocal_rank(10))),
        ("ndcg@10", mean(ranked, |one| one.ndcg(10))),
        ("recall@10", mean(ranked, |one| one.recall(10))),
        ("map@100", mean(ranked, |one| one.average_precision(N_RANKED))),
    ]
}

/// Pairs without scores as queries and documents: each different anchor looks for its positives among all texts that are
/// positives or negatives. Rows of a group have the positives of all of it.
pub(super) fn of_pairs<'a>(
    name: &str,
    rows: impl Iterator<Item = (usize, usize, &'a [usize], Option<usize>)> + Clone,
) -> Retrieval {
    let mut documents: Vec<usize> = Vec::new();
    let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
    for (_, positive, negatives, _) in rows.clone() {
        for &text in [positive].iter().chain(negatives) {
            numbers.entry(text).or_insert_with(|| {
                documents.push(text);
                documents.len() - 1
            });
        }
    }
    let mut of_group: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (_, positive, _, group) in rows.clone() {
        if let Some(group) = group {
            of_group.entry(group).or_default().insert(numbers[&positive]);
        }
    }
    let mut queries: Vec<usize> = Vec::new();
    let mut relevant: Vec<BTreeMap<usize, f64>> = Vec::new();
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    for (anchor, positive, _, group) in rows {
        let at = *places.entry(anchor).or_insert_with(|| {
            queries.push(anchor);
            relevant.push(BTreeMap::new());
            queries.len() - 1
        });
        relevant[at].insert(numbers[&positive], 1.);
        let others = group.and_then(|group| of_group.get(&group)).into_iter().flatten();
        relevant[at].extend(others.map(|&number| (number, 1.)));
    }
    Retrieval { name: name.to_owned(), queries, documents, relevant }
}
