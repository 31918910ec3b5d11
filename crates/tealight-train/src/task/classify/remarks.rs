//! What a user should know about labelled texts: how often each label occurs, and what looks like a mistake.

use std::collections::{BTreeMap, BTreeSet};

use super::file::Example;
use super::split::normalised;
use crate::data::shown::on_one_line;
use crate::data::table::listed;
use crate::inference::text_classifier::Text;
use crate::task::table::thousands;

/// Characters of a text that are shown.
const MAX_TEXT: usize = 40;
/// How texts are compared.
const BY_LETTERS: &str = " (by their letters and digits)";

/// Remarks on the examples of both splits, a line each; the second may be empty.
pub(super) fn remarks(train: &[Example], validation: &[Example]) -> Vec<String> {
    let all = || train.iter().chain(validation);
    let counts = counts(all());
    let texts = by_text(all());
    [
        labels(&counts),
        near_labels(&counts),
        repeated(&texts),
        contradicting(&texts),
        not_held_out(train, validation),
        in_both(train, validation),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// How many texts have each label; a text of no label has none.
pub(super) fn counts<'a>(examples: impl Iterator<Item = &'a Example>) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    for label in examples.flat_map(|example| example.label.names()) {
        *counts.entry(label.as_str()).or_default() += 1;
    }
    counts
}

/// The labels that are trained on, and that no text for validation has: no score tells how well they are learnt.
fn not_held_out(train: &[Example], validation: &[Example]) -> Option<String> {
    let mut missing = counts(train.iter());
    let held_out = counts(validation.iter());
    missing.retain(|label, _| !held_out.contains_key(label));
    (!missing.is_empty() && !held_out.is_empty()).then(|| {
        format!("labels of no text for validation, which no score is about: {}", counted(&missing))
    })
}

/// `labels: "ham" 4,827, "spam" 747`
fn labels(counts: &BTreeMap<&str, u64>) -> Option<String> {
    (!counts.is_empty()).then(|| format!("labels: {}", counted(counts)))
}

/// The labels with their counts, the most frequent first.
pub(super) fn counted(counts: &BTreeMap<&str, u64>) -> String {
    let mut by_count: Vec<_> = counts.iter().collect();
    by_count.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let one = |(label, n): (&&str, &u64)| format!("\"{}\" {}", on_one_line(label), thousands(*n));
    listed(by_count.into_iter().map(one))
}

/// Labels that differ only in case or in spaces.
fn near_labels(counts: &BTreeMap<&str, u64>) -> Option<String> {
    let mut same: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for label in counts.keys() {
        let words: Vec<_> = label.split_whitespace().collect();
        same.entry(words.join(" ").to_lowercase()).or_default().push(label);
    }
    let near = same.into_values().filter(|labels| labels.len() > 1).flatten();
    let near: Vec<_> = near.map(|label| format!("\"{}\"", on_one_line(label))).collect();
    if near.is_empty() {
        return None;
    }
    Some(format!(
        "the labels {} differ only in case or spaces; each is learnt as a class of its own",
        near.join(", ")
    ))
}

/// The examples of each text, of which letters and digits count, without their case.
type ByText<'a> = BTreeMap<Text, Vec<&'a Example>>;

fn text(example: &Example) -> Text {
    normalised(&example.text)
}

fn by_text<'a>(examples: impl Iterator<Item = &'a Example>) -> ByText<'a> {
    let mut texts = ByText::new();
    for example in examples {
        texts.entry(text(example)).or_default().push(example);
    }
    texts
}

fn repeated(texts: &ByText<'_>) -> Option<String> {
    let repeated = texts.values().filter(|examples| examples.len() > 1);
    match repeated.count() {
        0 => None,
        1 => Some(format!("1 text occurs more than once{BY_LETTERS}")),
        n => Some(format!("{} texts occur more than once{BY_LETTERS}", thousands(n as u64))),
    }
}

/// Equal texts with unlike labels.
fn contradicting(texts: &ByText<'_>) -> Option<String> {
    let is_unlike =
        |examples: &&Vec<&Example>| examples.iter().any(|other| other.label != examples[0].label);
    let mut unlike = texts.values().filter(is_unlike);
    let first = unlike.next()?;
    let n = 1 + unlike.count();
    let shown: String = first[0].text.text.chars().take(MAX_TEXT).collect();
    let other = first.iter().find(|other| other.label != first[0].label)?;
    let [one, other] = [&first[0].origin, &other.origin];
    let places = if one.path == other.path {
        format!("lines {} and {}", one.line, other.line)
    } else {
        format!("{one} and {other}")
    };
    let (texts, have) = if n == 1 { ("text", "has") } else { ("texts", "have") };
    Some(format!(
        "{} {texts} {have} unlike labels{BY_LETTERS}, such as \"{}\" in {places}",
        thousands(n as u64),
        on_one_line(&shown),
    ))
}

/// Texts of the validation split that are trained on, too.
fn in_both(train: &[Example], validation: &[Example]) -> Option<String> {
    let trained: BTreeSet<_> = train.iter().map(text).collect();
    let n = validation.iter().filter(|example| trained.contains(&text(example))).count();
    let of = validation.len();
    (n > 0).then(|| {
        format!(
            "{} of {} texts for validation are trained on, too{BY_LETTERS}: their scores are too good",
            thousands(n as u64),
            thousands(of as u64)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file::Label;
    use super::*;
    use crate::data::text::corpus::Origin;

    fn examples(rows: &[(&str, &str)]) -> Vec<Example> {
        let example = |(line, &(text, label)): (usize, &(&str, &str))| Example {
            text: Text { text: text.to_owned(), text_pair: None },
            label: Label::Class(label.to_owned()),
            origin: Origin { path: Path::new("a.csv").into(), line: line as u64 + 2 },
        };
        rows.iter().enumerate().map(example).collect()
    }

    #[test]
    fn labels_are_counted_and_mistakes_are_named() {
        let train =
            examples(&[("a", "pos"), ("b", "neg"), ("c", "Pos"), ("B! ", "pos"), ("d", "neg")]);
        let validation = examples(&[("a", "pos"), ("e", "neg")]);
        assert_eq!(
            remarks(&train, &validation),
            [
                "labels: \"neg\" 3, \"pos\" 3, \"Pos\" 1",
                "the labels \"Pos\", \"pos\" differ only in case or spaces; each is learnt as a class of its own",
                "2 texts occur more than once (by their letters and digits)",
                "1 text has unlike labels (by their letters and digits), such as \"b\" in lines 3 and 5",
                "labels of no text for validation, which no score is about: \"Pos\" 1",
                "1 of 2 texts for validation are trained on, too (by their letters and digits): their scores are too good",
            ]
        );
        let clean = examples(&[("a", "x"), ("b", "y")]);
        assert_eq!(remarks(&clean, &[]), ["labels: \"x\" 1, \"y\" 1"]);
    }
}
