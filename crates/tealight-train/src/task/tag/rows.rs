//! Sentences as rows of token ids, with the tags of their words.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use tealight_ops::cross_entropy::IGNORE_INDEX;

use super::config::{Config, SubWords};
use crate::data::shown::on_one_line;
use crate::data::tags::scheme::{Entity, Scheme, type_of};
use crate::data::tags::{Content, Sentence};
use crate::data::text::tokenizer::{Frame, Tokenizer};
use crate::error::Result;
use crate::inference::labels::Labels;
use crate::inference::tagger::pieces::{Piece, pieces};
use crate::inference::tagger::units::{Unit, units_of_text, units_of_words};
use crate::task::table::thousands;

/// A token with the tag of its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Its place in its row.
    pub(super) position: u32,
    /// The tag, or [`IGNORE_INDEX`] for one that the model does not have.
    pub(super) class: i64,
    /// The word of the held-out sentences, counted over all of them; 0 in training.
    pub(super) word: usize,
}

/// A piece of a sentence as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) ids: Vec<u32>,
    pub(super) targets: Vec<Target>,
}

/// A sentence as tokens, its words and their tags in the scheme that is learnt.
pub(super) struct Encoded {
    pub(super) ids: Vec<u32>,
    pub(super) units: Vec<Unit>,
    pub(super) words: Vec<String>,
    pub(super) tags: Vec<String>,
    /// Entities whose ends are within a word, and that no word belongs to.
    n_rounded: usize,
    n_lost: usize,
}

/// Sentences as tokens, whose tags are converted `from` the scheme of the file, if they have one, `to` that which is learnt.
///
/// # Errors
/// If the tokenizer fails, with the place of the sentence.
pub(super) fn encode(
    sentences: &[Sentence],
    tokenizer: &Tokenizer,
    from: Option<Scheme>,
    to: Scheme,
) -> Result<Vec<Encoded>> {
    let encoded = sentences.par_iter().map(|one| {
        encoded(one, tokenizer, from, to).map_err(|error| one.origin.error(error.to_string()))
    });
    encoded.collect::<Vec<_>>().into_iter().collect()
}

fn encoded(
    sentence: &Sentence,
    tokenizer: &Tokenizer,
    from: Option<Scheme>,
    to: Scheme,
) -> Result<Encoded> {
    match &sentence.content {
        Content::Words { words, tags } => {
            let placed = tokenizer.placed_words(words)?;
            let tags = match from.filter(|&from| from != to) {
                Some(from) => to.tags(&from.entities(tags), words.len()),
                None => tags.clone(),
            };
            let (units, ids) =
                (units_of_words(words.len(), &placed), placed.iter().map(|one| one.id));
            let (ids, words) = (ids.collect(), words.clone());
            Ok(Encoded { ids, units, words, tags, n_rounded: 0, n_lost: 0 })
        }
        Content::Text { text, entities } => {
            let placed = tokenizer.placed(text)?;
            let units = units_of_text(text, &placed);
            let chars: Vec<char> = text.chars().collect();
            let words: Vec<String> =
                units.iter().map(|unit| chars[unit.chars.clone()].iter().collect()).collect();
            let (mut found, mut n_rounded, mut n_lost) = (Vec::<Entity>::new(), 0, 0);
            for Entity { label, start, end } in entities {
                let touches = |unit: &&Unit| unit.chars.start < *end && unit.chars.end > *start;
                let first = units.iter().position(|unit| touches(&unit));
                let last = units.iter().rposition(|unit| touches(&unit));
                let after = found.last().map_or(0, |before| before.end);
                match first.zip(last).map(|(first, last)| (first.max(after), last)) {
                    Some((first, last)) if first <= last => {
                        let of_units = units[first].chars.start..units[last].chars.end;
                        n_rounded += usize::from(of_units != (*start..*end));
                        found.push(Entity { label: label.clone(), start: first, end: last + 1 });
                    }
                    _ => n_lost += 1,
                }
            }
            let (tags, ids) =
                (to.tags(&found, units.len()), placed.iter().map(|one| one.id).collect());
            Ok(Encoded { ids, units, words, tags, n_rounded, n_lost })
        }
    }
}

