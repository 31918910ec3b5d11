//! The rows of both splits as token ids, and the texts of evaluations.

use std::collections::BTreeMap;
use std::path::Path;

use tealight_ops::rng::Stream;

use super::config::Config;
use super::evaluations::{Evaluations, Retrieval, Role, of_pairs};
use super::remarks::remarks;
use super::rows::{Row, read};
use super::source::{DataConfig, Generated};
use crate::data::DataFile;
use crate::data::fingerprint::TextHash;
use crate::data::paraphrases::{FAMILY, MAX_HELD_OUT, Paraphrase, paraphrases};
use crate::data::text::corpus::Origin;
use crate::data::text::tokenizer::{Side, Tokenizer, Truncated};
use crate::error::{Error, Result};
use crate::task::parts::{Files, Parts, Read, Source, parts, test_parts};
use crate::task::table::thousands;
use crate::task::text::{kept_or_trained, tokenizer_file};

/// A text with its prompt.
#[derive(Debug)]
pub(super) struct Text {
    /// As the user has it.
    pub(super) plain: String,
    /// With the special tokens of the template.
    pub(super) ids: Vec<u32>,
    /// The number of the text without its prompt: equal numbers are equal texts.
    pub(super) source: usize,
}

/// A row, as places of texts.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) anchor: usize,
    pub(super) positive: usize,
    pub(super) negatives: Vec<usize>,
    pub(super) label: Option<f64>,
    pub(super) group: Option<usize>,
}

/// The rows of both splits, their texts and the tokenizer.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) texts: Vec<Text>,
    pub(super) train: Vec<Item>,
    pub(super) validation: Vec<Item>,
    /// The held-out pairs as queries and documents; `None` of rows with labels, and where each text is its own positive.
    pub(super) pairs: Option<Retrieval>,
    /// By the place of a query of these: how many documents fit it as well, of drawn pairs.
    pub(super) n_fitting: Option<BTreeMap<usize, usize>>,
    pub(super) evaluations: Evaluations,
    pub(super) tokenizer: Tokenizer,
    /// The files of the rows, of the evaluations and of the tokenizer.
    pub(super) files: Vec<DataFile>,
    /// Whether all are held out, as in a test.
    pub(super) is_test: bool,
    /// What a user should know about the rows, a line each.
    pub(super) remarks: Vec<String>,
}

impl Data {
    /// Reads or draws the rows, and reads the tokenizer in `kept` or trains it. All rows are held out in a test.
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
        let of_training = train.iter().flat_map(|row| {
            [&row.anchor, &row.positive]
                .into_iter()
                .chain(&row.negatives)
                .map(|text| Ok(text.clone()))
        });
        let tokenizer = kept_or_trained(kept, &config.tokenizer, || Ok(of_training))?;
        let mut places = Places::new(config);
        let [train_items, held_out] = [&train, &validation]
            .map(|rows| rows.iter().map(|row| places.item(row)).collect::<Vec<_>>());
        // A test scores its own rows alone.
        let (similarity, retrieval): (&[_], &[_]) =
            if is_test { (&[], &[]) } else { (&config.similarity, &config.retrieval) };
        let evaluations =
            Evaluations::read(similarity, retrieval, |role, text| places.place(role, text))?;
        let (texts, truncated) = places.encode(&tokenizer, seq_len)?;
        let pairs =
            (!config.wanted().wants.has_labels() && !config.data.self_positive).then(|| {
                of_pairs(
                    "validation",
                    held_out
                        .iter()
                        .map(|item| (item.anchor, item.positive, &*item.negatives, item.group)),
                )
            });
        files.extend(evaluations.files.iter().cloned());
        files.push(tokenizer_file(&tokenizer)?);
        let of_rows = train.iter().chain(validation.iter().filter(|_| !is_test));
        let of_rows = remarks(&of_rows.collect::<Vec<_>>());
        let n_fitting =
            n_fitting.map(|all| held_out.iter().map(|item| item.anchor).zip(all).collect());
        Ok(Self {
            is_test,
            texts,
            train: train_items,
            validation: held_out,
            n_fitting,
            pairs,
            evaluations,
            tokenizer,
            files,
            remarks: notes.into_iter().chain(of_rows).chain(truncated).collect(),
        })
    }
}

/// Different texts with their prompts, and their places.
struct Places<'a> {
    config: &'a Config,
    prompted: Vec<String>,
    /// Without their prompts, and the numbers of these.
    texts: Vec<(String, usize)>,
    of_prompted: BTreeMap<String, usize>,
    sources: BTreeMap<String, usize>,
    groups: BTreeMap<String, usize>,
}

