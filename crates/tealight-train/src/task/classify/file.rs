//! Texts with labels from the rows of a [table](crate::data::table).

use std::path::Path;
use std::slice;

use serde_json::Value;

use crate::data::table::{Cell, Cells, Table, Unused};
use crate::data::text::corpus::Origin;
use crate::error::{Error, Result};
use crate::inference::labels::Objective;
use crate::inference::text_classifier::Text;
use crate::task::parts::Read;

/// Separates several labels in a column.
const SEPARATOR: char = ';';
/// The field of the second text, where it may be left out and no setting names it.
pub(super) const TEXT_PAIR: &str = "text_pair";
/// How broken rows are left out.
const ADVICE: &str = "; `task.data.skip_broken` = true (`--skip-broken`) leaves out such rows";

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
    /// The row of the text.
    pub origin: Origin,
}

/// What is read of a file.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) fields: Fields<'a>,
    pub(super) objective: Objective,
    pub(super) skips_broken: bool,
}

/// The names of the fields or columns that are read.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) text: &'a str,
    pub(super) text_pair: Option<&'a str>,
    /// `None` where only texts are read; then the second text may be missing, too.
    pub(super) label: Option<&'a str>,
}

impl Fields<'_> {
    fn has(&self, name: &str) -> bool {
        name == self.text || [self.text_pair, self.label].contains(&Some(name))
    }

    /// Refuses a table whose heading lacks one of them.
    pub(super) fn check_heading(&self, table: &Table) -> Result<()> {
        let pair = self.text_pair.filter(|_| self.label.is_some());
        table.check_heading([Some(self.text), pair, self.label].into_iter().flatten())
    }

    /// The text of a row, or of both of a pair.
    pub(super) fn text(&self, cells: Cells<'_>) -> Result<Text, String> {
        let may_lack = |name: &&str| self.label.is_some() || cells.get(name).is_some();
        let text = |name: &str| cells.text(name);
        Ok(Text {
            text: text(self.text)?,
            text_pair: self.text_pair.filter(may_lack).map(text).transpose()?,
        })
    }
}

/// The examples of the table in the setting `key`.
///
/// # Errors
/// If it cannot be read, or holds no text; if a row is broken, unless these are left out, or all are.
pub(super) fn read(key: &str, path: &Path, wanted: Wanted<'_>) -> Result<Read<Example>> {
    let Wanted { fields, objective, skips_broken } = wanted;
    let table = Table::open(key, path)?;
    fields.check_heading(&table)?;
    let (mut broken, mut all, mut unused) = (table.broken(), Vec::new(), Unused::default());
    table.each(|origin, row| {
        if let Ok(cells) = &row {
            unused.add(*cells, |name| fields.has(name));
        }
        let read = row.and_then(|cells| example(cells, fields, objective));
        if let Some((text, label)) = broken.row(&origin, read) {
            all.push(Example { text, label, origin });
        }
        Ok(())
    })?;
    if !skips_broken || all.is_empty() {
        broken.check(if all.is_empty() { "" } else { ADVICE })?;
    }
    if all.is_empty() {
        let message = format!("`{}` holds no text", path.display());
        return Err(Error::config([key], message));
    }
    let left_out = broken.note().map(|note| format!("`{}`: {note}", path.display()));
    let notes = table.notes.into_iter().chain(left_out).chain(unused.note()).collect();
    Ok(Read { all, form: (), notes })
}

/// A row as text and label.
fn example(
    cells: Cells<'_>,
    fields: Fields<'_>,
    objective: Objective,
) -> Result<(Text, Label), String> {
    let text = fields.text(cells)?;
    let both = [("text", Some(&text.text)), ("second text", text.text_pair.as_ref())];
    for (side, value) in both {
        if value.is_some_and(|value| value.trim().is_empty()) {
            return Err(format!("the {side} is empty"));
        }
    }
    let name = fields.label.unwrap_or_default();
    let label = Label::from_cell(cells.field(name)?, objective, name)?;
    Ok((text, label))
}

impl Label {
    /// The class or the labels; none of a number.
    pub(super) fn names(&self) -> &[String] {
        match self {
            Self::Class(class) => slice::from_ref(class),
            Self::Labels(labels) => labels,
            Self::Number(_) => &[],
        }
    }

