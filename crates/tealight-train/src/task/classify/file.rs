//! Texts with labels from a file: the lines of a `.jsonl`, or the rows of a `.csv`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::data::json_line;
use crate::error::{Error, Result};
use crate::inference::labels::Objective;
use crate::inference::readers::TextFields;
use crate::inference::text_classifier::Text;

/// Separates several labels in a column.
const SEPARATOR: char = ';';
/// The field of the second text, where it may be left out and no setting names it.
const TEXT_PAIR: &str = "text_pair";

/// The label that a file gives a text, in the form that the objective needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Label {
    /// Its class; numbers and booleans as JSON writes them.
    Class(String),
    /// Its labels.
    Labels(Vec<String>),
    /// A number.
    Number(f64),
}

/// A text and its label.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// As the file has it.
    pub text: Text,
    /// The label of the text, or its labels, or its number, by the objective.
    pub label: Label,
    /// The line of the file, counted from 1.
    pub(super) line: usize,
}

/// A line or row of a file.
struct Row<'a> {
    text: Text,
    /// `None` where only texts are read.
    label: Option<WrittenLabel<'a>>,
    /// Counted from 1.
    line: usize,
}

/// A label as a file has it.
enum WrittenLabel<'a> {
    Json(&'a Value),
    Csv(&'a str),
}

/// The names of the fields or columns that are read.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) text: &'a str,
    pub(super) text_pair: Option<&'a str>,
    /// `None` where only texts are read; then the second text may be missing, too.
    pub(super) label: Option<&'a str>,
}

/// The examples of the file in the setting `key`, in its order.
pub(super) fn read(
    key: &str,
    path: &Path,
    fields: Fields<'_>,
    objective: Objective,
) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    let each = |Row { text, label, line }: Row<'_>| {
        let both = [("text", Some(&text.text)), ("second text", text.text_pair.as_ref())];
        for (side, value) in both {
            if value.is_some_and(|value| value.trim().is_empty()) {
                return Err(format!("the {side} is empty"));
            }
        }
        if let (Some(label), Some(field)) = (label, fields.label) {
            examples.push(Example {
                text,
                label: Label::from_written(&label, objective, field)?,
                line,
            });
        }
        Ok(())
    };
    rows(key, path, fields, each)?;
    if examples.is_empty() {
        let message = format!("`{}` holds no text", path.display());
        return Err(Error::config([key], message));
    }
    Ok(examples)
}

/// The texts of a `.jsonl` or `.csv` file, with or without labels.
///
/// # Errors
/// If the file cannot be read, or a row has no text.
pub fn texts(path: &Path, fields: &TextFields) -> Result<Vec<Text>> {
    let text_pair = Some(fields.text_pair.as_deref().unwrap_or(TEXT_PAIR));
    let fields = Fields { text: &fields.text, text_pair, label: None };
    let mut texts = Vec::new();
    rows("--file", path, fields, |row| {
        texts.push(row.text);
        Ok(())
    })?;
    Ok(texts)
}

/// Passes each row of the file in the setting `key` to `each`, whose error is one of its line.
fn rows(
    key: &str,
    path: &Path,
    fields: Fields<'_>,
    each: impl FnMut(Row<'_>) -> Result<(), String>,
) -> Result<()> {
    let bytes = std::fs::read(path).map_err(|source| {
        Error::config([key], format!("`{}` cannot be read: {source}", path.display()))
    })?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl") => of_jsonl(path, bytes, fields, each),
        Some("csv") => of_csv(path, bytes, fields, each),
        _ => {
            let message = format!("`{key}` = `{}` ends in neither .jsonl nor .csv", path.display());
            Err(Error::config([key], message))
        }
    }
}

