//! Texts with labels from a file: the lines of a `.jsonl`, or the rows of a `.csv`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::config::DataConfig;
use crate::data::json_line;
use crate::error::{Error, Result};

/// A text and its label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Example {
    /// As the file has it.
    pub text: String,
    /// As the file has it; numbers and booleans as JSON writes them.
    pub label: String,
    /// The line of the file, counted from 1.
    pub(super) line: usize,
}

/// The examples of the file in the setting `key`, in its order.
pub(super) fn read(key: &str, path: &Path, config: &DataConfig) -> Result<Vec<Example>> {
    let bytes = std::fs::read(path).map_err(|source| {
        Error::config([key], format!("`{}` cannot be read: {source}", path.display()))
    })?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let examples = match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl") => of_jsonl(path, bytes, config)?,
        Some("csv") => of_csv(path, bytes, config)?,
        _ => {
            let message = format!("`{key}` = `{}` ends in neither .jsonl nor .csv", path.display());
            return Err(Error::config([key], message));
        }
    };
    if examples.is_empty() {
        let message = format!("`{}` holds no text", path.display());
        return Err(Error::config([key], message));
    }
    Ok(examples)
}

fn of_jsonl(path: &Path, bytes: &[u8], config: &DataConfig) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let wrong = |rule: String| Error::line(path, at + 1, rule);
        let text = std::str::from_utf8(line).map_err(|_| wrong("this is not UTF-8".to_owned()))?;
        if text.trim().is_empty() {
            continue;
        }
        let fields = json_line::object(text).map_err(wrong)?;
        let field = |name: &str| {
            // Sorted: another crate may enable the feature of serde_json that keeps the order of fields.
            let known = || fields.keys().collect::<BTreeSet<_>>();
            fields.get(name).ok_or_else(|| wrong(missing("field", name, known())))
        };
        let Value::String(text) = field(&config.text)? else {
            return Err(wrong(format!("the field `{}` is not a text", config.text)));
        };
        let label = match field(&config.label)? {
            Value::String(label) => label.clone(),
            label @ (Value::Number(_) | Value::Bool(_)) => label.to_string(),
            _ => return Err(wrong(format!("the field `{}` is not a label", config.label))),
        };
        examples.push(example(text, &label, at + 1).map_err(wrong)?);
    }
    Ok(examples)
}

fn of_csv(path: &Path, bytes: &[u8], config: &DataConfig) -> Result<Vec<Example>> {
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
    let column = |name: &str| {
        let names: Vec<&str> = heading.iter().map(str::trim).collect();
        let at = names.iter().position(|&known| known == name);
        at.ok_or_else(|| Error::line(path, 1, missing("column", name, names)))
    };
    let (text, label) = (column(&config.text)?, column(&config.label)?);
    let mut examples = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|error| of_row(path, &error, line_of(error.position())))?;
        let line = line_of(row.position());
        let [text, label] = [text, label].map(|at| row.get(at).unwrap_or_default());
        examples.push(example(text, label, line).map_err(|rule| Error::line(path, line, rule))?);
    }
    Ok(examples)
}

fn example(text: &str, label: &str, line: usize) -> Result<Example, String> {
    for (side, value) in [("text", text), ("label", label)] {
        if value.trim().is_empty() {
            return Err(format!("the {side} is empty"));
        }
    }
    Ok(Example { text: text.to_owned(), label: label.trim().to_owned(), line })
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

    fn examples(ending: &str, bytes: &[u8]) -> Result<Vec<(String, String, usize)>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("texts.{ending}"));
        std::fs::write(&path, bytes).unwrap();
        let examples = read("task.data.path", &path, &DataConfig::default()).map_err(|error| {
            error.to_string().replace(&directory.path().display().to_string(), "…")
        })?;
        Ok(examples.into_iter().map(|one| (one.text, one.label, one.line)).collect())
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
        let message = read("k", Path::new("/nowhere.csv"), &DataConfig::default()).unwrap_err();
        assert!(message.to_string().starts_with("`/nowhere.csv` cannot be read"));
    }
}
