//! Drawn pairs of sentences that say the same in other words, whose best possible retrieval is known.
//!
//! ```text
//! at home the nurse mended a jug        the one who heals repaired a pitcher in the house
//! the chef broke a bag                  near the shore the cook smashed a sack        its place is told by one of them
//! ```
//!
//! A sentence has a person, a deed, a thing and a place. Each of them has several names, and the two sentences of a pair
//! have no name in common. Of each combination of person, deed and thing there are four pairs, which differ in the place and
//! its name alone; three first sentences of four tell it. Without it, all four second sentences fit as well, so the best
//! possible answer is right one time in four. No combination is both trained on and held out.

use tealight_ops::rng::{Purpose, Stream};

/// Names of the same.
type Names = &'static [&'static str];

const PERSONS: [Names; 12] = [
    &["the nurse", "the one who heals"],
    &["the chef", "the cook"],
    &["the teacher", "the schoolmaster"],
    &["a child", "a little one"],
    &["the farmer", "a grower of corn"],
    &["the king", "his majesty"],
    &["a thief", "a burglar"],
    &["the captain", "the skipper"],
    &["my mother", "mum"],
    &["the painter", "an artist"],
    &["the lawyer", "an attorney"],
    &["a stranger", "someone unknown"],
];

const DEEDS: [Names; 10] = [
    &["mended", "repaired", "fixed"],
    &["broke", "smashed"],
    &["bought", "paid for"],
    &["lost", "could not find"],
    &["hid", "concealed"],
    &["cleaned", "washed", "scrubbed"],
    &["carried", "bore"],
    &["drew", "made a picture of"],
    &["stole", "took without asking"],
    &["sold", "got money for"],
];

const THINGS: [Names; 12] = [
    &["a jug", "a pitcher"],
    &["a bag", "a sack"],
    &["the car", "the automobile"],
    &["a coat", "a jacket"],
    &["the lamp", "a light"],
    &["a boat", "a small ship"],
    &["the sofa", "the couch"],
    &["a stone", "a rock"],
    &["the bike", "a bicycle"],
    &["a purse", "a wallet"],
    &["the rug", "a carpet"],
    &["a novel", "the book"],
];

const PLACES: [Names; 10] = [
    &["at home", "in the house"],
    &["by the sea", "near the shore"],
    &["in town", "among the city streets"],
    &["in the woods", "between the trees"],
    &["at school", "in the classroom"],
    &["in the cellar", "below the ground floor"],
    &["on the hill", "high above the valley"],
    &["at the shop", "inside a store"],
    &["on a train", "along the railway"],
    &["in the garden", "out among the flowers"],
];

/// Pairs of a combination.
pub(crate) const FAMILY: usize = 4;
/// The combinations of person, deed and thing.
const COMBINATIONS: usize = PERSONS.len() * DEEDS.len() * THINGS.len();
/// Of them, those that are held out.
const HELD_OUT: usize = COMBINATIONS / 5;
/// How many pairs can be held out.
pub(crate) const MAX_HELD_OUT: usize = HELD_OUT * FAMILY;

/// A pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paraphrase {
    /// May leave the place out.
    pub(crate) first: String,
    /// Says the same in other words.
    pub(crate) second: String,
    /// Whether the first tells the place: then no other pair fits it.
    pub(crate) is_certain: bool,
}

/// The first `n` pairs of a `seed`, those to train on or others that are held out, of which there are at most
/// [`MAX_HELD_OUT`].
pub(crate) fn paraphrases(seed: u64, is_held_out: bool, n: usize) -> Vec<Paraphrase> {
    let stream = Stream::new(seed, Purpose::Data).fork_name("paraphrases");
    let combinations = stream.fork_name("combinations").permutation(COMBINATIONS);
    let (held_out, trained) = combinations.split_at(HELD_OUT);
    let own = if is_held_out { held_out } else { trained };
    let stream = stream.fork_name(if is_held_out { "held out" } else { "trained on" });
    (0..n).map(|index| pair(stream, own, index)).collect()
}

