//! The sentences of both splits: read from files and divided, or drawn.

use std::collections::BTreeMap;
use std::path::Path;

use tealight_ops::rng::Stream;

use super::config::{Config, DataConfig, Generated};
use crate::data::DataFile;
use crate::data::fingerprint::TextHash;
use crate::data::tags::scheme::{Entity, Scheme};
use crate::data::tags::visits::Visits;
use crate::data::tags::{Content, Sentence, Sentences, Wanted, read};
use crate::error::{Error, Result};
use crate::task::parts::{Files, PATH, Parts, Read, Source, VALIDATION_PATH, parts, test_parts};

/// Sentences of both splits with the scheme of each.
pub(super) struct Splits {
    pub(super) parts: Parts<Sentence, Option<Scheme>>,
    /// The entities of the best possible tagger for the held-out sentences; empty if they are not drawn.
    pub(super) best: Vec<Vec<Entity>>,
}

impl Splits {
    /// Reads or draws the sentences to train on and for validation.
    pub(super) fn new(config: &Config, seed: u64) -> Result<Self> {
        let DataConfig { generated, n_generated, .. } = &config.data;
        if let Some(Generated::Visits) = generated {
            let train = Visits::new(seed, false, *n_generated).sentences;
            let Visits { sentences, best } = Visits::new(seed, true, n_generated / 5);
            let parts = Parts::drawn(train.all, sentences.all, sentences.scheme);
            return Ok(Self { parts, best });
        }
        let parts = parts(&Reader { config, wanted: config.wanted() }, seed)?;
        if let [Some(one), Some(other)] = parts.forms
            && (one == Scheme::None) != (other == Scheme::None)
        {
            let message = format!(
                "the tags of `{VALIDATION_PATH}` and of `{PATH}` differ: those of one file have prefixes"
            );
            return Err(Error::config([VALIDATION_PATH, PATH], message));
        }
        Ok(Self { parts, best: Vec::new() })
    }

    /// Reads the sentences to test a trained model with these `labels` on: [`test_parts`].
    pub(super) fn to_test(config: &Config, labels: Option<&[String]>, seed: u64) -> Result<Self> {
        let wanted = Wanted { labels, ..config.wanted() };
        let parts = test_parts(&Reader { config, wanted }, seed)?;
        Ok(Self { parts, best: Vec::new() })
    }

    /// Sentences of both splits, each with its scheme.
    pub(super) fn both(&self) -> [(&[Sentence], Option<Scheme>); 2] {
        let Parts { train, validation, forms, .. } = &self.parts;
        [(train, forms[0]), (validation, forms[1])]
    }
}

/// What reads the files.
struct Reader<'a> {
    config: &'a Config,
    wanted: Wanted<'a>,
}

impl Source for Reader<'_> {
    const TASK: &'static str = "tag";
    const EXAMPLES: &'static str = "sentences";
    type Example = Sentence;
    type Form = Option<Scheme>;

    fn files(&self) -> Files<'_> {
        self.config.files()
    }

    fn read(&self, key: &'static str, path: &Path) -> Result<Read<Sentence, Option<Scheme>>> {
        let scheme = self.config.data.scheme;
        let Sentences { all, scheme, notes } = read(key, path, &self.wanted, scheme)?;
        Ok(Read { all, form: scheme, notes })
    }

    /// Of its words and tags, or texts and entities, each behind its length.
    fn fingerprint(&self, key: &str, path: &Path, sentences: &[Sentence]) -> DataFile {
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

    /// Whole documents, by a hash of their text; equal ones are on one side.
    fn held_out(&self, all: &[Sentence], share: f64, stream: Stream) -> Vec<bool> {
        // A file without marks of documents is one document: then its sentences are divided.
        let has_documents =
            all.first().map(|one| one.document) != all.last().map(|one| one.document);
        let mut places: BTreeMap<usize, Stream> = BTreeMap::new();
        for one in all.iter().filter(|_| has_documents) {
            let place = places.entry(one.document).or_insert(stream);
            *place = place.fork_name(&one.text());
        }
        let place = |one: &Sentence| match places.get(&one.document) {
            Some(place) => place.uniform(0),
            None => stream.fork_name(&one.text()).uniform(0),
        };
        all.iter().map(|one| place(one) < share).collect()
    }
}
