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
    "polarity",
    "gold",
    "verdict",
    "annotation",
    "y",
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
    /// Why it is that, a clause about the column: `holds lists`.
    pub because: String,
    /// The classes, in ascending order; none of other targets.
    pub classes: Vec<String>,
    /// Of classes: how many texts of the most frequent one there are for each of the rarest; otherwise 1.
    pub imbalance: f64,
    /// The most words of a text.
    pub most_words: usize,
    /// About how many bytes all texts have.
    pub bytes: f64,
}

/// The columns that a user names; others are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Of the text.
    pub text: Option<String>,
    /// Of the second text of a pair.
    pub text_pair: Option<String>,
    /// Of the label.
    pub label: Option<String>,
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

/// Looks into a table of texts with labels, for the columns that are not `chosen`.
pub fn labelled(path: &Path, chosen: &Columns) -> Result<Labelled> {
    let columns::Columns { all: columns, n_rows: n, are_headed } = columns::read(path)?;
    let names = [&chosen.text, &chosen.text_pair, &chosen.label];
    let names = names.map(|name| name.as_deref().map(|name| written(name, &columns)));
    check_chosen(path, &columns, names)?;
    let known = || listed(&columns);
    let of = |name: Option<&str>| columns.iter().find(|c| name == Some(c.name.as_str()));
    let mut free: Vec<&Column> =
        columns.iter().filter(|c| !names.contains(&Some(c.name.as_str()))).collect();
    let Some(text) = of(names[0]).or_else(|| find_text(&free)) else {
        return Err(refused(
            path,
            &format!("has no column of texts among {}: `--text` names it", known()),
        ));
    };
    free.retain(|column| column.name != text.name);
    let pair = of(names[1]).or_else(|| named(SECOND_TEXTS, &free));
    free.retain(|column| pair.is_none_or(|pair| pair.name != column.name));
    // The column with the fewest values, if it is filled in nearly every row, has more than one value, and does not number
    // the rows.
    let fewest = || {
        let filled = free.iter().copied().filter(|c| 10 * c.n >= 9 * n && c.different.len() > 1);
        let labels = filled.filter(|c| !c.is_counter());
        labels.min_by_key(|column| column.different.len())
    };
    let Some(label) = of(names[2]).or_else(|| named(LABELS, &free)).or_else(fewest) else {
        let rule = format!("has no column of labels among {}: `--label` names it", known());
        return Err(refused(path, &rule));
    };
    let all: Vec<&Column> = columns.iter().collect();
    let is_named = *chosen != Columns::default()
        || named(TEXTS, &all).is_some()
        || named(LABELS, &all).is_some();
    if are_headed && !is_named && label.different.contains_key(&label.name) {
        let rule = format!(
            "begins with a row of data: `{}` would name the column of labels and is the label of a row, too. The first \
             line must name the columns",
            label.name
        );
        return Err(refused(path, &rule));
    }
    let most_words = text.most_words + pair.map_or(0, |pair| pair.most_words);
    let n_characters = text.n_characters + pair.map_or(0, |pair| pair.n_characters);
    let (target, because) = target(label);
    Ok(Labelled {
        n,
        text: text.name.clone(),
        text_pair: pair.map(|pair| pair.name.clone()),
        label: label.name.clone(),
        target,
        because,
        classes: match target {
            Target::Classes(_) => label.different.keys().cloned().collect(),
            Target::Labels | Target::Number => Vec::new(),
        },
        imbalance: imbalance(label, target),
        most_words,
        bytes: n_characters as f64,
    })
}

/// Checks that each column that is named exists and is named once.
fn check_chosen(path: &Path, columns: &[Column], names: [Option<&str>; 3]) -> Result<()> {
    for (at, name) in names.iter().enumerate() {
        let Some(name) = name else { continue };
        if names[..at].contains(&Some(name)) {
            let rule = format!("has one column `{name}`, and it is named for two purposes");
            return Err(refused(path, &rule));
        }
        if !columns.iter().any(|column| column.name == *name) {
            let rule = format!("has no column `{name}` among {}", listed(columns));
            return Err(refused(path, &rule));
        }
    }
    Ok(())
}

