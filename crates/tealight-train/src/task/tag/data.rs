//! The sentences of both splits as token ids, with the tags of their words.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rayon::prelude::*;
use tealight_ops::cross_entropy::IGNORE_INDEX;
use tealight_ops::rng::{Purpose, Stream};

use super::config::{Config, DataConfig, Generated, PATH, SubWords};
use super::remarks::remarks;
use crate::data::DataFile;
use crate::data::fingerprint::fnv_1a;
use crate::data::tags::scheme::{Entity, OUTSIDE, Scheme, type_of};
use crate::data::tags::visits::Visits;
use crate::data::tags::{Content, Sentence, Sentences, read};
use crate::data::text::corpus::Origin;
use crate::data::text::tokenizer::{Frame, Tokenizer};
use crate::error::{Error, Result};
use crate::inference::labels::{Labels, Objective};
use crate::inference::tagger::content_len;
use crate::inference::tagger::pieces::{Piece, pieces};
use crate::inference::tagger::units::{Unit, units_of_text, units_of_words};
use crate::task::table::thousands;
use crate::task::text::{kept_or_trained, tokenizer_file};

const VALIDATION: &str = "task.data.validation";
const VALIDATION_PATH: &str = "task.data.validation_path";

/// A token with the tag of its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Its place in its row.
    pub(super) position: u32,
    /// The tag, or [`IGNORE_INDEX`] for one that the model does not have.
    pub(super) class: i64,
    /// The word of the held-out sentences, counted over all of them; 0 in training.
    pub(super) word: usize,
}

/// A piece of a sentence as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) ids: Vec<u32>,
    pub(super) targets: Vec<Target>,
}

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

/// A sentence as tokens, its words and their tags in the scheme that is learnt.
struct Encoded {
    ids: Vec<u32>,
    units: Vec<Unit>,
    words: Vec<String>,
    tags: Vec<String>,
    /// Entities whose ends are within a word, and that no word belongs to.
    n_rounded: usize,
    n_lost: usize,
}

/// Sentences of both splits.
struct Splits {
    train: Vec<Sentence>,
    validation: Vec<Sentence>,
    /// The entities of the best possible tagger for the latter; empty if they are not drawn.
    best: Vec<Vec<Entity>>,
    /// The schemes of their files.
    schemes: [Option<Scheme>; 2],
}

impl Splits {
    /// Sentences of both splits, each with its scheme.
    fn both(&self) -> [(&[Sentence], Option<Scheme>); 2] {
        [(&self.train, self.schemes[0]), (&self.validation, self.schemes[1])]
    }
}

impl Data {
    /// Reads or draws the sentences, and reads the tokenizer in `kept` or trains it.
    pub(super) fn new(
        config: &Config,
        seq_len: usize,
        seed: u64,
        kept: Option<&Path>,
    ) -> Result<Self> {
        let (splits, files, mut notes) = splits(config, seed)?;
        notes.extend(remarks(splits.both()));
        let of_file = match splits.schemes[0] {
            Some(Scheme::None) => Scheme::None,
            _ => Scheme::Iob2,
        };
        let of_labels = config.labels.as_ref().map(|labels| Scheme::of_labels(labels));
        let scheme = config.scheme.or(of_labels).unwrap_or(of_file);
        check_prefixes(config, splits.schemes[0], scheme)?;
        let build = Build { config, scheme, seq_len, kept, labels: None };
        build.data(splits, files, notes)
    }

