//! Plain tables: columns as wide as their widest cell.

use std::fmt;

/// Rows of cells under a heading; the first column is aligned left, the others right.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(Vec::from(cells));
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
pub(crate) fn thousands(number: u64) -> String {
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
    fn columns_are_aligned() {
        let mut table = Table::new(["name", "value"]);
        table.row(["a".into(), "1.25".into()]);
        table.row(["long".into(), "10.50".into()]);
        let expected = "name   value\n────────────\na       1.25\nlong   10.50\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn digits_come_in_threes() {
        assert_eq!(
            [0, 999, 1000, 26_179, 1_000_000].map(thousands),
            ["0", "999", "1,000", "26,179", "1,000,000"]
        );
    }
}
