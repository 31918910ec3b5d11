//! The sentences of both splits as token ids, with the tags of their words.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use super::config::Config;
use super::remarks::remarks;
use super::rows::{Encoded, Row, Rows, check_types, encode, of_words, without_loss};
use super::splits::Splits;
use crate::data::DataFile;
use crate::data::tags::scheme::{Entity, OUTSIDE, Scheme};
use crate::data::text::corpus::Origin;
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::inference::labels::{Labels, Objective};
use crate::inference::tagger::content_len;
use crate::task::parts::{PATH, Parts};
use crate::task::text::{kept_or_trained, tokenizer_file};

/// A held-out sentence.
#[derive(Clone, Debug)]
pub(super) struct HeldOut {
    pub(super) text: String,
    /// The words, as they stand in the text.
    pub(super) words: Vec<String>,
    pub(super) tags: Vec<String>,
    /// The entities of the best possible tagger, of drawn sentences.
    pub(super) best: Option<Vec<Entity>>,
    pub(super) origin: Origin,
}

/// The rows of both splits, their tags and the tokenizer.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) train: Vec<Row>,
    /// Longest first, so that a batch holds little padding.
    pub(super) validation: Vec<Row>,
    /// The sentences of the latter, in the order of the file.
    pub(super) held_out: Vec<HeldOut>,
    /// By word: how often it has each tag in training.
    pub(super) lookup: BTreeMap<String, BTreeMap<String, u64>>,
    /// How many words of training have each tag.
    pub(super) frequencies: Vec<u64>,
    /// Sentences to train on.
    pub(super) n_train: usize,
    pub(super) labels: Labels,
    pub(super) scheme: Scheme,
    pub(super) tokenizer: Tokenizer,
    /// The files of the sentences and of the tokenizer.
    pub(super) files: Vec<DataFile>,
    /// What a user should know about the sentences, a line each.
    pub(super) remarks: Vec<String>,
}

impl Data {
    /// Reads or draws the sentences, and reads the tokenizer in `kept` or trains it.
    pub(super) fn new(
        config: &Config,
        seq_len: usize,
        seed: u64,
        kept: Option<&Path>,
    ) -> Result<Self> {
        let mut splits = Splits::new(config, seed)?;
        let of_sentences = remarks(splits.both());
        splits.parts.notes.extend(of_sentences);
        let [of_training, _] = splits.parts.forms;
        let of_file = match of_training {
            Some(Scheme::None) => Scheme::None,
            _ => Scheme::Iob2,
        };
        let of_labels = config.labels.as_ref().map(|labels| Scheme::of_labels(labels));
        let scheme = config.scheme.or(of_labels).unwrap_or(of_file);
        check_prefixes(config, of_training, scheme)?;
        let build = Build { config, scheme, seq_len, kept, labels: None };
        build.data(splits)
    }

    /// Reads the sentences to test a trained model on: [`Splits::to_test`]. Their tags and the tokenizer are those in `kept`
    /// or in the settings.
    pub(super) fn to_test(
        config: &Config,
        seq_len: usize,
        seed: u64,
        kept: Option<&Path>,
    ) -> Result<Self> {
        let labels = match (kept, &config.labels) {
            (_, Some(listed)) => Some(Labels::new(Objective::Classes, listed.clone())),
            (Some(run), None) => Some(Labels::read(run)?),
            (None, None) => None,
        };
        let splits = Splits::to_test(config, labels.as_ref().map(Labels::names), seed)?;
        let of_labels = labels.as_ref().map(|labels| Scheme::of_labels(labels.names()));
        let learnt = config.scheme.or(of_labels).unwrap_or(Scheme::Iob2);
        check_prefixes(config, splits.parts.forms[0], learnt)?;
        let build = Build { config, scheme: learnt, seq_len, kept, labels };
        build.data(splits)
    }

    /// Rows with the most likely tag of each word: of the predicted classes, in the order of the rows and their targets.
    pub(super) fn predicted(&self, classes: &[f64]) -> Vec<Vec<String>> {
        let n_words: usize = self.held_out.iter().map(|one| one.words.len()).sum();
        let mut tags = vec![OUTSIDE.to_owned(); n_words];
        let targets = self.validation.iter().flat_map(|row| &row.targets);
        for (target, &class) in targets.zip(classes) {
            tags[target.word].clone_from(&self.labels.names()[class as usize]);
        }
        let mut tags = tags.into_iter();
        self.held_out.iter().map(|one| tags.by_ref().take(one.words.len()).collect()).collect()
    }
}

/// What the rows are made with.
struct Build<'a> {
    config: &'a Config,
    /// The scheme that is learnt.
    scheme: Scheme,
    seq_len: usize,
    kept: Option<&'a Path>,
    /// Those of a trained model.
    labels: Option<Labels>,
}