    fn from_cell(cell: Cell<'_>, objective: Objective, field: &str) -> Result<Self, String> {
        match (objective, cell) {
            (Objective::Classes, Cell::Written(cell)) => word(cell).map(Self::Class),
            (Objective::Classes, Cell::Json(Value::Array(_))) => Err(format!(
                "the field `{field}` is a list, and `task.objective` = \"classes\" learns one label of a text: \
                 \"labels\" learns several"
            )),
            (Objective::Classes, Cell::Json(value)) => json_word(value, field).map(Self::Class),
            (Objective::Labels, Cell::Written(cell)) if cell.trim().is_empty() => {
                Ok(Self::Labels(Vec::new()))
            }
            (Objective::Labels, Cell::Written(cell)) => different(cell.split(SEPARATOR).map(word)),
            (Objective::Labels, Cell::Json(Value::Array(all))) => {
                different(all.iter().map(|value| json_word(value, field)))
            }
            (Objective::Labels, Cell::Json(value)) => Err(format!(
                "the field `{field}` is {value}, and `task.objective` = \"labels\" needs a list of labels"
            )),
            (Objective::Regression, cell) => {
                cell.number(field, "`task.objective` = \"regression\"").map(Self::Number)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_UTF_8: &str = "this is not UTF-8: byte 2 of the line is 0xFF; `iconv -f ENCODING -t UTF-8` converts a text";

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
        let wanted = Wanted { fields: fields(pair), objective, skips_broken: false };
        let read = read("task.data.path", &path, wanted).map(|examples| examples.all);
        read.map_err(|error| {
            let told = error.to_string().replace(&directory.path().display().to_string(), "…");
            told.replace(ADVICE, "")
        })
    }

    fn examples(ending: &str, bytes: &[u8]) -> Result<Vec<(String, String, u64)>, String> {
        let examples = read_as(ending, bytes, Objective::Classes, None)?;
        let class = |one: Example| {
            let Label::Class(class) = one.label else { panic!("{:?}", one.label) };
            (one.text.text, class, one.origin.line)
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
            (b"\"\xff\"", NOT_UTF_8),
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
            (b"text,label\na,b\n\nc\n", 4, "too few cells: 1, and the heading has 2"),
            (b"text,label\na,b\n,b\n", 3, "the text is empty"),
            (b"text,label\na,b\n,\xff\n", 3, NOT_UTF_8),
        ] {
            let message = examples("csv", text).unwrap_err();
            assert_eq!(message, format!("`…/texts.csv`, line {line}: {rule}"));
        }
    }

    #[test]
    fn files_without_texts_and_of_other_kinds_are_refused() {
        assert_eq!(examples("jsonl", b"\n").unwrap_err(), "`…/texts.jsonl` holds no text");
        assert_eq!(examples("csv", b"text,label\n").unwrap_err(), "`…/texts.csv` holds no text");
        assert!(examples("txt", b"a").unwrap_err().contains("is no table"));
        let wanted =
            Wanted { fields: fields(None), objective: Objective::Classes, skips_broken: false };
        let message = read("k", Path::new("/nowhere.csv"), wanted).unwrap_err();
        assert!(message.to_string().starts_with("`/nowhere.csv` cannot be read"));
    }

    #[test]
    fn broken_rows_are_counted_or_left_out_and_unused_columns_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("texts.csv");
        std::fs::write(
            &path,
            "id,text,label,date\n1,a,x,3\n2,,x,3\n3,b,,3\n4,,y,3\n5,c\n6,d,y,3\n",
        )
        .unwrap();
        let of = |skips_broken| {
            let wanted =
                Wanted { fields: fields(None), objective: Objective::Classes, skips_broken };
            read("task.data.path", &path, wanted)
        };
        let list = "line 3 (also 5): the text is empty; line 4: the label is empty; \
                    line 6: too few cells: 2, and the heading has 4";
        let error = of(false).unwrap_err().to_string();
        let expected = format!(
            "`{}`, line 3: the text is empty; 4 of 6 rows are broken: {list}{ADVICE}",
            path.display()
        );
        assert_eq!(error, expected);
        let Read { all, notes, .. } = of(true).unwrap();
        assert_eq!(all.iter().map(|one| one.origin.line).collect::<Vec<_>>(), [2, 7]);
        let left_out = format!("`{}`: 4 broken rows are left out: {list}", path.display());
        assert_eq!(notes, [left_out, "not used: `date`, `id`".to_owned()]);
        // What is left is nothing: that is no data.
        std::fs::write(&path, "text,label\n,x\n,y\n").unwrap();
        assert!(of(true).unwrap_err().to_string().contains("2 of 2 rows are broken"));
    }
}
