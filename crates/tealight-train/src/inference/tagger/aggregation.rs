//! From tags of tokens to tagged parts of a text.
//!
//! ```text
//! none       each token with its tag
//! simple     neighbouring tokens of one type; B- begins a new group
//! first      words, each with the tag of its first token; then as `simple`
//! average    words, each with the tag of the mean of its tokens' probabilities; then as `simple`
//! max        words, each with the tag of its most confident token; then as `simple`
//! word       words by the tokenizer's own split, each with the tag of its first token; entities by the scheme of the tags
//! ```
//!
//! The first five are those of the pipeline `token-classification` of `transformers`, and give the same answers. There,
//! words are found by the mark of tokens that continue one, such as `##`, or by blanks: then punctuation, and a sentence
//! without spaces, belong to the word before.

use serde::ser::{Serialize, SerializeMap, Serializer};
use tealight_model::names;

use crate::data::tags::scheme::{Entity, Scheme};
use crate::data::text::tokenizer::{Placed, Tokenizer};
use crate::error::Result;
use crate::inference::likeliest;

use super::units::Unit;

names! {
    /// How tags of tokens become tagged parts of a text.
    pub enum Strategy {
        /// Each token with its tag.
        "none" => None,
        /// Neighbouring tokens of one type.
        "simple" => Simple,
        /// Words with the tag of their first token, and neighbouring words of one type.
        "first" => First,
        /// Words with the tag of the mean of their tokens, and neighbouring words of one type.
        "average" => Average,
        /// Words with the tag of their most confident token, and neighbouring words of one type.
        "max" => Max,
        /// Words by the tokenizer's own split, and entities by the scheme of the tags.
        "word" => Word,
    }
}

/// A tagged part of a text. Serialised as the pipeline of `transformers` writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The tag of a token, or the type of a group.
    pub label: String,
    /// The probability, or its mean over tokens or words.
    pub score: f64,
    /// The place of a token among those of its piece, special ones included; `None` of a group.
    pub index: Option<usize>,
    /// The token, or the text.
    pub word: String,
    /// The first character of the text.
    pub start: usize,
    /// The character behind the last one.
    pub end: usize,
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { label, score, index, word, start, end } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(if index.is_some() { "entity" } else { "entity_group" }, label)?;
        map.serialize_entry("score", score)?;
        if let Some(index) = index {
            map.serialize_entry("index", index)?;
        }
        map.serialize_entry("word", word)?;
        map.serialize_entry("start", start)?;
        map.serialize_entry("end", end)?;
        map.end()
    }
}

/// A text whose tokens have been tagged.
pub(super) struct Tagged<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    /// The tags in the order of the outputs.
    pub(super) labels: &'a [String],
    pub(super) chars: &'a [char],
}

/// A token of a piece with the probabilities of its tags.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    /// Its place in its piece.
    pub(super) index: usize,
    pub(super) placed: Placed,
    pub(super) probabilities: &'a [f64],
}

