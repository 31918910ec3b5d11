//! Scores of entities: precision, recall and F1 over whole entities, as seqeval and conlleval count them.
//!
//! ```text
//! f1          entities read as conlleval reads tags, whatever the scheme
//! strict_f1   only entities that the scheme allows
//! macro_f1    the mean of the F1 of all types that occur or are predicted
//! ```
//!
//! Counts are those of the whole split; an entity does not go on in the next sentence. Without a scheme, each word with
//! another tag than `O` is an entity.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::tags::scheme::{Entity, Scheme};
use crate::task::scores::{Counts, macro_f1};

/// Entities counted by type, and words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// By type.
    pub(super) types: BTreeMap<String, Counts>,
    /// Those that the scheme allows, by type.
    pub(super) strict: BTreeMap<String, Counts>,
    pub(super) n_words: u64,
    pub(super) n_right: u64,
}

impl Tally {
    /// Counts the tags of sentences and the predicted ones.
    pub(super) fn new<'a>(
        scheme: Scheme,
        sentences: impl IntoIterator<Item = (&'a [String], &'a [String])>,
    ) -> Self {
        let mut tally = Self::default();
        for (given, predicted) in sentences {
            tally.n_words += given.len() as u64;
            tally.n_right += given.iter().zip(predicted).filter(|(a, b)| a == b).count() as u64;
            count(&mut tally.types, &scheme.entities(given), &scheme.entities(predicted));
            // Tags of another scheme are none.
            let strict = |tags: &[String]| scheme.strict(tags).unwrap_or_default();
            count(&mut tally.strict, &strict(given), &strict(predicted));
        }
        tally
    }

    /// All metrics of a model whose tags have this scheme.
    pub(super) fn scores(&self, scheme: Scheme) -> Vec<(&'static str, f64)> {
        let all = Counts::sum(self.types.values());
        let by_type: Vec<Counts> = self.types.values().copied().collect();
        let strict = Counts::sum(self.strict.values()).f1();
        let strict = (scheme != Scheme::None).then_some(("strict_f1", strict));
        let accuracy = self.n_right as f64 / self.n_words.max(1) as f64;
        [
            ("accuracy", accuracy),
            ("precision", all.precision()),
            ("recall", all.recall()),
            ("f1", all.f1()),
            ("macro_f1", macro_f1(&by_type)),
        ]
        .into_iter()
        .chain(strict)
        .collect()
    }
}

