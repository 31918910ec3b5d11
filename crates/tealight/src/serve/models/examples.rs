//! What the playground opens with: examples of the run or, where there are none, a sentence that the tokenizer reads
//! well.

use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use tealight_train::observer::samples::{self, SampleLine, picture_path};
use tealight_train::pipelines::Pipeline as _;
use tealight_train::pipelines::fill_mask::FillMask;
use tealight_train::pipelines::image_classification::ImageClassification;
use tealight_train::run::RunDirectory;
use tealight_train::task::sample::Sample;
use tealight_train::text::tokenizer::Tokenizer;

use crate::report::read::plot::{Address, MAX_PICTURES};
use crate::runs::last_lines::last_lines;

/// The bytes at the end of `samples.jsonl` among which the last samples are looked for.
const END: u64 = 1 << 18;
/// Neutral sentences in several languages, English first.
const SENTENCES: [&str; 8] = [
    "The train leaves in the morning and arrives in the evening.",
    "Der Zug fährt am Morgen ab und kommt am Abend an.",
    "Le train part le matin et arrive le soir.",
    "El tren sale por la mañana y llega por la noche.",
    "Поезд отправляется утром и прибывает вечером.",
    "電車は朝に出発し、夕方に到着します。",
    "火车早上出发，晚上到达。",
    "기차는 아침에 출발하여 저녁에 도착합니다.",
];
/// A language takes the place of English if the tokenizer needs less than this share of the tokens for a byte of it.
const CLEARLY: f64 = 0.7;

/// An input of the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Example {
    /// A text, days, or the name of a picture.
    text: String,
    /// The part of the text that is hidden from the model, in units of UTF-16; the playground chooses one if it is absent
    /// and the model fills masks.
    hidden: Option<[usize; 2]>,
    /// The right answer, if it is known.
    truth: Option<String>,
    /// The picture, as a `data:` address.
    picture: Option<String>,
    /// Whether it is one of the examples that the run has answered while it was trained.
    is_of_run: bool,
}

/// The samples of the run at `path`, of pictures those that the run has kept; otherwise a sentence for `tokenizer`.
pub(super) fn examples(path: &Path, task: &str, tokenizer: Option<&Tokenizer>) -> Vec<Example> {
    let mask = tokenizer.and_then(|tokenizer| tokenizer.token(tokenizer.special().mask?));
    let mask = mask.filter(|_| task == FillMask::NAME);
    let of_run = RunDirectory::open(path).map(|run| of_run(run.path(), mask.as_deref()));
    let mut of_run = of_run.unwrap_or_default();
    of_run.retain(|one| task != ImageClassification::NAME || one.picture.is_some());
    if of_run.is_empty() {
        return tokenizer.map(|one| Example::of_nobody(sentence(one))).into_iter().collect();
    }
    of_run
}

/// The first samples of the last evaluation.
fn of_run(run: &Path, mask: Option<&str>) -> Vec<Example> {
    let mut lines: Vec<SampleLine> = last_lines(&run.join(samples::FILE), END);
    let last = lines.last().map(|line| line.step);
    lines.retain(|line| Some(line.step) == last);
    lines.truncate(MAX_PICTURES);
    let example = |SampleLine { example, sample: Sample { input, truth, .. }, .. }: SampleLine| {
        let picture = Address::of_png(&picture_path(run, example)).map(|one| one.to_string());
        let is_of_run = true;
        if let Some((text, place)) = mask.and_then(|mask| filled(&input, mask, &truth)) {
            let (hidden, truth) = (Some(utf16(&text, &place)), Some(text[place].to_owned()));
            return Example { text, hidden, truth, picture, is_of_run };
        }
        let truth = (!truth.is_empty()).then(|| truth.join(", "));
        Example { text: input, hidden: None, truth, picture, is_of_run }
    };
    lines.into_iter().map(example).collect()
}

impl Example {
    /// A text that no run has read.
    fn of_nobody(text: &str) -> Self {
        Self { text: text.to_owned(), hidden: None, truth: None, picture: None, is_of_run: false }
    }
}

