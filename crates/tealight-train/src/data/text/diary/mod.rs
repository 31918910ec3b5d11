//! Diaries that nobody has written, about weather whose best possible guess is known exactly.
//!
//! A document is a few days of a diary, in English or in Japanese. Each day has exactly one word for its
//! weather, and the weather follows a Markov chain (`chain.rs`); all else, people, places, meals, is
//! drawn without regard to it:
//!
//! ```text
//! Monday was sunny in Kyoto. A cloudy Tuesday. Made noodles for Mia. Wednesday: rainy; Miso slept. …
//! 月曜は晴だった。小樽の火曜は曇。水曜は雨、そばを食べた。…
//! ```
//!
//! So with one weather word masked and everything else in sight, the word depends on the two days next to
//! it alone, and how often the best guess is right is a sum over a few numbers ([`Diary::limits`]). Each
//! weather has one word, `rainy`, `cloudy`, `sunny`, `雨`, `曇`, `晴`, which nothing else in a diary
//! uses; words that are so frequent become single tokens wherever tokens end with words.
//!
//! The sentences are short and their kinds few, for a small model has to find within two minutes what a
//! weather word has to do with the two next to it, some seven tokens away on either side.
//!
//! A document is a function of (seed, index). [`probes`] come from documents of another stream.

mod chain;
mod english;
mod japanese;
mod phrases;
mod probe;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tealight_model::names;
use tealight_ops::rng::{Purpose, Stream};

pub use chain::Limit;
pub use probe::{Limits, MASK, Place, Probe, probes};

use crate::data::fingerprint::fnv_1a;
use crate::data::weather::Weather;
use crate::error::{Error, Result};
use chain::Chain;
use phrases::{Phrases, Written};

/// `kind = "diary"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What the diaries are written in.
    pub language: Languages,
    /// How many there are to learn from.
    pub n_documents: usize,
    /// How many there are for validation, besides.
    pub n_validation: usize,
    /// Days in each: 2 to 14. Five make about 40 tokens.
    pub n_days: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { language: Languages::Both, n_documents: 20_000, n_validation: 500, n_days: 5 }
    }
}

names! {
    /// What diaries are written in.
    pub enum Languages {
        /// English alone.
        "english" => English,
        /// Japanese alone.
        "japanese" => Japanese,
        /// English and Japanese by turns.
        "both" => Both,
    }
}

/// What one diary is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Words with spaces between them.
    English,
    /// Without spaces.
    Japanese,
}

impl std::fmt::Display for Language {
    /// `English`, `Japanese`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::English => "English",
            Self::Japanese => "Japanese",
        })
    }
}

impl Language {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::English, Self::Japanese];

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
    /// The languages that are written in.
    pub fn all(self) -> &'static [Language] {
        match self {
            Self::English => &[Language::English],
            Self::Japanese => &[Language::Japanese],
            Self::Both => &Language::ALL,
        }
    }
}

/// Which documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// Those that are learnt from.
    Train,
    /// Those that are held out.
    Validation,
    /// Those that probes are cut from.
    Probes,
}

/// A corpus of diaries.
#[derive(Clone, Debug)]
pub struct Diary {
    config: Config,
    seed: u64,
    chain: Chain,
}

/// A diary of a few days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// One line.
    pub text: String,
    /// What it is written in.
    pub language: Language,
    /// The weather of each day.
    pub weather: Vec<Weather>,
    /// Where in `text` the word for each day's weather stands, in bytes.
    words: Vec<Range<usize>>,
}

impl Document {
    /// The text with `mask` in place of the weather of one day, counted from 0.
    ///
    /// # Panics
    /// If there is no such day.
    pub fn masked(&self, day: usize, mask: &str) -> String {
        let Range { start, end } = self.words[day].clone();
        [&self.text[..start], mask, &self.text[end..]].concat()
    }
}

impl Config {
    /// The limits of the sizes.
    pub fn validate(&self) -> Result<()> {
        let between = |key: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let message = format!("`{key}` = {value} must be between {least} and {most}");
            Err(Error::config([key], message))
        };
        between("task.corpus.n_days", self.n_days, 2, 14)?;
        between("task.corpus.n_documents", self.n_documents, 1, 100_000_000)?;
        between("task.corpus.n_validation", self.n_validation, 1, 100_000_000)
    }
}

impl Diary {
    /// The corpus of `seed`.
    pub fn new(config: &Config, seed: u64) -> Result<Self> {
        config.validate()?;
        Ok(Self { config: config.clone(), seed, chain: Chain::new() })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Document `index` of the training volume.
    pub fn document(&self, index: u64) -> Document {
        self.document_of(Volume::Train, index)
    }

    /// Document `index` of a volume: a function of the seed.
    pub fn document_of(&self, volume: Volume, index: u64) -> Document {
        let languages = self.config.language.all();
        let language = languages[(index % languages.len() as u64) as usize];
        self.write(language, self.stream(volume).fork(index))
    }

    /// What the documents hash to: settings, seed, and samples of what the phrases make of them.
    pub fn fingerprint(&self) -> u64 {
        const N_SAMPLES: u64 = 200;
        let settings = format!("{:?} {}", self.config, self.seed);
        let sample = |index| self.document(index).text;
        let samples: String = (0..N_SAMPLES).map(sample).collect();
        fnv_1a(settings.into_bytes().into_iter().chain(samples.into_bytes()))
    }

    fn stream(&self, volume: Volume) -> Stream {
        let stream = Stream::new(self.seed, Purpose::Data).fork_name("diary");
        stream.fork_name(match volume {
            Volume::Train => "train",
            Volume::Validation => "validation",
            Volume::Probes => "probes",
        })
    }

    fn write(&self, language: Language, stream: Stream) -> Document {
        let days = self.chain.sample(stream.fork_name("weather"), self.config.n_days);
        let Written { text, words } = language.phrases().write(&days, stream.fork_name("words"));
        let weather = days.iter().filter_map(|&day| Weather::from_id(day)).collect();
        Document { text, language, weather, words }
    }
}

#[cfg(test)]
mod tests;
