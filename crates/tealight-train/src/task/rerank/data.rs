//! The queries of both splits, and their pairs as token ids.

use std::path::Path;

use rayon::prelude::*;
use tealight_ops::rng::{Purpose, Stream};

use super::config::{Config, remarks};
use super::loss::Passages;
use super::rows::{List, Passage, read};
use super::source::{DataConfig, Generated};
use crate::data::DataFile;
use crate::data::fingerprint::TextHash;
use crate::data::paraphrases::{FAMILY, MAX_HELD_OUT, Paraphrase, paraphrases};
use crate::data::text::corpus::Origin;
use crate::error::Result;
use crate::inference::text_classifier::Text;
use crate::inference::text_classifier::encoder::{Encoder, Tokens};
use crate::task::parts::{Files, Parts, Read, Source, parts, test_parts};
use crate::task::table::thousands;
use crate::task::text::{kept_or_trained, tokenizer_file};

/// Passages of a drawn query besides those of its family.
const N_OTHERS: usize = 4;

/// A query with its passages, as pairs of token ids.
#[derive(Clone, Debug)]
pub(super) struct Example {
    pub(super) pairs: Vec<Tokens>,
    pub(super) labels: Vec<f32>,
}

/// The queries of both splits and what reads them.
#[derive(Debug)]
pub(super) struct Data {
    /// Of so many passages as the loss takes.
    pub(super) train: Vec<Example>,
    pub(super) validation: Vec<Example>,
    /// The held-out queries, in the same order.
    pub(super) held_out: Vec<List>,
    /// By held-out query: how many passages fit as well as the right one, of drawn queries.
    pub(super) n_fitting: Option<Vec<usize>>,
    pub(super) encoder: Encoder,
    pub(super) files: Vec<DataFile>,
    /// Whether all are held out, as in a test.
    pub(super) is_test: bool,
    /// What a user should know about the queries, a line each.
    pub(super) remarks: Vec<String>,
}

impl Data {
    /// Reads or draws the queries, and reads the tokenizer in `kept` or trains it. All queries are held out in a test.
    pub(super) fn new(
        config: &Config,
        seq_len: usize,
        seed: u64,
        kept: Option<&Path>,
        is_test: bool,
    ) -> Result<Self> {
        let (parts, n_fitting) = match config.data.generated {
            Some(Generated::Paraphrases) => drawn(config.data.n_generated, seed),
            None if is_test => (test_parts(config, seed)?, None),
            None => (parts(config, seed)?, None),
        };
        let Parts { train, validation, mut files, notes, .. } = parts;
        let texts = train.iter().flat_map(|list| {
            let passages = list.passages.iter().map(|passage| &passage.text);
            [&list.query].into_iter().chain(passages).map(|text| Ok(text.clone()))
        });
        let tokenizer = kept_or_trained(kept, &config.tokenizer, || Ok(texts))?;
        files.push(tokenizer_file(&tokenizer)?);
        let encoder = Encoder::new(tokenizer, seq_len, config.n_token_types)?;
        encoder.check_pairs()?;
        let encode = |lists: &[List]| -> Result<Vec<Example>> {
            let encoded = lists.par_iter().map(|list| encoded(&encoder, list));
            encoded.collect::<Vec<_>>().into_iter().collect()
        };
        let held_out = encode(&validation)?;
        let truncated = validation.par_iter().chain(&train).map(|list| n_truncated(&encoder, list));
        let n_truncated: usize = truncated.sum();
        let truncated = (n_truncated > 0).then(|| {
            format!(
                "{} queries with their passages are longer than `task.seq_len` = {seq_len} tokens: the longer text loses \
                 its end",
                thousands(n_truncated as u64)
            )
        });
        let passages = config.loss.settings().passages();
        let examples = encode(&train)?.into_iter();
        let examples =
            examples.flat_map(|one| examples_of(one, passages, config.data.max_passages));
        let of_lists = remarks(if is_test { &validation } else { &train });
        Ok(Self {
            is_test,
            train: examples.collect(),
            validation: held_out,
            held_out: validation,
            n_fitting,
            encoder,
            files,
            remarks: notes.into_iter().chain(of_lists).chain(truncated).collect(),
        })
    }
}

fn pair(list: &List, passage: &Passage) -> Text {
    Text { text: list.query.clone(), text_pair: Some(passage.text.clone()) }
}

fn encoded(encoder: &Encoder, list: &List) -> Result<Example> {
    let pairs = list.passages.iter().map(|passage| encoder.encode(&pair(list, passage)));
    let labels = list.passages.iter().map(|passage| passage.label as f32);
    Ok(Example { pairs: pairs.collect::<Result<_>>()?, labels: labels.collect() })
}