fn pair(stream: Stream, combinations: &[usize], index: usize) -> Paraphrase {
    let family = index / FAMILY;
    let of_family = stream.fork(family as u64);
    let places = of_family.permutation(PLACES.len());
    let combination = combinations[family % combinations.len()];
    let (person, rest) = (combination % PERSONS.len(), combination / PERSONS.len());
    let (deed, thing) = (rest % DEEDS.len(), rest / DEEDS.len());
    let place = PLACES[places[index % FAMILY]];
    let stream = of_family.fork_name("pair").fork((index % FAMILY) as u64);
    let of_names = of_family.fork_name("names");
    let mut sides = [[""; 4]; 2];
    // Other names of a family would tell which of its second sentences belongs to a first one without a place.
    let parts = [
        (PERSONS[person], of_names),
        (DEEDS[deed], of_names),
        (THINGS[thing], of_names),
        (place, stream),
    ];
    for (at, (names, stream)) in parts.into_iter().enumerate() {
        let order = stream.fork(at as u64).permutation(names.len());
        (sides[0][at], sides[1][at]) = (names[order[0]], names[order[1]]);
    }
    let is_certain = stream.below(0, FAMILY as u64) != 0;
    let [first, second] = sides;
    Paraphrase {
        first: sentence(first, is_certain, stream.below(1, 2) == 0),
        second: sentence(second, true, stream.below(2, 2) == 0),
        is_certain,
    }
}

/// The place stands at the beginning or at the end.
fn sentence([person, deed, thing, place]: [&str; 4], tells_place: bool, begins: bool) -> String {
    match (tells_place, begins) {
        (false, _) => format!("{person} {deed} {thing}"),
        (true, true) => format!("{place} {person} {deed} {thing}"),
        (true, false) => format!("{person} {deed} {thing} {place}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pairs_are_drawn_by_seed_and_index_and_second_sentences_are_different() {
        let held_out = paraphrases(5, true, MAX_HELD_OUT);
        assert_eq!(paraphrases(5, true, 10), held_out[..10]);
        assert_ne!(paraphrases(6, true, 10), held_out[..10]);
        let trained = paraphrases(5, false, 3000);
        let seconds: BTreeSet<_> = held_out.iter().chain(&trained).map(|one| &one.second).collect();
        assert_eq!(seconds.len(), held_out.len() + trained.len());
        let certain = held_out.iter().filter(|one| one.is_certain).count() as f64;
        let share = certain / held_out.len() as f64;
        assert!((0.71..0.79).contains(&share), "{share}");
    }

    /// Without the place, nothing tells which second sentence of a family belongs to a first one.
    #[test]
    fn a_first_sentence_without_its_place_fits_all_of_its_family() {
        for family in paraphrases(5, true, 400).chunks(FAMILY) {
            let firsts: BTreeSet<_> =
                family.iter().filter(|one| !one.is_certain).map(|one| &one.first).collect();
            assert!(firsts.len() < 2, "{firsts:?}");
            let without_place = |text: &str| {
                let place =
                    PLACES.iter().flat_map(|names| names.iter()).find(|name| text.contains(**name));
                text.replace(place.unwrap(), "").trim().to_owned()
            };
            let seconds: BTreeSet<_> =
                family.iter().map(|one| without_place(&one.second)).collect();
            assert_eq!(seconds.len(), 1, "{seconds:?}");
        }
    }

    #[test]
    fn both_sentences_of_a_pair_name_the_same_in_other_words() {
        let named = |text: &str, all: &[Names]| {
            let is_named = |names: &&Names| names.iter().any(|name| text.contains(name));
            all.iter().filter(is_named).map(|names| names[0]).collect::<Vec<_>>()
        };
        for Paraphrase { first, second, is_certain } in paraphrases(5, false, 400) {
            for (all, is_told) in [
                (&PERSONS[..], true),
                (&DEEDS[..], true),
                (&THINGS[..], true),
                (&PLACES[..], is_certain),
            ] {
                let both = (named(&first, all), named(&second, all));
                assert_eq!(
                    (both.0.len(), both.1.len()),
                    (usize::from(is_told), 1),
                    "{first} | {second}"
                );
                assert!(!is_told || both.0 == both.1, "{first} | {second}");
            }
        }
    }
}
