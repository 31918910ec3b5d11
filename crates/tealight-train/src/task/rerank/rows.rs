//! Queries with their passages from the rows of a [table](crate::data::table).
//!
//! ```text
//! {"query": "…", "passage": "…", "label": 1}             rows of one query are its passages
//! {"query": "…", "positive": "…", "negatives": ["…"]}    labels 1 and 0
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::loss::Passages;
use super::source::DataConfig;
use crate::data::table::{Cell, Cells, Table, Unused};
use crate::data::text::corpus::Origin;
use crate::error::{Error, Result};
use crate::task::label_column::LabelColumn;
use crate::task::parts::Read;

/// The fields of rows with positives and negatives.
const POSITIVE: &str = "positive";
const NEGATIVES: [&str; 2] = ["negative", "negatives"];
/// How broken rows are left out.
const ADVICE: &str = "; `task.data.skip_broken` = true (`--skip-broken`) leaves out such rows";

/// A query with its passages.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::task) struct List {
    pub(super) query: String,
    pub(super) passages: Vec<Passage>,
    /// The place of its first row.
    pub(super) origin: Origin,
}

/// A passage and how well it answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Passage {
    pub(super) text: String,
    pub(super) label: f64,
}

/// What is read of a file.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) data: &'a DataConfig,
    pub(super) passages: Passages,
    pub(super) labels_in: Option<(f64, f64)>,
    /// The kind of the loss, for errors.
    pub(super) loss: &'static str,
}

/// The queries of the table in the setting `key`.
///
/// # Errors
/// If it cannot be read, or holds no query; if a row is broken, unless these are left out, or all are.
pub(super) fn read(key: &str, path: &Path, wanted: Wanted<'_>) -> Result<Read<List>> {
    let DataConfig { query, passage, label, skip_broken, .. } = wanted.data;
    let table = Table::open(key, path)?;
    let has = |name: &str| table.heading().is_none_or(|all| all.iter().any(|known| known == name));
    if has(POSITIVE) && !has(passage) {
        table.check_heading([query.as_str()])?;
    } else {
        table.check_heading([query, passage, label].map(String::as_str))?;
    }
    let (mut broken, mut unused) = (table.broken(), Unused::default());
    let (mut all, mut of_query) = (Vec::<List>::new(), BTreeMap::<String, usize>::new());
    table.each(|origin, row| {
        if let Ok(cells) = &row {
            let used = |name: &str| {
                [query, passage, label].iter().any(|known| *known == name)
                    || name == POSITIVE
                    || NEGATIVES.contains(&name)
            };
            unused.add(*cells, used);
        }
        let read = row.and_then(|cells| wanted.row(cells));
        if let Some((query, passages)) = broken.row(&origin, read) {
            let is_list = wanted.passages != Passages::Two;
            let known = of_query.get(&query).copied().filter(|_| is_list);
            if let Some(at) = known {
                all[at].passages.extend(passages);
            } else {
                of_query.insert(query.clone(), all.len());
                all.push(List { query, passages, origin });
            }
        }
        Ok(())
    })?;
    if !skip_broken || all.is_empty() {
        broken.check(if all.is_empty() { "" } else { ADVICE })?;
    }
    if all.is_empty() {
        let message = format!("`{}` holds no query", path.display());
        return Err(Error::config([key], message));
    }
    let left_out = broken.note().map(|note| format!("`{}`: {note}", path.display()));
    let notes = table.notes.into_iter().chain(left_out).chain(unused.note()).collect();
    Ok(Read { all, form: (), notes })
}

impl Wanted<'_> {
    /// The query of a row and its passages.
    fn row(&self, cells: Cells<'_>) -> Result<(String, Vec<Passage>), String> {
        let DataConfig { query, passage, label, .. } = self.data;
        let text = |name: &str| cells.filled_text(name);
        let query = text(query)?;
        if self.passages == Passages::Two {
            let negative = negatives(cells)?;
            let [negative] = &negative[..] else {
                return Err(format!(
                    "it has {} negatives, and the loss \"{}\" needs one, with a margin as `{label}`",
                    negative.len(),
                    self.loss
                ));
            };
            let margin = self.column().margin(cells.field(label)?)?;
            let positive = Passage { text: text(POSITIVE)?, label: margin };
            return Ok((query, vec![positive, Passage { text: negative.clone(), label: 0. }]));
        }
        if cells.get(passage).is_some() || cells.get(POSITIVE).is_none() {
            let label = self.column().label(cells.field(label)?, self.labels_in)?;
            return Ok((query, vec![Passage { text: text(passage)?, label }]));
        }
        let positive = Passage { text: text(POSITIVE)?, label: 1. };
        let negatives = negatives(cells)?.into_iter().map(|text| Passage { text, label: 0. });
        Ok((query, [positive].into_iter().chain(negatives).collect()))
    }

    fn column(&self) -> LabelColumn<'_> {
        let DataConfig { label: name, label_scale, .. } = self.data;
        LabelColumn { name, scale: *label_scale, loss: self.loss }
    }
}

