//! The fields of a `.jsonl` or the columns of a `.csv`, and their content.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::refused;
use crate::data::json_line;
use crate::error::{Error, Result};

/// Different values that are counted.
const MAX_DIFFERENT: usize = 2000;

/// A field or a column.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    pub(super) name: String,
    /// The number of rows in which it is not empty.
    pub(super) n: usize,
    pub(super) n_characters: usize,
    /// How often each value occurs, of at most [`MAX_DIFFERENT`] values.
    pub(super) different: BTreeMap<String, usize>,
    pub(super) n_lists: usize,
    pub(super) n_numbers: usize,
    /// Numbers with a fraction.
    pub(super) n_fractions: usize,
    /// Texts with a semicolon.
    pub(super) n_with_semicolon: usize,
    pub(super) most_words: usize,
}

impl Column {
    fn add(&mut self, value: &Value) {
        let text = match value {
            Value::String(text) if !text.trim().is_empty() => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Array(_) => {
                self.n_lists += 1;
                value.to_string()
            }
            _ => return,
        };
        self.n += 1;
        self.n_characters += text.chars().count();
        self.most_words = self.most_words.max(text.split_whitespace().count());
        self.n_with_semicolon += usize::from(text.contains(';'));
        if let Ok(number) = text.trim().parse::<f64>() {
            self.n_numbers += 1;
            self.n_fractions += usize::from(number.fract() != 0.);
        }
        // As labels are read: without spaces around them.
        let text = text.trim();
        let has_room = self.different.len() < MAX_DIFFERENT;
        if let Some(n) = self.different.get_mut(text) {
            *n += 1;
        } else if has_room {
            self.different.insert(text.to_owned(), 1);
        }
    }

    pub(super) fn mean_characters(&self) -> f64 {
        self.n_characters as f64 / self.n.max(1) as f64
    }
}

/// The columns of a table, and the number of its rows.
pub(super) fn read(path: &Path) -> Result<(Vec<Column>, usize)> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let (columns, n) = match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl") => of_jsonl(path, bytes)?,
        Some("csv") => of_csv(path, bytes)?,
        _ => return Err(refused(path, "ends in neither .jsonl nor .csv")),
    };
    if n == 0 {
        return Err(refused(path, "has no rows"));
    }
    Ok((columns, n))
}

fn of_jsonl(path: &Path, bytes: &[u8]) -> Result<(Vec<Column>, usize)> {
    let (mut columns, mut n) = (Vec::<Column>::new(), 0);
    for (at, line) in String::from_utf8_lossy(bytes).lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let object = json_line::object(line).map_err(|rule| Error::line(path, at + 1, rule))?;
        for (name, value) in &object {
            let known = columns.iter().position(|column| column.name == *name);
            let known = known.unwrap_or_else(|| {
                columns.push(Column { name: name.clone(), ..Column::default() });
                columns.len() - 1
            });
            columns[known].add(value);
        }
        n += 1;
    }
    Ok((columns, n))
}

/// The name of the sign that separates the names in a heading which no comma does, as spreadsheets of some languages write
/// it.
fn other_separator(heading: &str) -> Option<&'static str> {
    let signs = [(';', "semicolons"), ('\t', "tabs")];
    signs.into_iter().find(|(sign, _)| heading.contains(*sign)).map(|(_, name)| name)
}

fn of_csv(path: &Path, bytes: &[u8]) -> Result<(Vec<Column>, usize)> {
    let broken = |error: csv::Error| refused(path, &format!("is no .csv file: {error}"));
    let mut reader = csv::Reader::from_reader(bytes);
    let names = reader.headers().map_err(broken)?.clone();
    if let ([only], Some(sign)) =
        (&names.iter().collect::<Vec<_>>()[..], names.get(0).and_then(other_separator))
    {
        let rule = format!(
            "has one column, `{}`: it seems to be separated by {sign}, and a .csv is separated by commas",
            only.escape_debug()
        );
        return Err(refused(path, &rule));
    }
    let column = |name: &str| Column { name: name.trim().to_owned(), ..Column::default() };
    let mut columns: Vec<Column> = names.iter().map(column).collect();
    let mut n = 0;
    for row in reader.records() {
        for (column, cell) in columns.iter_mut().zip(row.map_err(broken)?.iter()) {
            column.add(&Value::from(cell));
        }
        n += 1;
    }
    Ok((columns, n))
}