impl Label {
    fn from_written(
        written: &WrittenLabel<'_>,
        objective: Objective,
        field: &str,
    ) -> Result<Self, String> {
        match (objective, written) {
            (Objective::Classes, WrittenLabel::Csv(cell)) => word(cell).map(Self::Class),
            (Objective::Classes, WrittenLabel::Json(Value::Array(_))) => Err(format!(
                "the field `{field}` is a list, and `task.objective` = \"classes\" learns one label of a text: \
                 \"labels\" learns several"
            )),
            (Objective::Classes, WrittenLabel::Json(value)) => {
                json_word(value, field).map(Self::Class)
            }
            (Objective::Labels, WrittenLabel::Csv(cell)) if cell.trim().is_empty() => {
                Ok(Self::Labels(Vec::new()))
            }
            (Objective::Labels, WrittenLabel::Csv(cell)) => {
                different(cell.split(SEPARATOR).map(word))
            }
            (Objective::Labels, WrittenLabel::Json(Value::Array(all))) => {
                different(all.iter().map(|value| json_word(value, field)))
            }
            (Objective::Labels, WrittenLabel::Json(value)) => Err(format!(
                "the field `{field}` is {value}, and `task.objective` = \"labels\" needs a list of labels"
            )),
            (Objective::Regression, written) => written.number(field).map(Self::Number),
        }
    }
}

impl WrittenLabel<'_> {
    fn number(&self, field: &str) -> Result<f64, String> {
        let (number, shown) = match self {
            WrittenLabel::Json(value) => (value.as_f64(), value.to_string()),
            WrittenLabel::Csv(cell) => {
                (cell.trim().parse().ok(), format!("\"{}\"", cell.escape_debug()))
            }
        };
        // Targets are computed with in f32.
        let rule = match number {
            Some(number) if (number as f32).is_finite() => return Ok(number),
            Some(_) => "a finite number in f32: at most 3.4e38 in size",
            None => "a number",
        };
        Err(format!("`{field}` is {shown}, and `task.objective` = \"regression\" needs {rule}"))
    }
}

fn json_word(value: &Value, field: &str) -> Result<String, String> {
    match value {
        Value::String(label) => word(label),
        label @ (Value::Number(_) | Value::Bool(_)) => Ok(label.to_string()),
        _ => Err(format!("the field `{field}` is not a label")),
    }
}

fn word(label: &str) -> Result<String, String> {
    let label = label.trim();
    if label.is_empty() { Err("the label is empty".to_owned()) } else { Ok(label.to_owned()) }
}

fn different(labels: impl Iterator<Item = Result<String, String>>) -> Result<Label, String> {
    let mut all: Vec<String> = Vec::new();
    for label in labels {
        let label = label?;
        if all.contains(&label) {
            return Err(format!("the label \"{label}\" is given twice"));
        }
        all.push(label);
    }
    Ok(Label::Labels(all))
}

fn of_jsonl(
    path: &Path,
    bytes: &[u8],
    fields: Fields<'_>,
    mut each: impl FnMut(Row<'_>) -> Result<(), String>,
) -> Result<()> {
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let wrong = |rule: String| Error::line(path, at + 1, rule);
        let text = std::str::from_utf8(line).map_err(|_| wrong("this is not UTF-8".to_owned()))?;
        if text.trim().is_empty() {
            continue;
        }
        let object = json_line::object(text).map_err(wrong)?;
        let row = json_row(&object, fields, at + 1).map_err(wrong)?;
        each(row).map_err(wrong)?;
    }
    Ok(())
}

fn json_row<'a>(
    object: &'a Map<String, Value>,
    fields: Fields<'_>,
    line: usize,
) -> Result<Row<'a>, String> {
    let field = |name: &str| {
        // Sorted: another crate may enable the feature of serde_json that keeps the order of fields.
        let known = || object.keys().collect::<BTreeSet<_>>();
        object.get(name).ok_or_else(|| missing("field", name, known()))
    };
    let text = |name: &str| match field(name)? {
        Value::String(text) => Ok(text.clone()),
        _ => Err(format!("the field `{name}` is not a text")),
    };
    let may_lack = |name: &&str| fields.label.is_some() || object.contains_key(*name);
    Ok(Row {
        text: Text {
            text: text(fields.text)?,
            text_pair: fields.text_pair.filter(may_lack).map(text).transpose()?,
        },
        label: fields.label.map(field).transpose()?.map(WrittenLabel::Json),
        line,
    })
}

