//! The sentences of both splits: read from files, drawn, or divided.

use std::collections::BTreeMap;
use std::path::Path;

use tealight_ops::rng::{Purpose, Stream};

use super::config::{Config, DataConfig, Generated, PATH};
use crate::data::DataFile;
use crate::data::fingerprint::TextHash;
use crate::data::tags::scheme::{Entity, Scheme};
use crate::data::tags::visits::Visits;
use crate::data::tags::{Content, Sentence, Sentences, read};
use crate::error::{Error, Result};
use crate::task::settings::must_differ;

const VALIDATION: &str = "task.data.validation";
const VALIDATION_PATH: &str = "task.data.validation_path";

/// Sentences of both splits.
pub(super) struct Splits {
    pub(super) train: Vec<Sentence>,
    pub(super) validation: Vec<Sentence>,
    /// The entities of the best possible tagger for the latter; empty if they are not drawn.
    pub(super) best: Vec<Vec<Entity>>,
    /// The schemes of their files.
    pub(super) schemes: [Option<Scheme>; 2],
}

impl Splits {
    /// Sentences of both splits, each with its scheme.
    pub(super) fn both(&self) -> [(&[Sentence], Option<Scheme>); 2] {
        [(&self.train, self.schemes[0]), (&self.validation, self.schemes[1])]
    }
}

/// The sentences of both splits, the files that they are from, and what a user should know about these.
pub(super) fn splits(config: &Config, seed: u64) -> Result<(Splits, Vec<DataFile>, Vec<String>)> {
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
    must_differ(path, other)?;
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

/// The file with the fingerprint of its words and tags, or texts and entities, each behind its length.
pub(super) fn data_file(key: &str, path: &Path, sentences: &[Sentence]) -> DataFile {
    let mut hash = TextHash::default();
    for Sentence { content, .. } in sentences {
        match content {
            Content::Words { words, tags } => {
                hash.add(&format!("{} words", words.len()));
                words.iter().chain(tags).for_each(|text| hash.add(text));
            }
            Content::Text { text, entities } => {
                hash.add(&format!("{} entities", entities.len()));
                hash.add(text);
                for Entity { label, start, end } in entities {
                    hash.add(label);
                    hash.add(&format!("{start}-{end}"));
                }
            }
        }
    }
    DataFile::new(key, path, hash.finish())
}
