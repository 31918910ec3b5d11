//! Generated diaries about weather, for which the best possible prediction is known exactly.
//!
//! A document is a diary of a few days, in English or in Japanese. Each day has exactly one word for its
//! weather, which follows a Markov chain (`chain.rs`); people, places and meals are independent of it:
//!
//! ```text
//! Monday was sunny in Kyoto. A cloudy Tuesday. Made noodles for Mia. Wednesday: rainy; Miso slept. …
//! 月曜は晴だった。小樽の火曜は曇。水曜は雨、そばを食べた。…
//! ```
//!
//! Given all other words, a masked weather word depends only on the weather of the two adjacent days, so
//! the accuracy of the best possible prediction is a small sum ([`Diary::limits`]). Each weather has one
//! word, `rainy`, `cloudy`, `sunny`, `雨`, `曇`, `晴`, which occurs nowhere else in a diary; tokenizers that
//! split at words make it a single token.
//!
//! The sentences are short and of few kinds, so that a small model learns within two minutes how a weather
//! word depends on the two adjacent ones, about seven tokens away.
//!
//! A document is a function of (seed, index). [`probes`] come from a separate random stream.

mod chain;
mod english;
mod japanese;
mod phrases;
mod probe;

use std::ops::Range;

use serde::Serialize;
use tealight_model::names;
use tealight_ops::rng::{Purpose, Stream};

pub use chain::{Limit, Place};
pub use probe::{Limits, MASK, Probe, probes};

use crate::checks::check;
use crate::data::fingerprint::fnv_1a;
use crate::data::weather::{Generator, Weather};
use crate::error::Result;
use crate::settings::settings;
use chain::Chain;
use phrases::{DiaryText, Phrases};

settings! {
    /// `kind = "diary"`
    pub struct Config {
        /// The languages of the diaries.
        pub language: Languages = Languages::Both,
        /// The number of training documents.
        pub n_documents: usize = 20_000,
        /// The number of additional documents for validation.
        pub n_validation: usize = 500,
        /// The number of days in each: 2 to 14. Five days have about 40 tokens.
        pub n_days: usize = 5,
    }
}

names! {
    /// The languages of diaries.
    pub enum Languages {
        /// English.
        "english" => English,
        /// Japanese.
        "japanese" => Japanese,
        /// English and Japanese alternately.
        "both" => Both,
    }
}

/// The language of a diary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// English: words separated by spaces.
    English,
    /// Japanese: no spaces.
    Japanese,
}

impl std::fmt::Display for Language {
    /// `English`, `Japanese`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Language {
    /// All languages.
    pub const ALL: [Self; 2] = [Self::English, Self::Japanese];

    /// As ISO 639 abbreviates it.
    pub fn code(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Japanese => "ja",
        }
    }

    /// The word for each weather, by id: rain, cloud, sun.
    pub fn weather_words(self) -> [&'static str; 3] {
        self.phrases().weather
    }

    fn phrases(self) -> &'static Phrases {
        match self {
            Self::English => &english::PHRASES,
            Self::Japanese => &japanese::PHRASES,
        }
    }
}

impl Languages {
    /// The languages, in turn.
    pub fn all(self) -> &'static [Language] {
        match self {
            Self::English => &[Language::English],
            Self::Japanese => &[Language::Japanese],
            Self::Both => &Language::ALL,
        }
    }
}

/// A set of documents with its own random stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// The training documents.
    Train,
    /// The validation documents.
    Validation,
    /// The documents of probes.
    Probes,
}

/// A corpus of diaries.
#[derive(Clone, Debug)]
pub struct Diary {
    /// The settings.
    pub config: Config,
    seed: u64,
    chain: Chain,
}

/// A diary of a few days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text, on one line.
    pub text: String,
    /// Its language.
    pub language: Language,
    /// The weather of each day.
    pub weather: Vec<Weather>,
    /// The bytes of each day's weather word in `text`.
    words: Vec<Range<usize>>,
}

impl Document {
    /// The text with `mask` in place of the weather word of a day, counted from 0.
    ///
    /// # Panics
    /// If `day` is out of range.
    pub fn masked(&self, day: usize, mask: &str) -> String {
        let Range { start, end } = self.words[day].clone();
        [&self.text[..start], mask, &self.text[end..]].concat()
    }
}

impl Config {
    /// Checks the bounds of the sizes.
    pub fn validate(&self) -> Result<()> {
        let between = |key: &str, value: usize, least: usize, most: usize| {
            let rule = format!("must be between {least} and {most}");
            check(key, value, |value| (least..=most).contains(&value), &rule)
        };
        between("task.corpus.n_days", self.n_days, 2, 14)?;
        between("task.corpus.n_documents", self.n_documents, 1, 100_000_000)?;
        between("task.corpus.n_validation", self.n_validation, 1, 100_000_000)
    }
}

impl Diary {
    /// Checks the settings and makes the corpus of `seed`.
    pub fn new(config: &Config, seed: u64) -> Result<Self> {
        config.validate()?;
        Ok(Self { config: config.clone(), seed, chain: Chain::new() })
    }

    /// Training document `index`.
    pub fn document(&self, index: u64) -> Document {
        self.document_of(Subset::Train, index)
    }

    /// Document `index` of a subset, a function of the seed.
    pub fn document_of(&self, subset: Subset, index: u64) -> Document {
        let languages = self.config.language.all();
        let language = languages[(index % languages.len() as u64) as usize];
        self.write(language, self.stream(subset).fork(index))
    }

    /// A hash of settings, seed and sample documents, which depend on the phrases.
    pub fn fingerprint(&self) -> u64 {
        const N_SAMPLES: u64 = 200;
        let settings = format!("{:?} {}", self.config, self.seed);
        let sample = |index| self.document(index).text;
        let samples: String = (0..N_SAMPLES).map(sample).collect();
        fnv_1a(settings.into_bytes().into_iter().chain(samples.into_bytes()))
    }

    fn stream(&self, subset: Subset) -> Stream {
        let stream = Stream::new(self.seed, Purpose::Data).fork_name("diary");
        stream.fork_name(match subset {
            Subset::Train => "train",
            Subset::Validation => "validation",
            Subset::Probes => "probes",
        })
    }

    fn write(&self, language: Language, stream: Stream) -> Document {
        let days = self.chain.rule.sample(stream.fork_name("weather"), self.config.n_days);
        let DiaryText { text, words } = language.phrases().write(&days, stream.fork_name("words"));
        let weather = days.iter().filter_map(|&day| Weather::from_id(day)).collect();
        Document { text, language, weather, words }
    }
}

#[cfg(test)]
mod tests;