impl Tagged<'_> {
    /// The parts of a text by one of the strategies of `transformers`.
    pub(super) fn spans(&self, tokens: &[Token<'_>], strategy: Strategy) -> Result<Vec<Span>> {
        let read: Vec<Read> = tokens.iter().map(|token| self.read(token)).collect();
        let one_by_one = || read.iter().zip(tokens).map(|(read, token)| self.of_token(read, token));
        match strategy {
            Strategy::None => Ok(one_by_one().collect()),
            Strategy::Simple => self.groups(one_by_one().collect()),
            _ => {
                let mut words: Vec<(Vec<&Read>, Vec<&Token<'_>>)> = Vec::new();
                for (read, token) in read.iter().zip(tokens) {
                    match words.last_mut().filter(|_| read.continues) {
                        Some((reads, tokens)) => {
                            reads.push(read);
                            tokens.push(token);
                        }
                        None => words.push((vec![read], vec![token])),
                    }
                }
                let words = words.iter().map(|(read, tokens)| self.of_word(read, tokens, strategy));
                self.groups(words.collect::<Result<_>>()?)
            }
        }
    }

    /// How the pipeline reads a token.
    fn read(&self, Token { placed: Placed { id, start, end, .. }, .. }: &Token<'_>) -> Read {
        let text: String = self.chars[*start..*end].iter().collect();
        if self.tokenizer.special().unknown == Some(*id) {
            return Read { word: text, continues: false };
        }
        let word = self.tokenizer.token(*id).unwrap_or_default();
        let continues = if self.tokenizer.marks_continued_words() {
            word.chars().count() != end - start
        } else {
            let around = &self.chars[start.saturating_sub(1)..(start + 1).min(self.chars.len())];
            *start > 0 && !around.contains(&' ')
        };
        Read { word, continues }
    }

    fn of_token(&self, Read { word, .. }: &Read, token: &Token<'_>) -> Span {
        let class = likeliest(token.probabilities);
        Span {
            label: self.labels[class].clone(),
            score: token.probabilities[class],
            index: Some(token.index),
            word: word.clone(),
            start: token.placed.start,
            end: token.placed.end,
        }
    }

    fn of_word(&self, reads: &[&Read], tokens: &[&Token<'_>], strategy: Strategy) -> Result<Span> {
        let highest = |token: &Token<'_>| token.probabilities[likeliest(token.probabilities)];
        let probabilities = match strategy {
            Strategy::Average => {
                let sum =
                    |class| tokens.iter().map(|token| token.probabilities[class]).sum::<f64>();
                (0..self.labels.len()).map(|class| sum(class) / tokens.len() as f64).collect()
            }
            Strategy::Max => {
                // Of equals the first.
                let best = tokens.iter().rev().max_by(|a, b| highest(a).total_cmp(&highest(b)));
                best.map_or(&[][..], |token| token.probabilities).to_vec()
            }
            _ => tokens[0].probabilities.to_vec(),
        };
        let class = likeliest(&probabilities);
        Ok(Span {
            label: self.labels[class].clone(),
            score: probabilities[class],
            index: None,
            word: self.tokenizer.joined(reads.iter().map(|read| read.word.clone()).collect())?,
            start: tokens[0].placed.start,
            end: tokens[tokens.len() - 1].placed.end,
        })
    }

    /// Neighbours of one type as one span.
    fn groups(&self, spans: Vec<Span>) -> Result<Vec<Span>> {
        let mut groups: Vec<Vec<Span>> = Vec::new();
        for span in spans {
            let (begins, label) = parts(&span.label);
            let goes_on = |group: &&mut Vec<Span>| {
                let last = group.last().map(|last| parts(&last.label).1);
                !begins && last == Some(label)
            };
            match groups.last_mut().filter(goes_on) {
                Some(group) => group.push(span),
                None => groups.push(vec![span]),
            }
        }
        groups.into_iter().map(|group| self.group(&group)).collect()
    }

    fn group(&self, spans: &[Span]) -> Result<Span> {
        let (first, last) = (&spans[0], &spans[spans.len() - 1]);
        // Behind the first hyphen, also of a tag without a prefix.
        let label = first.label.split_once('-').map_or(&*first.label, |(_, label)| label);
        Ok(Span {
            label: label.to_owned(),
            score: spans.iter().map(|span| span.score).sum::<f64>() / spans.len() as f64,
            index: None,
            word: self.tokenizer.joined(spans.iter().map(|span| span.word.clone()).collect())?,
            start: first.start,
            end: last.end,
        })
    }

    /// The entities by the scheme of the tags, of words with these tags.
    pub(super) fn entities(&self, words: &[(Unit, WordTag)], scheme: Scheme) -> Vec<Span> {
        let tags: Vec<&str> = words.iter().map(|(_, word)| &*word.tag).collect();
        let entities = scheme.entities(&tags).into_iter();
        let span = |entity: Entity| {
            let within = &words[entity.start..entity.end];
            let (start, end) = (within[0].0.chars.start, within[within.len() - 1].0.chars.end);
            Span {
                label: entity.label,
                score: within.iter().map(|(_, word)| word.score).sum::<f64>() / within.len() as f64,
                index: None,
                word: self.chars[start..end].iter().collect(),
                start,
                end,
            }
        };
        entities.map(span).collect()
    }
}

/// The tag of a word, and its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct WordTag {
    /// The tag.
    pub tag: String,
    /// Its probability; 1 for a word without a token, whose tag is `O`.
    pub score: f64,
}

/// A token as the pipeline reads it.
struct Read {
    word: String,
    /// Whether it belongs to the word before.
    continues: bool,
}

/// Whether a tag begins a group, and its type.
fn parts(tag: &str) -> (bool, &str) {
    match (tag.strip_prefix("B-"), tag.strip_prefix("I-")) {
        (Some(label), _) => (true, label),
        (_, Some(label)) => (false, label),
        _ => (false, tag),
    }
}

/// Of entities that overlap, the longer or, of equal length, the one of higher probability, as the pipeline chooses
/// between those of overlapping pieces.
pub(super) fn without_overlaps(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.start);
    let mut kept: Vec<Span> = Vec::new();
    for span in spans {
        match kept.last_mut().filter(|last| last.start <= span.start && span.start < last.end) {
            Some(last) => {
                let [length, of_last] = [&span, &*last].map(|one| one.end - one.start);
                if length > of_last || length == of_last && span.score > last.score {
                    *last = span;
                }
            }
            None => kept.push(span),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(label: &str, start: usize, end: usize, score: f64) -> Span {
        Span { label: label.to_owned(), score, index: None, word: String::new(), start, end }
    }

    #[test]
    fn of_overlapping_entities_the_longer_is_kept_and_then_the_likelier() {
        let spans = vec![
            span("B", 4, 6, 0.9),
            span("A", 0, 5, 0.2),
            span("C", 7, 9, 0.5),
            span("D", 7, 9, 0.6),
        ];
        let kept: Vec<_> = without_overlaps(spans).into_iter().map(|one| one.label).collect();
        assert_eq!(kept, ["A", "D"]);
    }

    #[test]
    fn tokens_and_groups_have_the_names_of_transformers() {
        let token = Span { index: Some(3), ..span("B-PER", 0, 2, 0.5) };
        let json = serde_json::to_string(&token).unwrap();
        assert_eq!(json, r#"{"entity":"B-PER","score":0.5,"index":3,"word":"","start":0,"end":2}"#);
        let json = serde_json::to_string(&span("PER", 0, 2, 0.5)).unwrap();
        assert!(json.starts_with(r#"{"entity_group":"PER","score":0.5,"word""#), "{json}");
        assert_eq!(
            [parts("B-a-b"), parts("I-a"), parts("NOUN")],
            [(true, "a-b"), (false, "a"), (false, "NOUN")]
        );
    }
}