impl<'a> Places<'a> {
    fn new(config: &'a Config) -> Self {
        Self {
            config,
            prompted: Vec::new(),
            texts: Vec::new(),
            of_prompted: BTreeMap::new(),
            sources: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    fn place(&mut self, role: Role, text: &str) -> usize {
        let prompt = match role {
            Role::Query => &self.config.prompts.query,
            Role::Document => &self.config.prompts.document,
        };
        let prompted = format!("{prompt}{text}");
        if let Some(&place) = self.of_prompted.get(&prompted) {
            return place;
        }
        let source = number(&mut self.sources, text);
        self.texts.push((text.to_owned(), source));
        self.prompted.push(prompted.clone());
        self.of_prompted.insert(prompted, self.prompted.len() - 1);
        self.prompted.len() - 1
    }

    fn item(&mut self, row: &Row) -> Item {
        Item {
            anchor: self.place(Role::Query, &row.anchor),
            positive: self.place(Role::Document, &row.positive),
            negatives: row.negatives.iter().map(|text| self.place(Role::Document, text)).collect(),
            label: row.label,
            group: row.group.as_ref().map(|group| number(&mut self.groups, group)),
        }
    }

    /// The texts as token ids, and how many lose their ends.
    ///
    /// # Errors
    /// If `seq_len` leaves no room for a text, or if one has no tokens.
    fn encode(self, tokenizer: &Tokenizer, seq_len: usize) -> Result<(Vec<Text>, Option<String>)> {
        let n_special = tokenizer.n_added();
        if seq_len <= n_special {
            let message = format!(
                "`task.seq_len` = {seq_len} leaves no room for a text: the tokenizer adds {n_special} special tokens"
            );
            return Err(Error::config(["task.seq_len"], message));
        }
        let encoded = tokenizer.encode_all_truncated(&self.prompted, seq_len, Side::Right)?;
        if let Some(at) = encoded.iter().position(|text| text.ids.is_empty()) {
            let rule = "the tokenizer makes no token of it, and adds none";
            return Err(Error::text(&self.prompted[at], rule));
        }
        let n_truncated = encoded.iter().filter(|text| text.is_truncated).count();
        let truncated = (n_truncated > 0).then(|| {
            format!(
                "{} of {} texts are longer than `task.seq_len` = {seq_len} tokens, and lose their ends",
                thousands(n_truncated as u64),
                thousands(encoded.len() as u64)
            )
        });
        let texts = self.texts.into_iter().zip(encoded);
        let texts =
            texts.map(|((plain, source), Truncated { ids, .. })| Text { plain, ids, source });
        Ok((texts.collect(), truncated))
    }
}

/// The number of a text: that of the first equal one.
fn number(numbers: &mut BTreeMap<String, usize>, text: &str) -> usize {
    let next = numbers.len();
    *numbers.entry(text.to_owned()).or_insert(next)
}

impl Source for Config {
    const TASK: &'static str = "embed";
    const EXAMPLES: &'static str = "rows";
    const RULE: &'static str =
        ", as copies and, without labels, rows with a text in common are on one side";
    type Example = Row;
    type Form = ();

    fn files(&self) -> Files<'_> {
        let DataConfig { path, validation_path, validation, test, .. } = &self.data;
        Files::new(path, validation_path.as_ref(), *validation, *test)
    }

    fn read(&self, key: &'static str, path: &Path) -> Result<Read<Row>> {
        read(key, path, self.wanted())
    }

    /// Of its texts, each behind its length, and its labels.
    fn fingerprint(&self, key: &str, path: &Path, rows: &[Row]) -> DataFile {
        let mut hash = TextHash::default();
        for Row { anchor, positive, negatives, label, group, .. } in rows {
            hash.add(&format!("{} negatives", negatives.len()));
            [anchor, positive]
                .into_iter()
                .chain(negatives)
                .chain(group)
                .for_each(|text| hash.add(text));
            hash.add(&label.map_or_else(String::new, |label| label.to_string()));
        }
        DataFile::new(key, path, hash.finish())
    }

    /// Of pairs without labels, those with a text or a group in common are on one side; of labelled ones, copies.
    fn held_out(&self, rows: &[Row], share: f64, stream: Stream) -> Vec<bool> {
        if self.wanted().wants.has_labels() {
            let place = |row: &Row| {
                let mut texts = [&row.anchor, &row.positive];
                texts.sort();
                texts.iter().fold(stream, |stream, text| stream.fork_name(text)).uniform(0)
            };
            return rows.iter().map(|row| place(row) < share).collect();
        }
        let place = |first: usize| stream.fork_name(&rows[first].anchor).uniform(0);
        connected(rows).into_iter().map(|first| place(first) < share).collect()
    }

    fn identity(&self, row: &Row) -> Option<String> {
        Some(format!("{}\n{}", row.anchor, row.positive))
    }
}

/// Pairs of paraphrases, and how many second texts fit the first of each held-out one as well.
fn drawn(n: usize, seed: u64) -> (Parts<Row>, Option<Vec<usize>>) {
    let pairs = |is_held_out, n| paraphrases(seed, is_held_out, n);
    let row = |(line, Paraphrase { first, second, .. }): (u64, Paraphrase)| Row {
        anchor: first,
        positive: second,
        negatives: Vec::new(),
        label: None,
        group: None,
        origin: Origin { path: Path::new("paraphrases").into(), line },
    };
    // Whole families, of which all second sentences are there.
    let n_held_out = (n / 5).next_multiple_of(FAMILY).min(MAX_HELD_OUT);
    let held_out = pairs(true, n_held_out);
    let n_fitting = held_out.iter().map(|one| if one.is_certain { 1 } else { FAMILY });
    let n_fitting = Some(n_fitting.collect());
    let train = (1..).zip(pairs(false, n)).map(row).collect();
    (Parts::drawn(train, (1..).zip(held_out).map(row).collect(), ()), n_fitting)
}

/// By row: the first row that it is connected with, by texts and groups in common.
fn connected(rows: &[Row]) -> Vec<usize> {
    fn root(parents: &mut [usize], mut row: usize) -> usize {
        while parents[row] != row {
            parents[row] = parents[parents[row]];
            row = parents[row];
        }
        row
    }
    let mut parents: Vec<usize> = (0..rows.len()).collect();
    let mut first: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        let texts = [&row.anchor, &row.positive].map(|text| (false, &**text));
        let group = row.group.as_deref().map(|group| (true, group));
        for key in texts.into_iter().chain(group) {
            let other = *first.entry(key).or_insert(at);
            let (a, b) = (root(&mut parents, at), root(&mut parents, other));
            parents[a.max(b)] = a.min(b);
        }
    }
    (0..rows.len()).map(|row| root(&mut parents, row)).collect()
}
