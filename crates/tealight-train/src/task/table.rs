//! Tables as plain text and as Markdown, with columns as wide as their widest cell.

use std::fmt;

use crate::data::shown::on_one_line;

/// A heading and rows of cells; the first column is aligned left, the others right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with a column for each cell of `heading`. Control characters in a cell, here and in rows, are shown
    /// as escapes, so that no name looks like another row.
    pub fn new<S: Into<String>>(heading: impl IntoIterator<Item = S>) -> Self {
        Self {
            rows: vec![
                heading.into_iter().map(|cell| on_one_line(&cell.into()).into_owned()).collect(),
            ],
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If there is not a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> =
            cells.into_iter().map(|cell| on_one_line(&cell).into_owned()).collect();
        assert_eq!(cells.len(), self.rows[0].len(), "invariant: a row has a cell for each column");
        self.rows.push(cells);
    }

    /// The table in Markdown, with aligned columns.
    pub fn markdown(&self) -> String {
        let escaped = |row: &Vec<String>| row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let table = Self { rows: self.rows.iter().map(escaped).collect() };
        let widths = table.widths(3);
        // A colon aligns a column right.
        let rest = widths[1..].iter().map(|width| "-".repeat(width - 1) + ":");
        let mut rows: Vec<Vec<String>> =
            table.rows.iter().map(|row| aligned(row, &widths)).collect();
        rows.insert(1, ["-".repeat(widths[0])].into_iter().chain(rest).collect());
        let lines: Vec<String> =
            rows.iter().map(|row| format!("| {} |\n", row.join(" | "))).collect();
        lines.concat()
    }

    /// The width of each column, at least `least`.
    fn widths(&self, least: usize) -> Vec<usize> {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        (0..self.rows[0].len()).map(|column| width(column).unwrap_or(0).max(least)).collect()
    }
}

/// The cells of a row, padded to `widths`: the first aligned left, the others right.
fn aligned(row: &[String], widths: &[usize]) -> Vec<String> {
    let first = format!("{:<1$}", row[0], widths[0]);
    let rest = row.iter().zip(widths).skip(1).map(|(cell, &width)| format!("{cell:>width$}"));
    [first].into_iter().chain(rest).collect()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths(0);
        for (number, row) in self.rows.iter().enumerate() {
            let line = aligned(row, &widths).join("   ");
            writeln!(f, "{}", line.trim_end())?;
            if number == 0 {
                writeln!(f, "{}", "─".repeat(line.chars().count()))?;
            }
        }
        Ok(())
    }
}

/// 26179 → `26,179`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_in_threes() {
        assert_eq!(
            [0, 999, 1000, 26_179, 1_000_000].map(thousands),
            ["0", "999", "1,000", "26,179", "1,000,000"]
        );
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["name", "value"]);
        table.row(["a".into(), "1.25".into()]);
        table.row(["long".into(), "10.50".into()]);
        let expected = "name   value\n────────────\na       1.25\nlong   10.50\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_name_with_a_line_break_stays_in_its_row() {
        let mut table = Table::new(["name", "value"]);
        table.row(["a\nforged\t\u{1b}[2J".into(), "1".into()]);
        assert_eq!(table.to_string().lines().count(), 3);
        assert!(table.markdown().contains(r"| a\nforged\t\u{1b}[2J |"), "{}", table.markdown());
    }

    #[test]
    fn markdown_is_aligned_and_bars_in_cells_are_escaped() {
        let mut table = Table::new(["name", "value"]);
        table.row(["a|b".into(), "1 ± 2".into()]);
        let expected = "| name | value |\n| ---- | ----: |\n| a\\|b | 1 ± 2 |\n";
        assert_eq!(table.markdown(), expected);
    }
}