/// The passages of a query that are truncated.
fn n_truncated(encoder: &Encoder, list: &List) -> usize {
    let is_truncated =
        |passage: &&Passage| encoder.truncates(&pair(list, passage)).unwrap_or_default();
    list.passages.iter().filter(is_truncated).count()
}

/// The training examples of a query.
fn examples_of(
    Example { pairs, labels }: Example,
    passages: Passages,
    most: usize,
) -> Vec<Example> {
    match passages {
        Passages::One => {
            let both = pairs.into_iter().zip(labels);
            both.map(|(pair, label)| Example { pairs: vec![pair], labels: vec![label] }).collect()
        }
        Passages::Two => vec![Example { pairs, labels }],
        Passages::All => {
            let mut order: Vec<usize> = (0..labels.len()).collect();
            order.sort_by(|&a, &b| labels[b].total_cmp(&labels[a]));
            // Others keep half of the places at least.
            let n_best = order.iter().filter(|&&at| labels[at] == labels[order[0]]).count();
            let others = order.split_off(n_best);
            order.truncate(most - others.len().min(most / 2));
            order.extend(others);
            order.truncate(most);
            let pairs = order.iter().map(|&at| pairs[at].clone()).collect();
            let labels: Vec<f32> = order.iter().map(|&at| labels[at]).collect();
            // Of equal labels there is nothing to learn.
            let differ = labels.first() != labels.last();
            if differ { vec![Example { pairs, labels }] } else { Vec::new() }
        }
    }
}

impl Source for Config {
    const TASK: &'static str = "rerank";
    const EXAMPLES: &'static str = "queries";
    type Example = List;
    type Form = ();

    fn files(&self) -> Files<'_> {
        let DataConfig { path, validation_path, validation, test, .. } = &self.data;
        Files::new(path, validation_path.as_ref(), *validation, *test)
    }

    fn read(&self, key: &'static str, path: &Path) -> Result<Read<List>> {
        read(key, path, self.wanted())
    }

    /// Of its texts, each behind its length, and its labels.
    fn fingerprint(&self, key: &str, path: &Path, lists: &[List]) -> DataFile {
        let mut hash = TextHash::default();
        for List { query, passages, .. } in lists {
            hash.add(query);
            for Passage { text, label } in passages {
                hash.add(text);
                hash.add(&label.to_string());
            }
        }
        DataFile::new(key, path, hash.finish())
    }

    /// By a hash of their text.
    fn held_out(&self, lists: &[List], share: f64, stream: Stream) -> Vec<bool> {
        lists.iter().map(|list| stream.fork_name(&list.query).uniform(0) < share).collect()
    }

    fn identity(&self, list: &List) -> Option<String> {
        Some(list.query.clone())
    }
}

/// Each first sentence of a pair with the second sentences of its family, and of others; and how many passages fit each
/// held-out query as well as the right one.
fn drawn(n: usize, seed: u64) -> (Parts<List>, Option<Vec<usize>>) {
    let lists = |is_held_out: bool, n: usize| {
        let which = if is_held_out { "lists, held out" } else { "lists" };
        let stream = Stream::new(seed, Purpose::Data).fork_name(which);
        let pairs = paraphrases(seed, is_held_out, n);
        let list = |at: usize| {
            let first = at - at % FAMILY;
            let own = first..first + FAMILY;
            let far = n - FAMILY;
            let others = (0..N_OTHERS as u64).map(|draw| {
                let place = stream.fork(at as u64).below(draw, far as u64) as usize;
                if place < first { place } else { place + FAMILY }
            });
            let passages = own.chain(others).map(|other| Passage {
                text: pairs[other].second.clone(),
                label: f64::from(u8::from(other == at)),
            });
            let mut passages: Vec<Passage> = passages.collect();
            let order = stream.fork(at as u64).fork_name("order").permutation(passages.len());
            passages = order.into_iter().map(|place| passages[place].clone()).collect();
            let origin = Origin { path: Path::new("paraphrases").into(), line: at as u64 + 1 };
            List { query: pairs[at].first.clone(), passages, origin }
        };
        let n_fitting =
            pairs.iter().map(|Paraphrase { is_certain, .. }| if *is_certain { 1 } else { FAMILY });
        (n_fitting.collect::<Vec<_>>(), (0..n).map(list).collect::<Vec<_>>())
    };
    let whole = |n: usize| n.next_multiple_of(FAMILY).max(2 * FAMILY);
    let (n_fitting, validation) = lists(true, whole(n / 5).min(MAX_HELD_OUT));
    let (_, train) = lists(false, whole(n));
    (Parts::drawn(train, validation, ()), Some(n_fitting))
}
