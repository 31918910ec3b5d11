//! Drawn sentences about persons, places and firms, of which the best possible tags are known.
//!
//! ```text
//! Anna   went to  New   York  .          Jordan works at Acme  .        We spoke of Jordan .
//! B-PER  O    O   B-LOC I-LOC O          B-PER  O     O  B-ORG O        O  O     O  ?
//! ```
//!
//! Some names are those of two types. In most sentences the other words tell which one is meant; in a sentence that names
//! something without a hint, it is the usual type with a probability of 4/5. The best possible tagger gives the usual type
//! there, and all other tags are certain.

use std::path::Path;

use tealight_ops::rng::{Purpose, Stream};

use super::scheme::{Entity, Scheme};
use super::{Content, Sentence, Sentences};
use crate::data::text::corpus::Origin;

/// The probability of the usual type of a name, where nothing else tells it.
const USUAL: f64 = 0.8;
const PERSON: usize = 0;
const PLACE: usize = 1;
const FIRM: usize = 2;
const TYPES: [&str; 3] = ["PER", "LOC", "ORG"];

/// A name, and its types: the usual one first.
type Name = (&'static str, &'static [usize]);

const NAMES: [Name; 36] = [
    ("Anna", &[PERSON]),
    ("Aiko Tanaka", &[PERSON]),
    ("Omar", &[PERSON]),
    ("Lena", &[PERSON]),
    ("Tariq Aziz", &[PERSON]),
    ("Mia", &[PERSON]),
    ("Jonas", &[PERSON]),
    ("Ines Duarte", &[PERSON]),
    ("Kyoto", &[PLACE]),
    ("New York", &[PLACE]),
    ("São Paulo", &[PLACE]),
    ("Oslo", &[PLACE]),
    ("Cape Town", &[PLACE]),
    ("Lisbon", &[PLACE]),
    ("Tbilisi", &[PLACE]),
    ("Otaru", &[PLACE]),
    ("Acme", &[FIRM]),
    ("Globex", &[FIRM]),
    ("Blue Harbour Bank", &[FIRM]),
    ("Nordlicht", &[FIRM]),
    ("Initech", &[FIRM]),
    ("Salt & Sons", &[FIRM]),
    ("Jordan", &[PERSON, PLACE]),
    ("Florence", &[PLACE, PERSON]),
    ("Sydney", &[PLACE, PERSON]),
    ("Austin", &[PERSON, PLACE]),
    ("Chester", &[PLACE, PERSON]),
    ("Morgan", &[PERSON, FIRM]),
    ("Siemens", &[FIRM, PERSON]),
    ("Ford", &[FIRM, PERSON]),
    ("Wells", &[PERSON, FIRM]),
    ("Lancaster", &[PLACE, FIRM]),
    ("Bristol", &[PLACE, FIRM]),
    ("Orient", &[FIRM, PLACE]),
    ("Paris", &[PLACE, PERSON]),
    ("Amazon", &[FIRM, PLACE]),
];

/// Sentences: `1`, `2` and `3` stand for a person, a place and a firm, `?` for any of them.
const PATTERNS: [&str; 16] = [
    "1 went to 2 .",
    "1 works at 3 in 2 .",
    "3 opened an office in 2 .",
    "1 met 1 at 3 .",
    "The train from 2 to 2 was late .",
    "1 lives in 2 and works for 3 .",
    "3 was bought by 3 last year .",
    "Yesterday 1 called 1 from 2 .",
    "2 is colder than 2 in winter .",
    "Shares of 3 fell .",
    "1 said that 3 will leave 2 .",
    "It rained all day .",
    "We spoke of ? .",
    "? was mentioned twice .",
    "I read about ? and ? .",
    "Nobody had heard of ? before .",
];

/// Drawn sentences, and the best possible tags of each.
#[derive(Clone, Debug)]
pub struct Visits {
    /// The sentences with their tags.
    pub sentences: Sentences,
    /// The entities that the best possible tagger gives.
    pub best: Vec<Vec<Entity>>,
}

impl Visits {
    /// The first `n` sentences of a `seed`, those to train on or others that are held out.
    pub fn new(seed: u64, is_held_out: bool, n: usize) -> Self {
        let which = if is_held_out { "visits, held out" } else { "visits" };
        let stream = Stream::new(seed, Purpose::Data).fork_name(which);
        let (mut all, mut best) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for index in 0..n {
            let (words, drawn, usual) = sentence(stream.fork(index as u64));
            let tags = Scheme::Iob2.tags(&drawn, words.len());
            let origin = Origin { path: Path::new("visits").into(), line: index as u64 + 1 };
            all.push(Sentence { content: Content::Words { words, tags }, origin, document: index });
            best.push(usual);
        }
        let sentences = Sentences { all, scheme: Some(Scheme::Iob2), notes: Vec::new() };
        Self { sentences, best }
    }
}

/// The words of a sentence, its entities, and those of the best possible tagger.
fn sentence(stream: Stream) -> (Vec<String>, Vec<Entity>, Vec<Entity>) {
    let pattern = PATTERNS[stream.below(0, PATTERNS.len() as u64) as usize];
    let (mut words, mut drawn, mut usual) = (Vec::new(), Vec::new(), Vec::new());
    for (at, word) in (1..).zip(pattern.split(' ')) {
        let wanted = match word {
            "1" => Some(PERSON),
            "2" => Some(PLACE),
            "3" => Some(FIRM),
            "?" => None,
            _ => {
                words.push(word.to_owned());
                continue;
            }
        };
        let fits: Vec<&Name> =
            NAMES.iter().filter(|(_, types)| wanted.is_none_or(|of| types.contains(&of))).collect();
        let stream = stream.fork(at);
        let (name, types) = fits[stream.below(0, fits.len() as u64) as usize];
        let is_usual = types.len() == 1 || stream.uniform(1) < USUAL;
        let of = wanted.unwrap_or(types[usize::from(!is_usual)]);
        let start = words.len();
        words.extend(name.split(' ').map(str::to_owned));
        let entity = |of: usize| Entity { label: TYPES[of].to_owned(), start, end: words.len() };
        drawn.push(entity(of));
        usual.push(entity(wanted.unwrap_or(types[0])));
    }
    (words, drawn, usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_drawn_by_seed_and_index_and_the_best_tags_are_mostly_right() {
        let Visits { sentences, best } = Visits::new(5, false, 4000);
        let again = Visits::new(5, false, 10);
        assert_eq!(again.sentences.all, sentences.all[..10]);
        assert_ne!(Visits::new(5, true, 10).sentences.all, again.sentences.all);
        let (mut right, mut n) = (0, 0);
        for (sentence, best) in sentences.all.iter().zip(&best) {
            let Content::Words { words, tags } = &sentence.content else { panic!() };
            assert_eq!(words.len(), tags.len());
            let given = Scheme::Iob2.entities(tags);
            assert_eq!(given.len(), best.len());
            right += given.iter().zip(best).filter(|(one, other)| one == other).count();
            n += given.len();
        }
        // Five of 24 names are drawn where nothing tells their type, 14 of 36 of these have two, and a fifth is the other.
        let share = right as f64 / n as f64;
        assert!((0.97..0.99).contains(&share), "{share}");
    }
}