impl Build<'_> {
    fn data(self, splits: Splits) -> Result<Data> {
        let Self { config, scheme, seq_len, kept, .. } = self;
        let texts = splits.parts.train.iter().map(|one| Ok(one.text()));
        let tokenizer = kept_or_trained(kept, &config.tokenizer, || Ok(texts))?;
        // A trained model reads words as its folder says.
        let tokenizer = if kept.is_some() { tokenizer } else { tokenizer.with_prefix_space()? };
        let encode = |(sentences, given)| encode(sentences, &tokenizer, given, scheme);
        let [train, held_out] = splits.both().map(encode);
        let (train, held_out) = (train?, held_out?);
        let Splits { parts, best } = splits;
        let Parts {
            train: trained_on, validation: tested_on, mut files, notes: mut remarks, ..
        } = parts;
        files.push(tokenizer_file(&tokenizer)?);
        remarks.extend(of_words(train.iter().chain(&held_out)));
        let labels = labels_of(&train, config, self.labels)?;
        for (sentences, encoded) in [(&trained_on, &train), (&tested_on, &held_out)] {
            check_types(&labels, sentences, encoded)?;
        }
        let classes = labels.by_name();
        remarks.extend(without_loss(&train, &classes));
        let frame = tokenizer.frame()?;
        let rows = Rows {
            config,
            frame: &frame,
            len: content_len(&frame, seq_len)?,
            classes: &classes,
            scheme,
        };
        let (lookup, frequencies) = counted(&train, &classes, labels.names().len());
        let n_train = train.len();
        let train: Vec<Row> = train.iter().flat_map(|one| rows.of(one, None)).collect();
        let validation = held_out_rows(&rows, &held_out);
        if train.is_empty() || validation.is_empty() {
            let message = format!("`{PATH}`: the tokenizer makes no token of the words");
            return Err(Error::config([PATH, "task.tokenizer"], message));
        }
        let mut best = best.into_iter();
        let held_out = held_out.into_iter().zip(tested_on);
        let held_out = held_out.map(|(encoded, sentence)| HeldOut {
            text: sentence.text(),
            words: encoded.words,
            tags: encoded.tags,
            best: best.next(),
            origin: sentence.origin,
        });
        Ok(Data {
            train,
            validation,
            held_out: held_out.collect(),
            lookup,
            frequencies,
            n_train,
            labels,
            scheme,
            tokenizer,
            files,
            remarks,
        })
    }
}

/// The rows of held-out sentences, the longest first. Their targets number the words of all sentences.
fn held_out_rows(rows: &Rows<'_>, sentences: &[Encoded]) -> Vec<Row> {
    let mut n_words = 0;
    let mut all: Vec<Row> = Vec::new();
    for one in sentences {
        all.extend(rows.of(one, Some(n_words)));
        n_words += one.words.len();
    }
    all.sort_by_key(|row| Reverse(row.ids.len()));
    all
}

/// The tags of the model's outputs: of a trained model, listed, or those of the training sentences.
///
/// # Errors
/// If there is one tag only.
fn labels_of(train: &[Encoded], config: &Config, trained: Option<Labels>) -> Result<Labels> {
    let given = train.iter().flat_map(|one| one.tags.iter().map(String::as_str));
    let labels = match (trained, &config.labels) {
        (Some(labels), _) => labels,
        (None, Some(listed)) => Labels::new(Objective::Classes, listed.clone()),
        (None, None) => Labels::from_given(Objective::Classes, given),
    };
    if labels.names().len() < 2 {
        let message = format!(
            "`{PATH}`: all words have the tag \"{}\", and there is nothing to tell apart",
            labels.names().first().map_or("", String::as_str)
        );
        return Err(Error::config([PATH], message));
    }
    Ok(labels)
}

/// How often each word has each tag, and how many words have each tag that the model has.
fn counted(
    train: &[Encoded],
    classes: &BTreeMap<&str, u32>,
    n_classes: usize,
) -> (BTreeMap<String, BTreeMap<String, u64>>, Vec<u64>) {
    let mut lookup: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut frequencies = vec![0; n_classes];
    for (word, tag) in train.iter().flat_map(|one| one.words.iter().zip(&one.tags)) {
        *lookup.entry(word.clone()).or_default().entry(tag.clone()).or_default() += 1;
        if let Some(&class) = classes.get(tag.as_str()) {
            frequencies[class as usize] += 1;
        }
    }
    (lookup, frequencies)
}

/// # Errors
/// If tags without prefixes should be learnt in a scheme that has them: they do not say where entities begin.
fn check_prefixes(config: &Config, given: Option<Scheme>, learnt: Scheme) -> Result<()> {
    if given != Some(Scheme::None) || learnt == Scheme::None {
        return Ok(());
    }
    let message = format!(
        "the tags that are learnt mark the ends of entities, and the tags of `{}` have no prefixes: `task.scheme` = \"none\" \
         learns them as they are",
        config.data.path.display()
    );
    Err(Error::config(["task.scheme", PATH], message))
}
