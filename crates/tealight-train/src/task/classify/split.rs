//! Which texts are held out, where a share of a file is.
//!
//! ```text
//! hashed       each text with probability `share`, by a hash of its characters
//! stratified   `share` of the texts of each label; texts whose letters and digits are equal stay together
//! ```
//!
//! A text with several labels counts for each of them: labels are taken in ascending order of their number of texts, so
//! that a frequent label makes up for what a rare one leaves open (iterative stratification, Sechidis et al. 2011,
//! <https://doi.org/10.1007/978-3-642-23808-6_10>). No text is held out that is the last one of a label to train on.

use std::collections::BTreeMap;

use tealight_model::names;
use tealight_ops::rng::Stream;

use super::file::{Example, Label};
use crate::inference::text_classifier::Text;

names! {
    /// Which texts a share holds out.
    pub enum SplitBy {
        /// Each text with the same probability, whatever its label: how versions without this setting split.
        "hashed" => Hashed,
        /// The same share of each label, so that each class of two different texts or more is both trained on and held out, and
        /// each of several labels trained on. Texts that differ only in case, spaces and punctuation are on one side.
        "stratified" => Stratified,
    }
}

impl SplitBy {
    /// For each example whether it is in the share that is held out.
    pub(super) fn held_out(self, examples: &[Example], share: f64, stream: Stream) -> Vec<bool> {
        match self {
            Self::Hashed => examples.iter().map(|one| hash(stream, &one.text) < share).collect(),
            Self::Stratified => stratified(examples, share, stream),
        }
    }
}

/// A number in [0, 1) for a text; of a pair, for both texts.
fn hash(stream: Stream, Text { text, text_pair }: &Text) -> f64 {
    let of_first = stream.fork_name(text);
    text_pair.as_ref().map_or(of_first, |pair| of_first.fork_name(pair)).uniform(0)
}

/// A text with its copies.
struct Group<'a> {
    place: f64,
    labels: Vec<&'a str>,
    /// `None` as long as it is on no side.
    is_held_out: Option<bool>,
}

/// For each example whether it is held out.
fn stratified(examples: &[Example], share: f64, stream: Stream) -> Vec<bool> {
    let keys: Vec<Text> = examples.iter().map(|one| normalised(&one.text)).collect();
    let mut groups: BTreeMap<&Text, Group<'_>> = BTreeMap::new();
    for (key, example) in keys.iter().zip(examples) {
        let new = || Group { place: hash(stream, key), labels: Vec::new(), is_held_out: None };
        let labels = match &example.label {
            Label::Class(class) => vec![&**class],
            Label::Labels(labels) if !labels.is_empty() => {
                labels.iter().map(String::as_str).collect()
            }
            // All numbers, or texts of no label, are one class.
            Label::Labels(_) | Label::Number(_) => vec![""],
        };
        groups.entry(key).or_insert_with(new).labels.extend(labels);
    }
    let mut in_order: Vec<&mut Group<'_>> = groups.values_mut().collect();
    in_order.sort_by(|one, other| one.place.total_cmp(&other.place));
    let mut by_label: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, group) in in_order.iter_mut().enumerate() {
        group.labels.sort_unstable();
        group.labels.dedup();
        group.labels.iter().for_each(|label| by_label.entry(label).or_default().push(at));
    }
    let mut n_to_train: BTreeMap<&str, usize> =
        by_label.iter().map(|(&label, members)| (label, members.len())).collect();
    let mut labels: Vec<_> = by_label.into_values().collect();
    labels.sort_by_key(Vec::len);
    for members in labels {
        let n = members.len();
        let wanted = match n {
            1 => 0,
            _ => ((n as f64 * share).round() as usize).clamp(1, n - 1),
        };
        let is_held_out = |&&at: &&usize| in_order[at].is_held_out == Some(true);
        let mut n_left = wanted.saturating_sub(members.iter().filter(is_held_out).count());
        for at in members {
            let group = &mut *in_order[at];
            if group.is_held_out.is_none() {
                let is_last = group.labels.iter().any(|label| n_to_train[label] == 1);
                let is_held_out = n_left > 0 && !is_last;
                group.is_held_out = Some(is_held_out);
                if is_held_out {
                    n_left -= 1;
                    let labels = group.labels.iter();
                    labels.for_each(|label| *n_to_train.entry(label).or_default() -= 1);
                }
            }
        }
    }
    keys.iter().map(|key| groups[key].is_held_out == Some(true)).collect()
}