/// The text `input` with the right tokens in the places of its masks, and the range of one of them, if possible a word;
/// `None` if it has no mask, or not one for each token.
fn filled(input: &str, mask: &str, truth: &[String]) -> Option<(String, Range<usize>)> {
    let parts: Vec<&str> = input.split(mask).collect();
    if truth.is_empty() || parts.len() != truth.len() + 1 {
        return None;
    }
    let (mut text, mut places) = (parts[0].to_owned(), Vec::new());
    for (token, part) in truth.iter().zip(&parts[1..]) {
        let is_word = token.chars().any(char::is_alphanumeric);
        // The pieces of a word, and the marks after it, are not apart from it.
        let piece = token.strip_prefix("##").filter(|_| is_word);
        if piece.is_some() || !is_word {
            // A token before this one keeps its place, even if it is a space.
            let filled = places.last().map_or(0, |(_, place): &(bool, Range<usize>)| place.end);
            text.truncate(text.trim_end().len().max(filled));
        }
        let start = text.len();
        text += piece.unwrap_or(token);
        places.push((is_word, start..text.len()));
        text += part;
    }
    let word = places.iter().find(|(is_word, _)| *is_word).or(places.first());
    word.map(|(_, range)| range.clone()).map(|range| (text, range))
}

/// A range of bytes as JavaScript counts, in units of UTF-16.
fn utf16(text: &str, range: &Range<usize>) -> [usize; 2] {
    [range.start, range.end].map(|at| text[..at].encode_utf16().count())
}

/// The sentence of which the tokenizer knows all and needs the fewest tokens for a byte, English where it is near that;
/// also where it knows none.
fn sentence(tokenizer: &Tokenizer) -> &'static str {
    let cost = |sentence: &str| {
        let ids = tokenizer.encode_plain(sentence).ok()?;
        let is_known = tokenizer.special().unknown.is_none_or(|unknown| !ids.contains(&unknown));
        is_known.then(|| ids.len() as f64 / sentence.len() as f64)
    };
    let english = SENTENCES[0];
    let costs = SENTENCES.iter().filter_map(|sentence| Some((*sentence, cost(sentence)?)));
    let best = costs.min_by(|(_, a), (_, b)| a.total_cmp(b));
    match (best, cost(english)) {
        (Some((_, least)), Some(own)) if least > CLEARLY * own => english,
        (Some((sentence, _)), _) => sentence,
        (None, _) => english,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_filled_and_a_word_is_hidden() {
        let filled = |input: &str, truth: &[&str]| {
            let truth: Vec<String> = truth.iter().map(|one| (*one).to_owned()).collect();
            let (text, range) = filled(input, "[MASK]", &truth)?;
            let hidden = text[range].to_owned();
            Some((text, hidden))
        };
        let expected = |text: &str, hidden: &str| Some((text.to_owned(), hidden.to_owned()));
        assert_eq!(
            filled("a cat [MASK] she [MASK] .", &[".", "slept"]),
            expected("a cat. she slept .", "slept")
        );
        assert_eq!(filled("walk [MASK] home", &["##ing"]), expected("walking home", "ing"));
        assert_eq!(filled("was[MASK] in", &[" sunny"]), expected("was sunny in", " sunny"));
        assert_eq!(filled("猫[MASK]いる", &["が"]), expected("猫がいる", "が"));
        assert_eq!(filled("[MASK][MASK]", &[" ", "…"]), expected(" …", " "));
        assert_eq!(filled("no mask", &["a"]), None);
        assert_eq!(filled("[MASK] [MASK]", &["a"]), None);
    }

    /// Each of them had the picture of its example: 4 GB for 5,000 short lines and one file.
    #[test]
    fn a_run_has_few_examples() {
        let folder = tempfile::tempdir().unwrap();
        let line = "{\"step\":1,\"example\":0,\"input\":\"\"}\n";
        std::fs::write(folder.path().join(samples::FILE), line.repeat(5_000)).unwrap();
        let picture = picture_path(folder.path(), 0);
        std::fs::create_dir(picture.parent().unwrap()).unwrap();
        std::fs::write(picture, "a picture").unwrap();
        let examples = of_run(folder.path(), None);
        assert_eq!(examples.len(), MAX_PICTURES);
        assert!(examples[0].picture.is_some());
    }

    #[test]
    fn a_hidden_part_is_counted_as_javascript_counts() {
        assert_eq!(utf16("🌧️ rain", &(8..12)), [4, 8]);
    }
}
