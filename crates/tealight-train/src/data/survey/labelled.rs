//! Texts with labels, for classification.

use std::path::Path;

use super::columns::{self, Column};
use super::refused;
use crate::error::Result;

/// Names of a column with the text, in other data sets, the most certain first.
const TEXTS: &[&str] = &[
    "text",
    "sentence",
    "sentence1",
    "premise",
    "question1",
    "text_a",
    "review",
    "comment",
    "content",
    "body",
    "message",
    "tweet",
    "document",
];
/// Names of a column with the second text of a pair.
const SECOND_TEXTS: &[&str] =
    &["text_pair", "sentence2", "hypothesis", "question2", "text_b", "text2"];
/// Names of a column with the label.
const LABELS: &[&str] = &[
    "label",
    "labels",
    "class",
    "category",
    "target",
    "sentiment",
    "topic",
    "intent",
    "rating",
    "score",
    "stars",
    "tags",
    "tag",
];
/// Whole numbers with more values than this are a quantity, not the names of classes.
const MAX_NUMBERED_CLASSES: usize = 20;

/// Texts with labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    /// The number of texts.
    pub n: usize,
    /// The column of the text.
    pub text: String,
    /// The column of the second text, if they are pairs.
    pub text_pair: Option<String>,
    /// The column of the label.
    pub label: String,
    /// The kind of values in the column of the label.
    pub target: Target,
    /// The most words of a text.
    pub most_words: usize,
    /// About how many bytes all texts have.
    pub bytes: f64,
}

/// The kind of values in a column of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One of so many classes.
    Classes(usize),
    /// Any number of labels.
    Labels,
    /// A number.
    Number,
}

/// Looks into a `.jsonl` or `.csv` of texts with labels.
pub fn labelled(path: &Path) -> Result<Labelled> {
    let (columns, n) = columns::read(path)?;
    let named = |names: &[&str]| {
        let mut found = names.iter().filter_map(|name| columns.iter().find(|c| c.name == *name));
        found.next()
    };
    let known = || columns.iter().map(|c| format!("`{}`", c.name)).collect::<Vec<_>>().join(", ");
    let is_text = |column: &&Column| column.n_lists == 0 && column.n_numbers < column.n;
    let longest = || {
        let texts = columns.iter().filter(is_text);
        texts.max_by(|a, b| a.mean_characters().total_cmp(&b.mean_characters()))
    };
    let Some(text) = named(TEXTS).or_else(longest) else {
        return Err(refused(path, &format!("has no column of texts among {}", known())));
    };
    let pair = named(SECOND_TEXTS).filter(|pair| pair.name != text.name);
    let is_other = |column: &&Column| {
        column.name != text.name && pair.is_none_or(|pair| pair.name != column.name)
    };
    // A column that is filled in every row, with the fewest values, but not the same in all.
    let fewest = || {
        let filled = columns.iter().filter(is_other).filter(|c| c.n == n && c.different.len() > 1);
        filled.min_by_key(|column| column.different.len())
    };
    let Some(label) = named(LABELS).filter(is_other).or_else(fewest) else {
        return Err(refused(path, &format!("has no column of labels among {}", known())));
    };
    let is_headed = named(TEXTS).is_some() || named(LABELS).is_some();
    if is_csv(path) && !is_headed && label.different.contains(&label.name) {
        let rule = format!(
            "begins with a row of data: `{}` would name the column of labels and is the label of a row, too. The first \
             line of a .csv names the columns",
            label.name
        );
        return Err(refused(path, &rule));
    }
    let most_words = text.most_words + pair.map_or(0, |pair| pair.most_words);
    let n_characters = text.n_characters + pair.map_or(0, |pair| pair.n_characters);
    Ok(Labelled {
        n,
        text: text.name.clone(),
        text_pair: pair.map(|pair| pair.name.clone()),
        label: label.name.clone(),
        target: target(label),
        most_words,
        bytes: n_characters as f64,
    })
}

fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "csv")
}

fn target(label: &Column) -> Target {
    let n_different = label.different.len();
    let is_number = label.n_numbers == label.n;
    if label.n_lists > 0 || label.n_with_semicolon > 0 {
        Target::Labels
    } else if is_number && (label.n_fractions > 0 || n_different > MAX_NUMBERED_CLASSES) {
        Target::Number
    } else {
        Target::Classes(n_different)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(name: &str, content: &str) -> Result<Labelled> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        labelled(&path)
    }

    #[test]
    fn columns_are_found_by_name_or_by_content() {
        let found = survey("a.csv", "id,label,text\n1,x,one two\n2,y,three\n3,x,four\n").unwrap();
        assert_eq!((&*found.text, &*found.label), ("text", "label"));
        assert_eq!((found.n, found.most_words, found.target), (3, 2, Target::Classes(2)));
        let found = survey("a.csv", "nr,what,kind\n1,one two,x\n2,three four,y\n3,five six,x\n");
        let found = found.unwrap();
        assert_eq!((&*found.text, &*found.label), ("what", "kind"));
        let pairs = "{\"premise\":\"a\",\"hypothesis\":\"b\",\"label\":1}\n{\"premise\":\"a\",\"hypothesis\":\"c\",\"label\":0}";
        assert_eq!(survey("a.jsonl", pairs).unwrap().text_pair.as_deref(), Some("hypothesis"));
    }

    #[test]
    fn labels_say_what_is_learnt() {
        let target = |cells: [&str; 2]| {
            survey("a.csv", &format!("text,label\na,{}\nb,{}\n", cells[0], cells[1]))
                .unwrap()
                .target
        };
        assert_eq!(target(["1", "0"]), Target::Classes(2));
        assert_eq!(target(["1.5", "0"]), Target::Number);
        assert_eq!(target(["x;y", "x"]), Target::Labels);
        let lists = "{\"text\":\"a\",\"label\":[\"x\"]}\n{\"text\":\"b\",\"label\":[]}";
        assert_eq!(survey("a.jsonl", lists).unwrap().target, Target::Labels);
    }

    #[test]
    fn a_first_row_of_data_is_no_heading() {
        let rows = "was dull film,neg\ngood film,pos\nbad actor,neg\n";
        let error = survey("a.csv", rows).unwrap_err().to_string();
        assert!(error.contains("a.csv` begins with a row of data: `neg` would name"), "{error}");
        let headed = survey("a.csv", &format!("what,kind\n{rows}")).unwrap();
        assert_eq!((headed.n, &*headed.label), (3, "kind"));
        // A column of a known name is a heading, also where another is named like one of its labels.
        let spam = survey("a.csv", "text,spam\nbuy now,spam\nhello there,ham\n").unwrap();
        assert_eq!((spam.n, &*spam.label), (2, "spam"));
        let named = "{\"text\":\"a\",\"label\":\"label\"}\n{\"text\":\"b\",\"label\":\"x\"}";
        assert_eq!(survey("a.jsonl", named).unwrap().target, Target::Classes(2));
    }

    #[test]
    fn what_cannot_be_learnt_is_refused() {
        for (name, content) in
            [("a.csv", "text\na\n"), ("a.csv", "text,label\n"), ("a.txt", "a"), ("a.jsonl", "[1]")]
        {
            assert!(survey(name, content).is_err(), "{name} {content}");
        }
    }
}
