//! The columns of a table, and their content.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{DATA, n_words, refused};
use crate::data::table::{Cell, Table};
use crate::error::Result;

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
    /// Numbers with a comma before the fraction, or two whole numbers with a comma between them.
    pub(super) n_with_comma: usize,
    /// Texts with a semicolon.
    pub(super) n_with_semicolon: usize,
    pub(super) most_words: usize,
}

impl Column {
    fn add(&mut self, cell: Cell<'_>) {
        let text = match cell {
            Cell::Written(text) => text.to_owned(),
            Cell::Json(Value::String(text)) => text.clone(),
            Cell::Json(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            Cell::Json(value @ Value::Array(_)) => {
                self.n_lists += 1;
                value.to_string()
            }
            Cell::Json(_) => return,
        };
        if text.trim().is_empty() {
            return;
        }
        self.n += 1;
        self.n_characters += text.chars().count();
        self.most_words = self.most_words.max(n_words(&text));
        self.n_with_semicolon += usize::from(text.contains(';'));
        let parts = text.trim().split_once(',');
        let is_whole = |part: &str| part.parse::<i64>().is_ok();
        self.n_with_comma += usize::from(parts.is_some_and(|(a, b)| is_whole(a) && is_whole(b)));
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

    /// Whether it numbers the rows: whole numbers, each of them once.
    pub(super) fn is_counter(&self) -> bool {
        let all_differ = self.different.values().all(|n| *n == 1);
        self.n_numbers == self.n && self.n_fractions == 0 && self.n > 2 && all_differ
    }

    pub(super) fn mean_characters(&self) -> f64 {
        self.n_characters as f64 / self.n.max(1) as f64
    }
}

/// The columns of a table.
pub(super) struct Columns {
    pub(super) all: Vec<Column>,
    pub(super) n_rows: usize,
    /// Whether a heading of the file names them.
    pub(super) are_headed: bool,
}

/// The columns of a table, without its broken rows.
pub(super) fn read(path: &Path) -> Result<Columns> {
    let table = Table::open(DATA, path)?;
    let column = |name: &str| Column { name: name.to_owned(), ..Column::default() };
    let mut all: Vec<Column> =
        table.heading().unwrap_or_default().iter().map(|name| column(name)).collect();
    let (mut n_rows, mut broken) = (0, table.broken());
    table.each(|origin, row| {
        let Some(cells) = broken.row(&origin, row) else { return Ok(()) };
        for (at, (name, cell)) in cells.iter().enumerate() {
            // Rows have their cells in one order, mostly.
            let is_here = all.get(at).is_some_and(|column| column.name == name);
            let known =
                if is_here { Some(at) } else { all.iter().position(|column| column.name == name) };
            let known = known.unwrap_or_else(|| {
                all.push(column(name));
                all.len() - 1
            });
            all[known].add(cell);
        }
        n_rows += 1;
        Ok(())
    })?;
    if n_rows == 0 {
        broken.check("")?;
        return Err(refused(path, "has no rows"));
    }
    Ok(Columns { all, n_rows, are_headed: table.separator().is_some() })
}
