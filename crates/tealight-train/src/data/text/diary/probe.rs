//! Probes: diaries with one weather word masked, whose exact distribution is known.

use serde::Serialize;

use super::chain::{Limit, Neighbours, Place};
use super::{Config, Diary, Language, Languages, Subset};
use crate::data::weather::{Distribution, Weather};
use crate::error::Result;

/// The mask in the text of a [`Probe`].
pub const MASK: &str = "[MASK]";

/// A diary with one weather word masked.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The diary, with [`MASK`] in place of the word.
    pub text: String,
    /// The language of the diary.
    pub language: Language,
    /// The weather of the masked day.
    pub weather: Weather,
    /// The masked word.
    pub answer: &'static str,
    /// The place of the day in the diary.
    pub place: Place,
    /// The distribution of rain, cloud and sun given the other days.
    pub optimal: Distribution,
}

/// The best possible expected results, with one weather word masked at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// For the first day.
    pub first: Limit,
    /// For a day between two others.
    pub inside: Limit,
    /// For the last day.
    pub last: Limit,
    /// The mean over all days of a diary.
    pub mean: Limit,
}

impl Diary {
    /// The best possible results for diaries of this length.
    pub fn limits(&self) -> Limits {
        let places = [Place::First, Place::Inside, Place::Last];
        let [first, inside, last] = places.map(|place| self.chain.limit(place));
        let n_days = self.config.n_days as f64;
        let mean =
            |of: fn(&Limit) -> f64| (of(&first) + (n_days - 2.) * of(&inside) + of(&last)) / n_days;
        let mean = Limit {
            accuracy: mean(|limit| limit.accuracy),
            cross_entropy: mean(|limit| limit.cross_entropy),
        };
        Limits { first, inside, last, mean }
    }

    /// Probe `index` in a language: each masks one day of its own diary, the days in turn.
    pub fn probe(&self, language: Language, index: u64) -> Probe {
        let stream = self.stream(Subset::Probes).fork(language as u64).fork(index);
        let document = self.write(language, stream);
        let day = (index % self.config.n_days as u64) as usize;
        let days: Vec<u8> = document.weather.iter().map(|weather| weather.id()).collect();
        Probe {
            text: document.masked(day, MASK),
            language,
            weather: document.weather[day],
            answer: language.weather_words()[usize::from(days[day])],
            place: Place::from_day(day, days.len()),
            optimal: self.chain.posterior(Neighbours::from_days(&days, day)),
        }
    }
}

/// `n` probes in a language, from diaries of five days that are in no corpus.
pub fn probes(seed: u64, language: Language, n: u64) -> Result<Vec<Probe>> {
    let diary = Diary::new(&Config { language: Languages::Both, ..Config::default() }, seed)?;
    Ok((0..n).map(|index| diary.probe(language, index)).collect())
}