    /// Reads the file of the training sentences to test a trained model on: all of them are held out. Its tags and its
    /// tokenizer are those in `kept` or in the settings.
    pub(super) fn to_test(config: &Config, seq_len: usize, kept: Option<&Path>) -> Result<Self> {
        let path = &config.data.path;
        let labels = match (kept, &config.labels) {
            (_, Some(listed)) => Some(Labels::new(Objective::Classes, listed.clone())),
            (Some(run), None) => Some(Labels::read(run)?),
            (None, None) => None,
        };
        let mut wanted = config.wanted();
        wanted.labels = labels.as_ref().map(Labels::names);
        let Sentences { all, scheme, notes } = read(PATH, path, &wanted, config.data.scheme)?;
        let files = vec![data_file(PATH, path, &all)];
        // The baselines, which learn from the training sentences, learn from these.
        let schemes = [scheme; 2];
        let splits = Splits { train: all.clone(), validation: all, best: Vec::new(), schemes };
        let of_labels = labels.as_ref().map(|labels| Scheme::of_labels(labels.names()));
        let learnt = config.scheme.or(of_labels).unwrap_or(Scheme::Iob2);
        check_prefixes(config, scheme, learnt)?;
        let build = Build { config, scheme: learnt, seq_len, kept, labels };
        build.data(splits, files, notes)
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

/// The sentences of both splits, the files that they are from, and what a user should know about these.
fn splits(config: &Config, seed: u64) -> Result<(Splits, Vec<DataFile>, Vec<String>)> {
    let DataConfig { path, generated, n_generated, validation_path, .. } = &config.data;
    if let Some(Generated::Visits) = generated {
        let train = Visits::new(seed, false, *n_generated).sentences;
        let Visits { sentences, best } = Visits::new(seed, true, n_generated / 5);
        let (train, validation) = (train.all, sentences.all);
        let splits = Splits { train, validation, best, schemes: [sentences.scheme; 2] };
        return Ok((splits, Vec::new(), Vec::new()));
    }
    let read_as = |key, path: &Path| read(key, path, &config.wanted(), config.data.scheme);
    let Sentences { all, scheme, mut notes } = read_as(PATH, path)?;
    let mut files = vec![data_file(PATH, path, &all)];
    let Some(other) = validation_path else {
        let (train, validation) = split(config.data.validation, all, seed)?;
        let splits = Splits { train, validation, best: Vec::new(), schemes: [scheme; 2] };
        return Ok((splits, files, notes));
    };
    let canonical = |path: &Path| path.canonicalize().map_err(Error::io("find", path));
    if other.exists() && canonical(path)? == canonical(other)? {
        let message = format!("`{VALIDATION_PATH}` is the file of `{PATH}`: it must be another");
        return Err(Error::config([VALIDATION_PATH, PATH], message));
    }
    let held_out = read_as(VALIDATION_PATH, other)?;
    let schemes = [scheme, held_out.scheme];
    if let [Some(one), Some(other)] = schemes
        && (one == Scheme::None) != (other == Scheme::None)
    {
        let message = format!(
            "the tags of `{VALIDATION_PATH}` and of `{PATH}` differ: those of one file have prefixes"
        );
        return Err(Error::config([VALIDATION_PATH, PATH], message));
    }
    files.push(data_file(VALIDATION_PATH, other, &held_out.all));
    notes.extend(held_out.notes);
    let splits = Splits { train: all, validation: held_out.all, best: Vec::new(), schemes };
    Ok((splits, files, notes))
}

/// Holds out a share of the documents, by a hash of their text; equal ones are on one side.
fn split(share: f64, all: Vec<Sentence>, seed: u64) -> Result<(Vec<Sentence>, Vec<Sentence>)> {
    let stream = Stream::new(seed, Purpose::Data).fork_name("tag");
    // A file without marks of documents is one document: then its sentences are divided.
    let has_documents = all.first().map(|one| one.document) != all.last().map(|one| one.document);
    let n = all.len();
    let mut places: BTreeMap<usize, Stream> = BTreeMap::new();
    for one in all.iter().filter(|_| has_documents) {
        let place = places.entry(one.document).or_insert(stream);
        *place = place.fork_name(&one.text());
    }
    let place = |one: &Sentence| match places.get(&one.document) {
        Some(place) => place.uniform(0),
        None => stream.fork_name(&one.text()).uniform(0),
    };
    let (validation, train): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| place(one) < share);
    if train.is_empty() || validation.is_empty() {
        let message = format!(
            "`{VALIDATION}` = {share} leaves {} of {n} sentences to train on and {} for validation",
            train.len(),
            validation.len()
        );
        return Err(Error::config([VALIDATION], message));
    }
    Ok((train, validation))
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
    fn data(
        self,
        splits: Splits,
        mut files: Vec<DataFile>,
        mut remarks: Vec<String>,
    ) -> Result<Data> {
        let Self { config, scheme, seq_len, kept, .. } = self;
        let texts = splits.train.iter().map(|one| Ok(one.text()));
        let tokenizer = kept_or_trained(kept, &config.tokenizer, || Ok(texts))?;
        // A trained model reads words as its folder says.
        let tokenizer = if kept.is_some() { tokenizer } else { tokenizer.with_prefix_space()? };
        files.push(tokenizer_file(&tokenizer)?);
        let encode = |(sentences, given): (&[Sentence], _)| -> Result<Vec<Encoded>> {
            let encoded = sentences.par_iter().map(|one| {
                encoded(one, &tokenizer, given, scheme)
                    .map_err(|error| one.origin.error(error.to_string()))
            });
            encoded.collect::<Vec<_>>().into_iter().collect()
        };
        let [train, held_out] = splits.both().map(encode);
        let (train, held_out) = (train?, held_out?);
        remarks.extend(of_words(train.iter().chain(&held_out)));
        let given = train.iter().flat_map(|one| one.tags.iter().map(String::as_str));
        let labels = match (self.labels, &config.labels) {
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
        for (sentences, encoded) in [(&splits.train, &train), (&splits.validation, &held_out)] {
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
        let mut frequencies = vec![0; labels.names().len()];
        let mut lookup: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for one in &train {
            for (word, tag) in one.words.iter().zip(&one.tags) {
                *lookup.entry(word.clone()).or_default().entry(tag.clone()).or_default() += 1;
                if let Some(&class) = classes.get(tag.as_str()) {
                    frequencies[class as usize] += 1;
                }
            }
        }
        let n_train = train.len();
        let train: Vec<Row> = train.iter().flat_map(|one| rows.of(one, None)).collect();
        let mut n_words = 0;
        let mut validation: Vec<Row> = Vec::new();
        for one in &held_out {
            validation.extend(rows.of(one, Some(n_words)));
            n_words += one.words.len();
        }
        validation.sort_by_key(|row| std::cmp::Reverse(row.ids.len()));
        if train.is_empty() || validation.is_empty() {
            let message = format!("`{PATH}`: the tokenizer makes no token of the words");
            return Err(Error::config([PATH, "task.tokenizer"], message));
        }
        let mut best = splits.best.into_iter();
        let held_out =
            held_out.into_iter().zip(splits.validation).map(|(encoded, sentence)| HeldOut {
                text: sentence.text(),
                words: encoded.words,
                tags: encoded.tags,
                best: best.next(),
                origin: sentence.origin,
            });
        let held_out = held_out.collect();
        Ok(Data {
            train,
            validation,
            held_out,
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

/// A sentence as tokens, whose tags are converted `from` the scheme of the file, if they have one, `to` that which is
/// learnt.
fn encoded(
    sentence: &Sentence,
    tokenizer: &Tokenizer,
    from: Option<Scheme>,
    to: Scheme,
) -> Result<Encoded> {
    match &sentence.content {
        Content::Words { words, tags } => {
            let placed = tokenizer.placed_words(words)?;
            let tags = match from.filter(|&from| from != to) {
                Some(from) => to.tags(&from.entities(tags), words.len()),
                None => tags.clone(),
            };
            let (units, ids) =
                (units_of_words(words.len(), &placed), placed.iter().map(|one| one.id));
            let (ids, words) = (ids.collect(), words.clone());
            Ok(Encoded { ids, units, words, tags, n_rounded: 0, n_lost: 0 })
        }
        Content::Text { text, entities } => {
            let placed = tokenizer.placed(text)?;
            let units = units_of_text(text, &placed);
            let chars: Vec<char> = text.chars().collect();
            let words: Vec<String> =
                units.iter().map(|unit| chars[unit.chars.clone()].iter().collect()).collect();
            let (mut found, mut n_rounded, mut n_lost) = (Vec::<Entity>::new(), 0, 0);
            for Entity { label, start, end } in entities {
                let touches = |unit: &&Unit| unit.chars.start < *end && unit.chars.end > *start;
                let first = units.iter().position(|unit| touches(&unit));
                let last = units.iter().rposition(|unit| touches(&unit));
                let after = found.last().map_or(0, |before| before.end);
                match first.zip(last).map(|(first, last)| (first.max(after), last)) {
                    Some((first, last)) if first <= last => {
                        let of_units = units[first].chars.start..units[last].chars.end;
                        n_rounded += usize::from(of_units != (*start..*end));
                        found.push(Entity { label: label.clone(), start: first, end: last + 1 });
                    }
                    _ => n_lost += 1,
                }
            }
            let (tags, ids) =
                (to.tags(&found, units.len()), placed.iter().map(|one| one.id).collect());
            Ok(Encoded { ids, units, words, tags, n_rounded, n_lost })
        }
    }
}

/// How sentences become rows.
struct Rows<'a> {
    config: &'a Config,
    frame: &'a Frame,
    /// The most tokens of a row between special ones.
    len: usize,
    classes: &'a BTreeMap<&'a str, u32>,
    scheme: Scheme,
}

impl Rows<'_> {
    /// The rows of a sentence: held out, with the number of its first word among all, or to train on.
    fn of(&self, sentence: &Encoded, held_out: Option<usize>) -> Vec<Row> {
        let Self { config, frame, len, scheme, .. } = *self;
        let class =
            |tag: &str| self.classes.get(tag).map_or(IGNORE_INDEX, |&class| i64::from(class));
        let stride = config.stride.min(len - 1);
        let trains_all = held_out.is_none() && config.sub_words == SubWords::All;
        let pieces = pieces(sentence.ids.len(), len, stride).into_iter();
        let row = |piece: Piece| {
            let mut targets = Vec::new();
            for (word, (unit, tag)) in sentence.units.iter().zip(&sentence.tags).enumerate() {
                let n = if trains_all { unit.tokens.len() } else { unit.tokens.len().min(1) };
                for at in unit.tokens.start..unit.tokens.start + n {
                    if !piece.owned.contains(&at) {
                        continue;
                    }
                    let is_first = at == unit.tokens.start;
                    let continued = || {
                        let continued = class(&scheme.continued(tag));
                        if continued == IGNORE_INDEX { class(tag) } else { continued }
                    };
                    targets.push(Target {
                        position: (at - piece.tokens.start + frame.opening.len()) as u32,
                        class: if is_first { class(tag) } else { continued() },
                        word: held_out.map_or(0, |first| first + word),
                    });
                }
            }
            Row { ids: frame.around(sentence.ids[piece.tokens].iter().copied()), targets }
        };
        pieces.map(row).collect()
    }
}

/// # Errors
/// If a tag is of a type that no label has: the first with its place, and the types that are known.
fn check_types(labels: &Labels, sentences: &[Sentence], encoded: &[Encoded]) -> Result<()> {
    let known: BTreeSet<Option<&str>> = labels.names().iter().map(|name| type_of(name)).collect();
    for (sentence, one) in sentences.iter().zip(encoded) {
        let unknown = one.tags.iter().position(|tag| !known.contains(&type_of(tag)));
        if let Some(at) = unknown {
            let shown: Vec<_> = labels.names().iter().map(|name| format!("\"{name}\"")).collect();
            return Err(sentence.origin.error(format!(
                "the word \"{}\" has the tag \"{}\", whose type the model does not have: its tags are {}",
                one.words[at].escape_debug(),
                one.tags[at].escape_debug(),
                shown.join(", ")
            )));
        }
    }
    Ok(())
}

/// The file with the fingerprint of its words and tags, or texts and entities, each behind its length.
fn data_file(key: &str, path: &Path, sentences: &[Sentence]) -> DataFile {
    let number = |n: usize| (n as u64).to_le_bytes();
    let mut bytes = Vec::new();
    let mut add = |text: &str| {
        bytes.extend_from_slice(&number(text.len()));
        bytes.extend_from_slice(text.as_bytes());
    };
    for Sentence { content, .. } in sentences {
        match content {
            Content::Words { words, tags } => {
                add(&format!("{} words", words.len()));
                words.iter().chain(tags).for_each(|text| add(text));
            }
            Content::Text { text, entities } => {
                add(&format!("{} entities", entities.len()));
                add(text);
                for Entity { label, start, end } in entities {
                    add(label);
                    add(&format!("{start}-{end}"));
                }
            }
        }
    }
    DataFile::new(key, path, fnv_1a(bytes))
}

/// How many words have a tag that the model does not have, such as `B-PER` where its labels have `I-PER` alone.
fn without_loss(train: &[Encoded], classes: &BTreeMap<&str, u32>) -> Option<String> {
    let tags = train.iter().flat_map(|one| &one.tags);
    let unknown: Vec<&String> = tags.filter(|tag| !classes.contains_key(tag.as_str())).collect();
    let first = unknown.first()?;
    let n = thousands(unknown.len() as u64);
    Some(format!(
        "words with a tag that `task.labels` does not have, such as \"{}\": {n}. They have no loss",
        first.escape_debug()
    ))
}

/// Words without a token, and entities whose ends are within a word.
fn of_words<'a>(encoded: impl Iterator<Item = &'a Encoded>) -> Vec<String> {
    let (mut n_without, mut n_rounded, mut n_lost) = (0, 0, 0);
    for one in encoded {
        n_without += one.units.iter().filter(|unit| unit.tokens.is_empty()).count();
        n_rounded += one.n_rounded;
        n_lost += one.n_lost;
    }
    let told = |what: &str, n: usize, then: &str| {
        (n > 0).then(|| format!("{what}: {}. {then}", thousands(n as u64)))
    };
    [
        told(
            "words without a token",
            n_without,
            "They are predicted to be outside of all entities",
        ),
        told(
            "entities that begin or end within a word",
            n_rounded,
            "They are rounded to whole words",
        ),
        told("entities without a word of their own", n_lost, "They are left out"),
    ]
    .into_iter()
    .flatten()
    .collect()
}