/// Adds the entities of a sentence.
pub(super) fn count(types: &mut BTreeMap<String, Counts>, given: &[Entity], predicted: &[Entity]) {
    let [given, predicted] = [given, predicted].map(|all| all.iter().collect::<BTreeSet<_>>());
    for entity in given.union(&predicted) {
        let counts = types.entry(entity.label.clone()).or_default();
        counts.add(given.contains(entity), predicted.contains(entity));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tealight_model::names::Named as _;

    use super::*;
    use crate::data::tags::scheme::lenient;

    /// What seqeval counts for random and for malformed sequences.
    fn recorded() -> Value {
        serde_json::from_str(include_str!("../../../tests/golden/tags.json")).unwrap()
    }

    fn sentences(value: &Value) -> Vec<Vec<String>> {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn assert_counts(label: &str, recorded: &Value, types: &BTreeMap<String, Counts>) {
        let expected = recorded["counts"].as_object().unwrap();
        for (name, counts) in expected {
            let of = |key: &str| counts[key].as_u64().unwrap();
            let own = types.get(name).copied().unwrap_or_default();
            let own = (own.n_given(), own.found + own.wrong, own.found);
            assert_eq!((of("true"), of("predicted"), of("right")), own, "{label}, {name}");
        }
        assert!(types.keys().all(|name| expected.contains_key(name)), "{label}");
        let all = Counts::sum(types.values());
        for (name, own) in
            [("precision", all.precision()), ("recall", all.recall()), ("f1", all.f1())]
        {
            let off = (recorded[name].as_f64().unwrap() - own).abs();
            assert!(off < 1e-12, "{label}, {name}");
        }
        if let Some(expected) = recorded["report"]["macro avg"]["f1-score"].as_f64() {
            let by_type: Vec<_> = types.values().copied().collect();
            assert!((macro_f1(&by_type) - expected).abs() < 1e-12, "{label}");
        }
    }

    #[test]
    fn entities_are_counted_as_seqeval_counts_them() {
        let (mut n_strict, mut n_refused) = (0, 0);
        for case in recorded()["sequences"].as_array().unwrap() {
            let label = case["name"].as_str().unwrap();
            let [given, predicted] = ["true", "predicted"].map(|key| sentences(&case[key]));
            let mut types = BTreeMap::new();
            for (given, predicted) in given.iter().zip(&predicted) {
                count(&mut types, &lenient(given), &lenient(predicted));
            }
            assert_counts(label, &case["default"], &types);
            for (name, recorded) in case["strict"].as_object().unwrap() {
                let known = |scheme: &&Scheme| scheme.name().eq_ignore_ascii_case(name);
                let Some(&scheme) = Scheme::ALL.iter().find(known) else { continue };
                let strict = |all: &[Vec<String>]| -> Result<Vec<Vec<Entity>>, String> {
                    all.iter().map(|tags| scheme.strict(tags)).collect()
                };
                let label = format!("{label}, {name}");
                let both = strict(&given).and_then(|given| Ok((given, strict(&predicted)?)));
                if recorded.get("refuses").is_some() {
                    both.unwrap_err();
                    n_refused += 1;
                    continue;
                }
                let (given, predicted) = both.unwrap_or_else(|error| panic!("{label}: {error}"));
                let mut types = BTreeMap::new();
                given.iter().zip(&predicted).for_each(|(a, b)| count(&mut types, a, b));
                assert_counts(&label, recorded, &types);
                n_strict += 1;
            }
        }
        assert!(n_strict > 40 && n_refused > 10, "{n_strict} {n_refused}");
    }

    #[test]
    fn spans_become_tags_of_every_scheme_as_recorded() {
        for case in recorded()["conversions"].as_array().unwrap() {
            let entity = |one: &Value| Entity {
                label: one[0].as_str().unwrap().to_owned(),
                start: one[1].as_u64().unwrap() as usize,
                end: one[2].as_u64().unwrap() as usize + 1,
            };
            let entities: Vec<_> = case["spans"].as_array().unwrap().iter().map(entity).collect();
            let n = case["words"].as_u64().unwrap() as usize;
            for scheme in Scheme::ALL.iter().filter(|&&scheme| scheme != Scheme::None) {
                let expected: Vec<String> =
                    serde_json::from_value(case[scheme.name().to_uppercase()].clone()).unwrap();
                assert_eq!(scheme.tags(&entities, n), expected, "{scheme:?}");
            }
        }
    }

    #[test]
    fn an_entity_ends_with_its_sentence_and_words_count_for_the_accuracy() {
        let tags = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let (given, predicted) = (tags(&["B-A", "I-A", "O"]), tags(&["B-A", "O", "O"]));
        let tally = Tally::new(Scheme::Iob2, [(&given[..], &predicted[..])]);
        assert_eq!((tally.n_right, tally.n_words), (2, 3));
        let scores: BTreeMap<_, _> = tally.scores(Scheme::Iob2).into_iter().collect();
        assert_eq!((scores["f1"], scores["strict_f1"]), (0., 0.));
        let pos = tags(&["NOUN", "VERB"]);
        let tally = Tally::new(Scheme::None, [(&pos[..], &pos[..])]);
        assert_eq!(tally.types.len(), 2);
        assert!(tally.scores(Scheme::None).iter().all(|(name, _)| *name != "strict_f1"));
    }
}
