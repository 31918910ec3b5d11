//! From days of weather to sentences: templates, and what fills them.
//!
//! ```text
//! "{day} was {weather} at {place}."  →  "Monday was rainy at the old bridge."
//! ```
//!
//! What fills a gap is drawn from a list by its rank, P(rank) ∝ 1 / (rank + 3), as words of a language
//! are (Zipf's law with Mandelbrot's offset), so that some guesses are better than others. Lists that are
//! [`kept`](Phrases::kept) are asked once for each diary: a writer has one cat, and lives in one town.

use std::ops::Range;

use tealight_ops::rng::Stream;

/// How a language writes a diary.
#[derive(Debug)]
pub(super) struct Phrases {
    /// The words for rain, cloud and sun. No other phrase contains them.
    pub(super) weather: [&'static str; 3],
    /// The days of the week in their order.
    pub(super) days: [&'static str; 7],
    /// Sentences with `{day}` and `{weather}`, each once.
    pub(super) reports: &'static [&'static str],
    /// Sentences without.
    pub(super) notes: &'static [&'static str],
    /// What fills the gaps, by their names; the frequent first.
    pub(super) fillers: &'static [(&'static str, &'static [&'static str])],
    /// Gaps that are filled alike throughout a diary.
    pub(super) kept: &'static [&'static str],
    /// What stands between sentences.
    pub(super) space: &'static str,
}

/// The text of a diary, and where its weather words are.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) text: String,
    pub(super) words: Vec<Range<usize>>,
}

/// How a day is told.
const DAYS: [Shape; 3] = [Shape::Report, Shape::ReportThenNote, Shape::NoteThenReport];
/// How likely each of [`DAYS`] is.
const SHARES: [f64; 3] = [0.9, 0.05, 0.05];

#[derive(Clone, Copy, Debug)]
enum Shape {
    Report,
    ReportThenNote,
    NoteThenReport,
}

/// The offset of the law that ranks are drawn by.
const OFFSET: f64 = 3.;

const DAY: &str = "day";
const WEATHER: &str = "weather";

impl Phrases {
    /// The diary of `days`, a function of the stream.
    pub(super) fn write(&self, days: &[u8], stream: Stream) -> Written {
        let first = stream.below(0, 7) as usize;
        let mut page = Page {
            phrases: self,
            diary: stream.fork_name("kept"),
            written: Written { text: String::new(), words: Vec::with_capacity(days.len()) },
        };
        for (i, &weather) in days.iter().enumerate() {
            let day = Day { name: self.days[(first + i) % 7], weather };
            page.day(stream.fork(i as u64), day);
        }
        page.written
    }

    fn list(&self, name: &str) -> &'static [&'static str] {
        let list = self.fillers.iter().find(|(known, _)| *known == name);
        list.map(|(_, list)| *list).expect("invariant: a test has looked at every template")
    }
}

#[derive(Clone, Copy, Debug)]
struct Day {
    name: &'static str,
    weather: u8,
}

/// A diary while it is being written.
struct Page<'a> {
    phrases: &'a Phrases,
    /// For gaps that are filled alike throughout.
    diary: Stream,
    written: Written,
}

impl Page<'_> {
    fn day(&mut self, stream: Stream, day: Day) {
        let pick = |index: u64, from: &'static [&'static str]| {
            from[stream.below(index, from.len() as u64) as usize]
        };
        let report = pick(0, self.phrases.reports);
        let note = pick(1, self.phrases.notes);
        let sentences = match DAYS[stream.fork_name("shape").categorical(0, &SHARES)] {
            Shape::Report => vec![report],
            Shape::ReportThenNote => vec![report, note],
            Shape::NoteThenReport => vec![note, report],
        };
        for (i, sentence) in sentences.into_iter().enumerate() {
            self.sentence(sentence, stream.fork(i as u64), day);
        }
    }

    /// Writes a template with its gaps filled.
    fn sentence(&mut self, template: &str, stream: Stream, day: Day) {
        if !self.written.text.is_empty() {
            self.written.text.push_str(self.phrases.space);
        }
        for (i, part) in parts(template).enumerate() {
            match part {
                Part::Text(text) => self.written.text.push_str(text),
                Part::Gap(DAY) => self.written.text.push_str(day.name),
                Part::Gap(WEATHER) => self.weather(day.weather),
                Part::Gap(name) => {
                    let filler = self.filler(name, stream.fork(i as u64));
                    self.written.text.push_str(filler);
                }
            }
        }
    }

    fn weather(&mut self, weather: u8) {
        let start = self.written.text.len();
        self.written.text.push_str(self.phrases.weather[usize::from(weather)]);
        self.written.words.push(start..self.written.text.len());
    }

    fn filler(&self, name: &str, stream: Stream) -> &'static str {
        let list = self.phrases.list(name);
        let kept = self.phrases.kept.contains(&name);
        let stream = if kept { self.diary.fork_name(name) } else { stream };
        let weights: Vec<f64> = (0..list.len()).map(|rank| 1. / (rank as f64 + OFFSET)).collect();
        list[stream.categorical(0, &weights)]
    }
}

/// A piece of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Gap(&'a str),
}

/// The pieces of a template: what is between braces is a gap.
pub(super) fn parts(template: &str) -> impl Iterator<Item = Part<'_>> {
    let part = |(i, part)| if i % 2 == 0 { Part::Text(part) } else { Part::Gap(part) };
    template.split(['{', '}']).enumerate().map(part)
}
