//! Sentences about days of weather: templates and the words for their gaps.
//!
//! ```text
//! "{day} was {weather} at {place}."  →  "Monday was rainy at the old bridge."
//! ```
//!
//! The word for a gap is drawn from a list by its rank, P(rank) ∝ 1 / (rank + 3) (Zipf's law with Mandelbrot's
//! offset), so that some predictions are better than others. The gaps in [`constant`](Phrases::constant) have
//! one word for a whole diary: a writer has one cat and lives in one town.

use std::ops::Range;

use tealight_ops::rng::Stream;

/// The phrases of a language.
#[derive(Debug)]
pub(super) struct Phrases {
    /// The words for rain, cloud and sun, which no other phrase contains.
    pub(super) weather: [&'static str; 3],
    /// The days of the week, in order.
    pub(super) days: [&'static str; 7],
    /// Templates with `{day}` and `{weather}`, each once.
    pub(super) reports: &'static [&'static str],
    /// Templates without these.
    pub(super) notes: &'static [&'static str],
    /// The words for each gap, the most frequent first.
    pub(super) fillers: &'static [(&'static str, &'static [&'static str])],
    /// The gaps with one word for a whole diary.
    pub(super) constant: &'static [&'static str],
    /// The separator of sentences.
    pub(super) space: &'static str,
}

/// The text of a diary with the places of its weather words, in bytes.
#[derive(Debug)]
pub(super) struct DiaryText {
    pub(super) text: String,
    pub(super) words: Vec<Range<usize>>,
}

/// The probabilities that a day has a report alone, a report before a note, and a report after a note.
const SHARES: [f64; 3] = [0.9, 0.05, 0.05];

/// The offset in the distribution of ranks.
const OFFSET: f64 = 3.;

const DAY: &str = "day";
const WEATHER: &str = "weather";

impl Phrases {
    /// Writes the diary of `days`, a function of the stream.
    pub(super) fn write(&self, days: &[u8], stream: Stream) -> DiaryText {
        let first = stream.below(0, 7) as usize;
        let mut writer = Writer {
            phrases: self,
            constant: stream.fork_name("kept"),
            diary: DiaryText { text: String::new(), words: Vec::with_capacity(days.len()) },
        };
        for (i, &weather) in days.iter().enumerate() {
            let day = Day { name: self.days[(first + i) % 7], weather };
            writer.day(stream.fork(i as u64), day);
        }
        writer.diary
    }
}

#[derive(Clone, Copy, Debug)]
struct Day {
    name: &'static str,
    weather: u8,
}

/// A diary that is being written.
struct Writer<'a> {
    phrases: &'a Phrases,
    /// Draws the words of constant gaps.
    constant: Stream,
    diary: DiaryText,
}

impl Writer<'_> {
    fn day(&mut self, stream: Stream, day: Day) {
        let pick = |index: u64, from: &'static [&'static str]| {
            from[stream.below(index, from.len() as u64) as usize]
        };
        let report = pick(0, self.phrases.reports);
        let note = pick(1, self.phrases.notes);
        let sentences = match stream.fork_name("shape").categorical(0, &SHARES) {
            0 => vec![report],
            1 => vec![report, note],
            _ => vec![note, report],
        };
        for (i, sentence) in sentences.into_iter().enumerate() {
            self.sentence(sentence, stream.fork(i as u64), day);
        }
    }

    /// Writes a template with its gaps filled.
    fn sentence(&mut self, template: &str, stream: Stream, day: Day) {
        if !self.diary.text.is_empty() {
            self.diary.text.push_str(self.phrases.space);
        }
        for (i, part) in parts(template).enumerate() {
            let words = match part {
                Part::Text(text) => text,
                Part::Gap(DAY) => day.name,
                Part::Gap(WEATHER) => self.phrases.weather[usize::from(day.weather)],
                Part::Gap(name) => self.filler(name, stream.fork(i as u64)),
            };
            let start = self.diary.text.len();
            self.diary.text.push_str(words);
            if part == Part::Gap(WEATHER) {
                self.diary.words.push(start..self.diary.text.len());
            }
        }
    }

    fn filler(&self, name: &str, stream: Stream) -> &'static str {
        let known = self.phrases.fillers.iter().find(|(known, _)| *known == name);
        let (_, list) = known.expect("invariant: a test checks every template");
        let is_constant = self.phrases.constant.contains(&name);
        let stream = if is_constant { self.constant.fork_name(name) } else { stream };
        let weights: Vec<f64> = (0..list.len()).map(|rank| 1. / (rank as f64 + OFFSET)).collect();
        list[stream.categorical(0, &weights)]
    }
}

/// A part of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Gap(&'a str),
}

/// The parts of a template; the text between braces is the name of a gap.
pub(super) fn parts(template: &str) -> impl Iterator<Item = Part<'_>> {
    let part = |(i, part)| if i % 2 == 0 { Part::Text(part) } else { Part::Gap(part) };
    template.split(['{', '}']).enumerate().map(part)
}