/// How the column `name` is written in the file, if it differs only in case.
fn written<'a>(name: &'a str, columns: &'a [Column]) -> &'a str {
    let names = || columns.iter().map(|column| &*column.name);
    let is_same = |other: &&str| other.to_lowercase() == name.to_lowercase();
    names().find(|other| *other == name).or_else(|| names().find(is_same)).unwrap_or(name)
}

fn listed(columns: &[Column]) -> String {
    columns.iter().map(|c| format!("`{}`", c.name)).collect::<Vec<_>>().join(", ")
}

/// The names of the columns or fields; `None` if the file cannot be read as a table.
pub fn column_names(path: &Path) -> Option<Vec<String>> {
    let columns = columns::read(path).ok()?;
    Some(columns.all.into_iter().map(|column| column.name).collect())
}

/// The columns of the texts in a table: those that are `wanted`, without regard to case. If there is no such
/// text, one that has a usual name or long values; a second text is never guessed.
pub fn texts(path: &Path, wanted: &Columns) -> Result<Columns> {
    let columns = columns::read(path)?.all;
    let mut free: Vec<&Column> = columns.iter().collect();
    let alike = |name: &Option<String>, free: &[_]| named(&[name.as_deref()?], free);
    let pair = alike(&wanted.text_pair, &free);
    free.retain(|column| pair.is_none_or(|pair: &Column| pair.name != column.name));
    let text = alike(&wanted.text, &free).or_else(|| find_text(&free));
    let name = |column: &Column| column.name.clone();
    Ok(Columns {
        text: text.map(name).or_else(|| wanted.text.clone()),
        text_pair: pair.map(name).or_else(|| wanted.text_pair.clone()),
        label: wanted.label.clone(),
    })
}

/// The first of `names` that a column has, without regard to case: headings are written in many ways.
pub(super) fn named<'a>(names: &[&str], columns: &[&'a Column]) -> Option<&'a Column> {
    let is = |name: &str| columns.iter().find(|c| c.name.trim().eq_ignore_ascii_case(name));
    names.iter().find_map(|name| is(name)).copied()
}

/// A column of a usual name, or the one with the longest texts.
fn find_text<'a>(columns: &[&'a Column]) -> Option<&'a Column> {
    let longest = || {
        let texts = columns.iter().copied().filter(|c| c.n_lists == 0 && c.n_numbers < c.n);
        texts.max_by(|a, b| a.mean_characters().total_cmp(&b.mean_characters()))
    };
    named(TEXTS, columns).or_else(longest)
}

fn imbalance(label: &Column, target: Target) -> f64 {
    let counts = || label.different.values().map(|&n| n as f64);
    match (target, counts().reduce(f64::min)) {
        (Target::Classes(_), Some(least)) => counts().fold(least, f64::max) / least,
        _ => 1.,
    }
}