/// Lower case, letters and digits only; a text without any stays as it is.
pub(super) fn normalised(Text { text, text_pair }: &Text) -> Text {
    let of = |text: &str| {
        let kept = text.chars().filter(|c| c.is_alphanumeric());
        let kept: String = kept.flat_map(char::to_lowercase).collect();
        if kept.is_empty() { text.to_owned() } else { kept }
    };
    Text { text: of(text), text_pair: text_pair.as_deref().map(of) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn stream(seed: u64) -> Stream {
        Stream::new(seed, tealight_ops::rng::Purpose::Data).fork_name("classify")
    }
    use crate::data::text::corpus::Origin;

    /// The examples to train on and those held out.
    fn split(by: SplitBy, examples: Vec<Example>, share: f64, seed: u64) -> [Vec<Example>; 2] {
        let mut held_out = by.held_out(&examples, share, stream(seed)).into_iter();
        let (validation, train) =
            examples.into_iter().partition(|_| held_out.next().expect("one for each"));
        [train, validation]
    }

    fn examples(rows: impl IntoIterator<Item = (String, Label)>) -> Vec<Example> {
        let example = |(line, (text, label))| {
            let origin = Origin { path: Path::new("texts.csv").into(), line };
            Example { text: Text { text, text_pair: None }, label, origin }
        };
        (0..).zip(rows).map(example).collect()
    }

    fn class(name: &str) -> Label {
        Label::Class(name.to_owned())
    }

    /// Classes of 2, 3 and 195 texts, and one of a single text.
    fn rare() -> Vec<Example> {
        let name = |n: usize| match n {
            0 | 1 => "two",
            2..5 => "three",
            5 => "one",
            _ => "many",
        };
        examples((0..201).map(|n| (format!("text {n}"), class(name(n)))))
    }

    fn count(examples: &[Example], name: &str) -> usize {
        examples.iter().filter(|one| one.label == class(name)).count()
    }

    #[test]
    fn every_class_of_two_texts_is_trained_on_and_held_out() {
        for seed in 0..50 {
            let [train, validation] = split(SplitBy::Stratified, rare(), 0.1, seed);
            for (name, n) in [("two", 1), ("three", 1), ("one", 0), ("many", 20)] {
                assert_eq!(count(&validation, name), n, "{name}, seed {seed}");
            }
            assert_eq!(train.len() + validation.len(), 201);
            assert!(train.is_sorted_by_key(|one| one.origin.line), "the order of the file");
        }
        let lost = |seed| count(&split(SplitBy::Hashed, rare(), 0.1, seed)[1], "two") == 0;
        assert!((0..50).any(lost), "what stratification is for");
    }

    #[test]
    fn equal_texts_stay_together_even_with_unlike_labels() {
        let text = |n: usize| match n % 3 {
            0 => format!("It's text {}!", n / 3),
            1 => format!("its TEXT {}", n / 3),
            _ => format!("its text {} ", n / 3),
        };
        let rows = (0..90).map(|n| (text(n), class(if n % 7 == 0 { "a" } else { "b" })));
        let rows = examples(rows);
        for seed in 0..20 {
            let [train, validation] = split(SplitBy::Stratified, rows.clone(), 0.3, seed);
            let keys = |part: &[Example]| -> BTreeSet<Text> {
                part.iter().map(|one| normalised(&one.text)).collect()
            };
            assert!(keys(&train).is_disjoint(&keys(&validation)), "seed {seed}");
            assert!((6..=12).contains(&keys(&validation).len()), "{}", keys(&validation).len());
        }
        // Texts without a letter are told apart.
        let marks = [("!", "a"), ("?", "a"), (":-)", "b"), (":-(", "b")];
        let marks = examples(marks.map(|(text, name)| (text.to_owned(), class(name))));
        let [train, validation] = split(SplitBy::Stratified, marks, 0.5, 1);
        assert_eq!((train.len(), validation.len()), (2, 2));
    }

    #[test]
    fn each_of_several_labels_is_held_out_and_so_are_numbers() {
        let labels = |n: usize| {
            let has = [("x", 2), ("y", 3), ("rare", 50)];
            Label::Labels(
                has.iter()
                    .filter(|one| n.is_multiple_of(one.1))
                    .map(|one| one.0.to_owned())
                    .collect(),
            )
        };
        let rows = examples((0..100).map(|n| (format!("text {n}"), labels(n))));
        let has = |one: &Example, name: &str| match &one.label {
            Label::Labels(all) => all.iter().any(|label| label == name),
            _ => false,
        };
        for seed in 0..20 {
            let [train, validation] = split(SplitBy::Stratified, rows.clone(), 0.2, seed);
            for (name, n) in [("x", 9..=14), ("y", 6..=9), ("rare", 1..=1)] {
                let held_out = validation.iter().filter(|one| has(one, name)).count();
                assert!(n.contains(&held_out), "{name} {held_out}, seed {seed}");
                assert!(train.iter().any(|one| has(one, name)));
            }
        }
        let numbers = examples((0..40).map(|n| (format!("text {n}"), Label::Number(f64::from(n)))));
        assert_eq!(split(SplitBy::Stratified, numbers, 0.25, 3)[1].len(), 10);
    }

    /// Two texts have the label `rare`; each has a label of its own with another text, which is held out or not.
    #[test]
    fn a_rare_label_of_several_is_still_trained_on() {
        let of =
            |labels: &[&str]| Label::Labels(labels.iter().map(|&name| name.to_owned()).collect());
        let few = [&["a", "rare"][..], &["a"], &["b", "rare"], &["b"]];
        let few = few.map(|labels| (labels.join(" "), of(labels)));
        let many = (0..20).map(|n| (format!("text {n}"), of(&["many"])));
        for seed in 0..50 {
            let rows = examples(few.iter().cloned().chain(many.clone()));
            let [train, _] = split(SplitBy::Stratified, rows, 0.5, seed);
            for name in ["a", "b", "rare", "many"] {
                let has = |one: &Example| one.label.names().iter().any(|label| label == name);
                assert!(train.iter().any(has), "{name}, seed {seed}");
            }
        }
    }

    /// Runs that exist are resumed with the texts that they were trained on.
    #[test]
    fn what_a_hash_holds_out_has_never_changed() {
        let [_, validation] = split(SplitBy::Hashed, rare(), 0.05, 17);
        let lines: Vec<u64> = validation.iter().map(|one| one.origin.line).collect();
        assert_eq!(lines, [22, 36, 138, 140, 154, 162, 191, 199]);
    }
}
