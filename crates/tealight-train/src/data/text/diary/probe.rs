//! Questions with known odds: diaries with the weather of one day masked.

use serde::Serialize;

use super::chain::{Chain, Limit, Neighbours};
use super::{Config, Diary, Document, Language, Languages, Volume};
use crate::data::weather::{Distribution, Weather};
use crate::error::Result;

/// What stands for the masked word in the text of a [`Probe`].
pub const MASK: &str = "[MASK]";

/// A diary with the weather of one day masked.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The diary, with [`MASK`] in place of the word.
    pub text: String,
    /// What it is written in.
    pub language: Language,
    /// The weather of the day.
    pub weather: Weather,
    /// The word that was masked.
    pub answer: &'static str,
    /// Where in the diary the day is.
    pub place: Place,
    /// How rain, cloud and sun are distributed, given all that is in sight.
    pub optimal: Distribution,
}

/// Where in a diary a day is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Nothing before it.
    First,
    /// Between two days.
    Inside,
    /// Nothing after it.
    Last,
}

/// What no model can do better: on average over the diaries, one weather word masked at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// For the first day.
    pub first: Limit,
    /// For any day between two others.
    pub inside: Limit,
    /// For the last day.
    pub last: Limit,
    /// For all days of a diary, each as often as the others.
    pub mean: Limit,
}

impl Diary {
    /// What no model can do better with diaries of this length.
    pub fn limits(&self) -> Limits {
        let limit = |before, after| self.chain.limit(before, after);
        let [first, inside, last] = [limit(false, true), limit(true, true), limit(true, false)];
        let n_days = self.config.n_days as f64;
        let mean =
            |of: fn(&Limit) -> f64| (of(&first) + (n_days - 2.) * of(&inside) + of(&last)) / n_days;
        let mean = Limit {
            accuracy: mean(|limit| limit.accuracy),
            cross_entropy: mean(|limit| limit.cross_entropy),
        };
        Limits { first, inside, last, mean }
    }

    /// Probe `index` in a language: each in a diary of its own, the days of the diaries by turns.
    pub fn probe(&self, language: Language, index: u64) -> Probe {
        let stream = self.stream(Volume::Probes).fork(language as u64).fork(index);
        let document = self.write(language, stream);
        let day = (index % self.config.n_days as u64) as usize;
        Probe::new(&self.chain, &document, day)
    }
}

impl Probe {
    fn new(chain: &Chain, document: &Document, day: usize) -> Self {
        let Document { language, ref weather, .. } = *document;
        let days: Vec<u8> = weather.iter().map(|weather| weather.id()).collect();
        let place = match day {
            0 => Place::First,
            day if day + 1 == days.len() => Place::Last,
            _ => Place::Inside,
        };
        Self {
            text: document.masked(day, MASK),
            language,
            weather: weather[day],
            answer: language.weather_words()[usize::from(days[day])],
            place,
            optimal: chain.posterior(Neighbours::of(&days, day)),
        }
    }
}

/// `n` probes in a language, from diaries of five days that no corpus holds.
pub fn probes(seed: u64, language: Language, n: u64) -> Result<Vec<Probe>> {
    let diary = Diary::new(&Config { language: Languages::Both, ..Config::default() }, seed)?;
    Ok((0..n).map(|index| diary.probe(language, index)).collect())
}