/// The negatives of a row.
fn negatives(cells: Cells<'_>) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for name in NEGATIVES {
        match cells.get(name) {
            None | Some(Cell::Json(Value::Null)) => {}
            Some(Cell::Json(Value::Array(texts))) => {
                let texts = texts.iter().map(|text| text.as_str().map(str::to_owned));
                let texts = texts.collect::<Option<Vec<_>>>();
                all.extend(
                    texts.ok_or_else(|| format!("the field `{name}` is not a list of texts"))?,
                );
            }
            Some(_) => all.push(cells.text(name)?),
        }
    }
    all.retain(|text| !text.trim().is_empty());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(lines: &str, passages: Passages) -> Result<Vec<List>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, lines).unwrap();
        let data = DataConfig::default();
        let wanted = Wanted { data: &data, passages, labels_in: Some((0., 1.)), loss: "binary" };
        let read = read("task.data.path", &path, wanted);
        read.map(|rows| rows.all).map_err(|error| {
            error.to_string().replace(&path.display().to_string(), "…").replace(ADVICE, "")
        })
    }

    fn labels(lists: &[List]) -> Vec<(&str, Vec<(&str, f64)>)> {
        let of = |list: &'_ List| list.passages.iter().map(|one| one.label).collect::<Vec<_>>();
        let named = |list| {
            let List { query, passages, .. }: &List = list;
            let texts = passages.iter().map(|one| &*one.text).zip(of(list)).collect();
            (&**query, texts)
        };
        lists.iter().map(named).collect()
    }

    #[test]
    fn rows_of_a_query_are_its_passages() {
        let lines = concat!(
            r#"{"query":"a","passage":"b","label":1}"#,
            "\n",
            r#"{"query":"c","positive":"d","negatives":["e","f"]}"#,
            "\n",
            r#"{"query":"a","passage":"g","label":0.25}"#,
        );
        let found = lists(lines, Passages::All).unwrap();
        assert_eq!(
            labels(&found),
            [("a", vec![("b", 1.), ("g", 0.25)]), ("c", vec![("d", 1.), ("e", 0.), ("f", 0.)]),]
        );
    }

    #[test]
    fn a_margin_is_a_number_or_two_scores() {
        let row = |label: &str| {
            format!(r#"{{"query":"a","positive":"b","negative":"c","label":{label}}}"#)
        };
        for label in ["0.75", "[1.0,0.25]"] {
            let found = lists(&row(label), Passages::Two).unwrap();
            assert_eq!(labels(&found), [("a", vec![("b", 0.75), ("c", 0.)])]);
        }
        let without = r#"{"query":"a","positive":"b","label":1}"#;
        let error = lists(without, Passages::Two).unwrap_err();
        assert!(error.contains("it has 0 negatives, and the loss \"binary\" needs one"), "{error}");
    }

    #[test]
    fn broken_rows_are_named_by_line() {
        for (row, rule) in [
            (
                r#"{"query":"a","passage":"b"}"#,
                "there is no field `label` among `passage`, `query`",
            ),
            (r#"{"query":"a","passage":" ","label":1}"#, "the field `passage` is empty"),
            (
                r#"{"query":"a","passage":"b","label":4}"#,
                "`label` is 4, and the loss \"binary\" needs a number from 0 to 1: `task.data.label_scale` divides labels",
            ),
            (
                r#"{"query":"a","positive":"b","negatives":[1]}"#,
                "the field `negatives` is not a list of texts",
            ),
        ] {
            let good = r#"{"query":"x","passage":"y","label":0}"#;
            let error = lists(&format!("{good}\n{row}"), Passages::All).unwrap_err();
            assert_eq!(error, format!("`…`, line 2: {rule}"));
        }
    }
}