fn of_csv(
    path: &Path,
    bytes: &[u8],
    fields: Fields<'_>,
    mut each: impl FnMut(Row<'_>) -> Result<(), String>,
) -> Result<()> {
    let mut reader = csv::Reader::from_reader(bytes);
    // Counts the lines up to a row; rows come in order. The csv reader's own count is too low after blank lines
    // and `\r\n`: it takes them for the beginning of the next row.
    let (mut at, mut line) = (0, 1);
    let mut line_of = |position: Option<&csv::Position>| {
        let start = position.map_or(0, |position| position.byte() as usize);
        while let Some(&byte) = bytes.get(at)
            && (at < start || matches!(byte, b'\r' | b'\n'))
        {
            line += usize::from(byte == b'\n');
            at += 1;
        }
        line
    };
    let heading = reader.headers();
    let heading = heading.map_err(|error| of_row(path, &error, line_of(error.position())))?.clone();
    let names: Vec<&str> = heading.iter().map(str::trim).collect();
    let column = |name: &str| {
        let at = names.iter().position(|&known| known == name);
        at.ok_or_else(|| Error::line(path, 1, missing("column", name, &names)))
    };
    let may_lack = |name: &&str| fields.label.is_some() || names.contains(name);
    let first = column(fields.text)?;
    let second = fields.text_pair.filter(may_lack).map(column).transpose()?;
    let label = fields.label.map(column).transpose()?;
    for row in reader.records() {
        let row = row.map_err(|error| of_row(path, &error, line_of(error.position())))?;
        let line = line_of(row.position());
        let cell = |at: usize| row.get(at).unwrap_or_default();
        let text =
            Text { text: cell(first).to_owned(), text_pair: second.map(|at| cell(at).to_owned()) };
        let label = label.map(|at| WrittenLabel::Csv(cell(at)));
        each(Row { text, label, line }).map_err(|rule| Error::line(path, line, rule))?;
    }
    Ok(())
}

fn missing(what: &str, name: &str, known: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let known: Vec<String> =
        known.into_iter().map(|known| format!("`{}`", known.as_ref().escape_debug())).collect();
    format!("there is no {what} `{name}` among {}", known.join(", "))
}

/// An error of the csv reader at a line.
fn of_row(path: &Path, error: &csv::Error, line: usize) -> Error {
    let rule = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("there are {len} columns, and the heading has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "this is not UTF-8".to_owned(),
        _ => error.to_string(),
    };
    Error::line(path, line, rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text_pair: Option<&str>) -> Fields<'_> {
        Fields { text: "text", text_pair, label: Some("label") }
    }

    /// The examples of a file under an objective; with the pairs of the field `other`, if `pairs`.
    fn read_as(
        ending: &str,
        bytes: &[u8],
        objective: Objective,
        pair: Option<&str>,
    ) -> Result<Vec<Example>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("texts.{ending}"));
        std::fs::write(&path, bytes).unwrap();
        read("task.data.path", &path, fields(pair), objective).map_err(|error| {
            error.to_string().replace(&directory.path().display().to_string(), "…")
        })
    }

    fn examples(ending: &str, bytes: &[u8]) -> Result<Vec<(String, String, usize)>, String> {
        let examples = read_as(ending, bytes, Objective::Classes, None)?;
        let class = |one: Example| {
            let Label::Class(class) = one.label else { panic!("{:?}", one.label) };
            (one.text.text, class, one.line)
        };
        Ok(examples.into_iter().map(class).collect())
    }

    fn labels(ending: &str, bytes: &[u8], objective: Objective) -> Result<Vec<Label>, String> {
        let examples = read_as(ending, bytes, objective, None)?;
        Ok(examples.into_iter().map(|one| one.label).collect())
    }

    #[test]
    fn a_pair_has_a_second_text_in_both_kinds_of_files() {
        let expected = Text { text: "a".to_owned(), text_pair: Some("b, c".to_owned()) };
        for (ending, content) in [
            ("csv", &b"label,other,text\nx,\"b, c\",a\n"[..]),
            ("jsonl", br#"{"text":"a","other":"b, c","label":"x"}"#),
        ] {
            let examples = read_as(ending, content, Objective::Classes, Some("other")).unwrap();
            assert_eq!(examples[0].text, expected);
        }
        for (content, rule) in [
            (
                &br#"{"text":"a","label":"x"}"#[..],
                "there is no field `other` among `label`, `text`",
            ),
            (br#"{"text":"a","other":3,"label":"x"}"#, "the field `other` is not a text"),
            (br#"{"text":"a","other":" ","label":"x"}"#, "the second text is empty"),
        ] {
            let error = read_as("jsonl", content, Objective::Classes, Some("other")).unwrap_err();
            assert_eq!(error, format!("`…/texts.jsonl`, line 1: {rule}"));
        }
    }

    #[test]
    fn several_labels_are_a_list_or_stand_between_semicolons() {
        let expected = [vec!["a", "b c"], vec![], vec!["7"]]
            .map(|labels| Label::Labels(labels.into_iter().map(str::to_owned).collect()));
        let csv = b"text,label\nx,a;b c \ny,\nz,7\n";
        assert_eq!(labels("csv", csv, Objective::Labels).unwrap(), expected);
        let jsonl = b"{\"text\":\"x\",\"label\":[\"a\",\"b c\"]}\n{\"text\":\"y\",\"label\":[]}\n\
                      {\"text\":\"z\",\"label\":[7]}";
        assert_eq!(labels("jsonl", jsonl, Objective::Labels).unwrap(), expected);
        for (content, rule) in [
            (&br#"{"text":"x","label":["a","a"]}"#[..], "the label \"a\" is given twice"),
            (br#"{"text":"x","label":["a",""]}"#, "the label is empty"),
            (br#"{"text":"x","label":[null]}"#, "the field `label` is not a label"),
            (
                br#"{"text":"x","label":"a"}"#,
                "the field `label` is \"a\", and `task.objective` = \"labels\" needs a list of labels",
            ),
        ] {
            let error = labels("jsonl", content, Objective::Labels).unwrap_err();
            assert_eq!(error, format!("`…/texts.jsonl`, line 1: {rule}"));
        }
        let error = labels("csv", b"text,label\nx,a;;b\n", Objective::Labels).unwrap_err();
        assert_eq!(error, "`…/texts.csv`, line 2: the label is empty");
    }

    #[test]
    fn a_regression_needs_numbers_and_classes_no_lists() {
        let expected = [Label::Number(-1.5), Label::Number(3.)];
        let csv = b"text,label\nx, -1.5\ny,3\n";
        assert_eq!(labels("csv", csv, Objective::Regression).unwrap(), expected);
        let jsonl = b"{\"text\":\"x\",\"label\":-1.5}\n{\"text\":\"y\",\"label\":3}";
        assert_eq!(labels("jsonl", jsonl, Objective::Regression).unwrap(), expected);
        let needs = "and `task.objective` = \"regression\" needs";
        let (number, finite) = ("a number", "a finite number in f32: at most 3.4e38 in size");
        for (ending, content, line, shown, rule) in [
            ("csv", &b"text,label\nx,warm\n"[..], 2, "\"warm\"", number),
            ("csv", b"text,label\nx,nan\n", 2, "\"nan\"", finite),
            ("csv", b"text,label\nx,1e99\n", 2, "\"1e99\"", finite),
            ("jsonl", br#"{"text":"x","label":1e99}"#, 1, "1e+99", finite),
            ("jsonl", br#"{"text":"x","label":"3"}"#, 1, "\"3\"", number),
            ("jsonl", br#"{"text":"x","label":[3]}"#, 1, "[3]", number),
        ] {
            let error = labels(ending, content, Objective::Regression).unwrap_err();
            assert_eq!(
                error,
                format!("`…/texts.{ending}`, line {line}: `label` is {shown}, {needs} {rule}")
            );
        }
        let list = br#"{"text":"x","label":["a"]}"#;
        let error = labels("jsonl", list, Objective::Classes).unwrap_err();
        assert!(
            error.ends_with("learns one label of a text: \"labels\" learns several"),
            "{error}"
        );
    }

    #[test]
    fn texts_are_read_without_labels_and_pairs_where_there_are_any() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("a.jsonl"), "{\"text\":\"\"}\n{\"text\":\"x\",\"text_pair\":\"y\"}\n")
            .unwrap();
        let of = |text: &str, pair: Option<&str>| Text {
            text: text.to_owned(),
            text_pair: pair.map(str::to_owned),
        };
        let fields = TextFields::default();
        assert_eq!(texts(&path("a.jsonl"), &fields).unwrap(), [of("", None), of("x", Some("y"))]);
        std::fs::write(path("a.csv"), "text,label\nx,3\n").unwrap();
        assert_eq!(texts(&path("a.csv"), &fields).unwrap(), [of("x", None)]);
    }

    #[test]
    fn both_kinds_of_files_hold_texts_with_labels() {
        let expected = vec![
            ("one, \"two\"".to_owned(), "a".to_owned(), 2),
            ("three".to_owned(), "1".to_owned(), 3),
        ];
        let csv = "\u{FEFF}label,text\r\na,\"one, \"\"two\"\"\"\r\n1,three\r\n";
        assert_eq!(examples("csv", csv.as_bytes()).unwrap(), expected);
        let jsonl = "\u{FEFF}\r\n{\"text\":\"one, \\\"two\\\"\",\"label\":\"a\"}\n{\"label\":1,\"text\":\"three\",\"more\":[]}\n";
        assert_eq!(examples("jsonl", jsonl.as_bytes()).unwrap(), expected);
        let truth = br#"{"label":true,"text":"x"}"#;
        assert_eq!(examples("jsonl", truth).unwrap()[0].1, "true");
    }

    #[test]
    fn a_mistake_in_jsonl_is_named_with_its_line() {
        let good = r#"{"text":"a","label":"b"}"#;
        for (line, rule) in [
            (&br#"{"text":"a"}"#[..], "there is no field `label` among `text`"),
            (br#"{"text":3,"label":"b"}"#, "the field `text` is not a text"),
            (br#"{"text":"a","label":null}"#, "the field `label` is not a label"),
            (br#"{"text":" ","label":"b"}"#, "the text is empty"),
            (br#"{"text":"a","label":""}"#, "the label is empty"),
            (b"[1]", "this is JSON, but not an object"),
            (br#"{"text":"a","#, "this is not JSON: EOF while parsing a value at column 12"),
            (b"\"\xff\"", "this is not UTF-8"),
        ] {
            let text = [good.as_bytes(), b"\n\n", line].concat();
            let message = examples("jsonl", &text).unwrap_err();
            assert_eq!(message, format!("`…/texts.jsonl`, line 3: {rule}"));
        }
    }

    #[test]
    fn a_mistake_in_csv_is_named_with_its_line() {
        for (text, line, rule) in [
            (&b"text,class\na,b\n"[..], 1, "there is no column `label` among `text`, `class`"),
            (b"text,label\na,b\n\nc\n", 4, "there are 1 columns, and the heading has 2"),
            (b"text,label\na,b\n,b\n", 3, "the text is empty"),
            (b"text,label\na,b\na,\xff\n", 3, "this is not UTF-8"),
        ] {
            let message = examples("csv", text).unwrap_err();
            assert_eq!(message, format!("`…/texts.csv`, line {line}: {rule}"));
        }
    }

    #[test]
    fn files_without_texts_and_of_other_kinds_are_refused() {
        assert_eq!(examples("jsonl", b"\n").unwrap_err(), "`…/texts.jsonl` holds no text");
        assert_eq!(examples("csv", b"text,label\n").unwrap_err(), "`…/texts.csv` holds no text");
        assert!(examples("txt", b"a").unwrap_err().contains("neither .jsonl nor .csv"));
        let message =
            read("k", Path::new("/nowhere.csv"), fields(None), Objective::Classes).unwrap_err();
        assert!(message.to_string().starts_with("`/nowhere.csv` cannot be read"));
    }
}
