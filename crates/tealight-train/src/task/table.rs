//! Tables as plain text and as Markdown, with columns as wide as their widest cell.

use std::fmt;

/// A heading and rows of cells; the first column is aligned left, the others right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table under `heading`.
    pub fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self::with_heading(heading.map(str::to_owned).to_vec())
    }

    /// A table with one column per cell of `heading`.
    pub fn with_heading(heading: Vec<String>) -> Self {
        Self { rows: vec![heading] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.push(Vec::from(cells));
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If there is not a cell for each column.
    pub fn push(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "invariant: a row has a cell for each column");
        self.rows.push(cells);
    }

    /// The table in Markdown, with aligned columns.
    pub fn markdown(&self) -> String {
        let escaped = |cell: &String| cell.replace('|', "\\|");
        let rows = self.rows.iter().map(|row| row.iter().map(escaped).collect()).collect();
        let table = Self { rows };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(|i| table.width(i).max(3)).collect();
        let mut lines = Vec::new();
        for (number, row) in table.rows.iter().enumerate() {
            let rest = row.iter().zip(&widths).skip(1);
            let cells = rest.map(|(cell, &width)| format!(" {cell:>width$} |"));
            lines.push(format!("| {:<1$} |{2}\n", row[0], widths[0], cells.collect::<String>()));
            if number == 0 {
                let rest = widths[1..].iter().map(|width| format!(" {}: |", "-".repeat(width - 1)));
                let rest = rest.collect::<String>();
                lines.push(format!("| {} |{rest}\n", "-".repeat(widths[0])));
            }
        }
        lines.concat()
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.rows[0].len()).map(|i| self.width(i)).collect();
        for (number, row) in self.rows.iter().enumerate() {
            let first = format!("{:<1$}", row[0], widths[0]);
            let rest = row.iter().zip(&widths).skip(1);
            let cells: Vec<String> = rest.map(|(cell, &width)| format!("{cell:>width$}")).collect();
            let line = [&[first], &cells[..]].concat().join("   ");
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
    fn markdown_is_aligned_and_bars_in_cells_are_escaped() {
        let mut table = Table::new(["name", "value"]);
        table.row(["a|b".into(), "1 ± 2".into()]);
        let expected = "| name | value |\n| ---- | ----: |\n| a\\|b | 1 ± 2 |\n";
        assert_eq!(table.markdown(), expected);
    }
}
