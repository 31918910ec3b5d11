//! The texts of a [table](crate::data::table) without labels, for a trained model.

use std::path::Path;

use super::file::{Fields, TEXT_PAIR};
use crate::data::table::Table;
use crate::error::Result;
use crate::inference::readers::TextFields;
use crate::inference::text_classifier::Text;

/// What is done with the rows of a table that have no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRows {
    /// A row without a text is an error; an empty cell counts as a text.
    Refused,
    /// Rows without a text, and rows whose text is empty, are left out.
    LeftOut,
}

/// The texts of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableTexts {
    /// In the order of the rows.
    pub texts: Vec<Text>,
    /// For each row whether its text is among them.
    pub is_read: Vec<bool>,
    /// What a user should know about how they were read, a line each.
    pub notes: Vec<String>,
}

/// The texts of a table, with or without labels.
///
/// # Errors
/// If the table cannot be read; if a row has no text and such rows are refused, or no row has one.
pub fn texts(path: &Path, fields: &TextFields, broken_rows: BrokenRows) -> Result<TableTexts> {
    const KEY: &str = "--file";
    let text_pair = Some(fields.text_pair.as_deref().unwrap_or(TEXT_PAIR));
    let fields = Fields { text: &fields.text, text_pair, label: None };
    let table = Table::open(KEY, path)?;
    fields.check_heading(&table)?;
    let (mut broken, mut texts, mut is_read) = (table.broken(), Vec::new(), Vec::new());
    let is_refused = broken_rows == BrokenRows::Refused;
    table.each(|origin, row| {
        let text = row.and_then(|cells| fields.text(cells));
        let text = text.and_then(|one| {
            let is_kept = is_refused || !one.text.trim().is_empty();
            if is_kept { Ok(one) } else { Err("the text is empty".to_owned()) }
        });
        let text = broken.row(&origin, text);
        is_read.push(text.is_some());
        texts.extend(text);
        Ok(())
    })?;
    if is_refused || texts.is_empty() {
        broken.check(if texts.is_empty() {
            ""
        } else {
            "; `--skip-broken` leaves out such rows"
        })?;
    }
    let left_out = broken.note().map(|note| format!("`{}`: {note}", path.display()));
    let notes = table.notes.into_iter().chain(left_out).collect();
    Ok(TableTexts { texts, is_read, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let all =
            |name: &str| texts(&path(name), &fields, BrokenRows::Refused).map(|all| all.texts);
        assert_eq!(all("a.jsonl").unwrap(), [of("", None), of("x", Some("y"))]);
        std::fs::write(path("a.csv"), "text,label\nx,3\n").unwrap();
        assert_eq!(all("a.csv").unwrap(), [of("x", None)]);
        std::fs::write(path("a.csv"), "text,label\nx,3\ny\n,4\nz,5\n").unwrap();
        let error = all("a.csv").unwrap_err().to_string();
        assert!(error.ends_with("`--skip-broken` leaves out such rows"), "{error}");
        let kept = texts(&path("a.csv"), &fields, BrokenRows::LeftOut).unwrap();
        assert_eq!(kept.texts, [of("x", None), of("z", None)]);
        assert_eq!(kept.is_read, [true, false, false, true]);
        assert!(kept.notes[0].contains("2 broken rows are left out: line 3"), "{:?}", kept.notes);
    }
}