/// What the column holds, and how that is known.
fn target(label: &Column) -> (Target, String) {
    let n = label.different.len();
    let is_number = label.n_numbers == label.n;
    if label.n_lists > 0 {
        (Target::Labels, "holds lists".to_owned())
    } else if label.n_with_semicolon > 0 {
        let why =
            format!("has `;` between labels in {} of {} rows", label.n_with_semicolon, label.n);
        (Target::Labels, why)
    } else if is_number && label.n_fractions > 0 {
        (Target::Number, "holds numbers with fractions".to_owned())
    } else if is_number && n > MAX_NUMBERED_CLASSES {
        (
            Target::Number,
            format!("holds numbers of more than {MAX_NUMBERED_CLASSES} different values"),
        )
    } else {
        let values = if n == 1 { "value" } else { "different values" };
        // Two labels, or a number as it is written in many languages.
        let with_comma = label.different.keys().find(|value| value.contains(','));
        let all_are = label.n_with_comma > 0 && label.n_with_comma + label.n_numbers == label.n;
        let hint = with_comma.filter(|_| all_are).map_or_else(String::new, |value| {
            format!(
                ", which are classes such as \"{value}\": write numbers with a point to learn numbers, and labels with `;` \
                 between them to learn several"
            )
        });
        (Target::Classes(n), format!("holds {n} {values}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(name: &str, content: &str) -> Result<Labelled> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        labelled(&path, &Columns::default())
    }

    #[test]
    fn columns_are_found_by_name_or_by_content() {
        let found = survey("a.csv", "id,label,text\n1,x,one two\n2,y,three\n3,x,four\n").unwrap();
        assert_eq!((&*found.text, &*found.label), ("text", "label"));
        assert_eq!((found.n, found.most_words, found.target), (3, 2, Target::Classes(2)));
        let found = survey("a.csv", "nr,what,kind\n1,one two,x\n2,three four,y\n3,five six,x\n");
        let found = found.unwrap();
        assert_eq!((&*found.text, &*found.label), ("what", "kind"));
        // Headings in capitals, and names of other data sets.
        let found = survey("a.csv", "Y,TEXT\n0,one two\n1,three\n").unwrap();
        assert_eq!((&*found.text, &*found.label), ("TEXT", "Y"));
        let pairs = "{\"premise\":\"a\",\"hypothesis\":\"b\",\"label\":1}\n{\"premise\":\"a\",\"hypothesis\":\"c\",\"label\":0}";
        assert_eq!(survey("a.jsonl", pairs).unwrap().text_pair.as_deref(), Some("hypothesis"));
    }

    #[test]
    fn a_column_is_named_without_regard_to_case_unless_two_differ_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, "Quote,KIND,kind\none two,x,1\nthree,y,2\n").unwrap();
        let of = |text: &str, label: &str| {
            let [text, label] = [text, label].map(|name| Some(name.to_owned()));
            let found = labelled(&path, &Columns { text, label, text_pair: None })?;
            Ok::<_, crate::Error>((found.text, found.label))
        };
        assert_eq!(of("quote", "kind").unwrap(), ("Quote".to_owned(), "kind".to_owned()));
        assert_eq!(of("QUOTE", "Kind").unwrap(), ("Quote".to_owned(), "KIND".to_owned()));
        assert!(of("quotes", "kind").unwrap_err().to_string().contains("no column `quotes`"));
    }

    #[test]
    fn a_cell_may_be_empty_and_a_counter_is_no_label() {
        let row = |n: usize| format!("{n},some words {n},{}\n", ["low", "high"][n % 2]);
        let rows: String = (0..40).map(row).collect();
        let found = survey("a.csv", &format!("nr,what,kind\n{rows}40,some words,\n")).unwrap();
        assert_eq!((&*found.label, found.target), ("kind", Target::Classes(2)));
        let row = |n: usize| format!("{n},some words {n}\n");
        let rows: String = (0..40).map(row).collect();
        let error = survey("a.csv", &format!("nr,what\n{rows}")).unwrap_err().to_string();
        assert!(error.contains("no column of labels among `nr`, `what`: `--label`"), "{error}");
    }

    #[test]
    fn labels_say_what_is_learnt() {
        let target = |cells: [&str; 2]| {
            survey("a.csv", &format!("text,label\na,{}\nb,{}\n", cells[0], cells[1]))
                .unwrap()
                .target
        };
        assert_eq!(target(["1", "0"]), Target::Classes(2));
        let rare = survey("a.csv", "text,label\na,x\nb,x\nc,x\nd,y\n").unwrap();
        assert_eq!(rare.imbalance, 3.);
        assert_eq!(target(["1.5", "0"]), Target::Number);
        assert_eq!(target(["x;y", "x"]), Target::Labels);
        let because = |cells: &str| survey("a.csv", cells).unwrap().because;
        assert_eq!(because("text,label\na,x\nb,y\n"), "holds 2 different values");
        assert_eq!(because("text,label\na,x;y\nb,y\n"), "has `;` between labels in 1 of 2 rows");
        assert_eq!(because("text,label\na,1.5\nb,2\n"), "holds numbers with fractions");
        let comma = because("text,label\na,\"3,5\"\nb,4\n");
        assert!(comma.contains("classes such as \"3,5\": write numbers with a point"), "{comma}");
        assert_eq!(because("text,label\na,\"x,y\"\nb,4\n"), "holds 2 different values");
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