/// How sentences become rows.
pub(super) struct Rows<'a> {
    pub(super) config: &'a Config,
    pub(super) frame: &'a Frame,
    /// The most tokens of a row between special ones.
    pub(super) len: usize,
    pub(super) classes: &'a BTreeMap<&'a str, u32>,
    pub(super) scheme: Scheme,
}

impl Rows<'_> {
    /// The rows of a sentence: held out, with the number of its first word among all, or to train on.
    pub(super) fn of(&self, sentence: &Encoded, held_out: Option<usize>) -> Vec<Row> {
        let Self { config, frame, len, scheme, .. } = *self;
        let class =
            |tag: &str| self.classes.get(tag).map_or(IGNORE_INDEX, |&class| i64::from(class));
        let stride = config.stride.min(len - 1);
        let trains_all = held_out.is_none() && config.sub_words == SubWords::All;
        let pieces = pieces(sentence.ids.len(), len, stride).into_iter();
        let row = |piece: Piece| {
            let mut targets = Vec::new();
            for (word, (unit, tag)) in sentence.units.iter().zip(&sentence.tags).enumerate() {
                let n = if trains_all { unit.tokens.len() } else { unit.tokens.len().min(1) };
                for at in unit.tokens.start..unit.tokens.start + n {
                    if !piece.owned.contains(&at) {
                        continue;
                    }
                    let is_first = at == unit.tokens.start;
                    let continued = || {
                        let continued = class(&scheme.continued(tag));
                        if continued == IGNORE_INDEX { class(tag) } else { continued }
                    };
                    targets.push(Target {
                        position: (at - piece.tokens.start + frame.opening.len()) as u32,
                        class: if is_first { class(tag) } else { continued() },
                        word: held_out.map_or(0, |first| first + word),
                    });
                }
            }
            Row { ids: frame.around(sentence.ids[piece.tokens].iter().copied()), targets }
        };
        pieces.map(row).collect()
    }
}

/// # Errors
/// If a tag is of a type that no label has: the first with its place, and the types that are known.
pub(super) fn check_types(
    labels: &Labels,
    sentences: &[Sentence],
    encoded: &[Encoded],
) -> Result<()> {
    let known: BTreeSet<Option<&str>> = labels.names().iter().map(|name| type_of(name)).collect();
    for (sentence, one) in sentences.iter().zip(encoded) {
        let unknown = one.tags.iter().position(|tag| !known.contains(&type_of(tag)));
        if let Some(at) = unknown {
            let shown: Vec<_> = labels.names().iter().map(|name| format!("\"{name}\"")).collect();
            return Err(sentence.origin.error(format!(
                "the word \"{}\" has the tag \"{}\", whose type the model does not have: its tags are {}",
                on_one_line(&one.words[at]),
                on_one_line(&one.tags[at]),
                shown.join(", ")
            )));
        }
    }
    Ok(())
}

/// How many words have a tag that the model does not have, such as `B-PER` where its labels have `I-PER` alone.
pub(super) fn without_loss(train: &[Encoded], classes: &BTreeMap<&str, u32>) -> Option<String> {
    let tags = train.iter().flat_map(|one| &one.tags);
    let unknown: Vec<&String> = tags.filter(|tag| !classes.contains_key(tag.as_str())).collect();
    let first = unknown.first()?;
    let n = thousands(unknown.len() as u64);
    Some(format!(
        "words with a tag that `task.labels` does not have, such as \"{}\": {n}. They have no loss",
        on_one_line(first)
    ))
}

/// Words without a token, and entities whose ends are within a word.
pub(super) fn of_words<'a>(encoded: impl Iterator<Item = &'a Encoded>) -> Vec<String> {
    let (mut n_without, mut n_rounded, mut n_lost) = (0, 0, 0);
    for one in encoded {
        n_without += one.units.iter().filter(|unit| unit.tokens.is_empty()).count();
        n_rounded += one.n_rounded;
        n_lost += one.n_lost;
    }
    let told = |what: &str, n: usize, then: &str| {
        (n > 0).then(|| format!("{what}: {}. {then}", thousands(n as u64)))
    };
    [
        told(
            "words without a token",
            n_without,
            "They are predicted to be outside of all entities",
        ),
        told(
            "entities that begin or end within a word",
            n_rounded,
            "They are rounded to whole words",
        ),
        told("entities without a word of their own", n_lost, "They are left out"),
    ]
    .into_iter()
    .flatten()
    .collect()
}
