//! Rows of a table that cannot be used.

use std::path::Path;
use std::sync::Arc;

use crate::data::text::corpus::Origin;
use crate::error::Result;

/// Different faults that are listed, and rows with each.
const MAX_FAULTS: usize = 5;
const MAX_ROWS: usize = 3;

/// What is wrong with rows, by the fault.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    path: Arc<Path>,
    faults: Vec<Fault>,
    /// Broken rows, and all.
    n: usize,
    n_rows: usize,
}

/// A fault of one or more rows.
#[derive(Clone, Debug)]
struct Fault {
    /// That of the first row; of others, it may differ in numbers and in what is quoted.
    rule: String,
    /// What the rules of all rows have in common.
    kind: String,
    n: usize,
    /// The places of the first rows.
    first: Vec<Origin>,
}

impl Broken {
    /// No row of the table at `path`.
    pub(crate) fn new(path: Arc<Path>) -> Self {
        Self { path, faults: Vec::new(), n: 0, n_rows: 0 }
    }

    /// Counts a row: what is made of it, unless it is broken.
    pub(crate) fn row<T>(&mut self, origin: &Origin, row: Result<T, String>) -> Option<T> {
        self.n_rows += 1;
        row.map_err(|rule| self.add(origin, rule)).ok()
    }

    fn add(&mut self, origin: &Origin, rule: String) {
        self.n += 1;
        let kind = kind(&rule);
        if let Some(fault) = self.faults.iter_mut().find(|fault| fault.kind == kind) {
            fault.n += 1;
            if fault.first.len() < MAX_ROWS {
                fault.first.push(origin.clone());
            }
        } else if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { rule, kind, n: 1, first: vec![origin.clone()] });
        }
    }

    /// That rows are left out; `None` if none is.
    pub(crate) fn note(&self) -> Option<String> {
        let (rows, are) = if self.n == 1 { ("row", "is") } else { ("rows", "are") };
        (self.n > 0).then(|| format!("{} broken {rows} {are} left out: {}", self.n, self.list()))
    }

    /// # Errors
    /// If a row is broken: the first, then all kinds of faults, then `advice`.
    pub(crate) fn check(&self, advice: &str) -> Result<()> {
        let Some(Fault { rule, first, .. }) = self.faults.first() else { return Ok(()) };
        let all = if self.n == 1 {
            String::new()
        } else {
            format!("; {} of {} rows are broken: {}", self.n, self.n_rows, self.list())
        };
        Err(first[0].error(format!("{rule}{all}{advice}")))
    }

    /// The faults with their rows: `line 3 (also 8, 9 and 2 more): the text is empty; line 7: …`.
    fn list(&self) -> String {
        let mut list: Vec<_> = self.faults.iter().map(|fault| self.listed(fault)).collect();
        match self.n - self.faults.iter().map(|fault| fault.n).sum::<usize>() {
            0 => {}
            n => list.push(format!("and {n} more")),
        }
        list.join("; ")
    }

    fn listed(&self, Fault { rule, n, first, .. }: &Fault) -> String {
        // In class folders, each text is a file.
        let is_line = first.iter().all(|origin| origin.path == self.path);
        let place = |origin: &Origin| {
            if is_line { origin.line.to_string() } else { format!("`{}`", origin.path.display()) }
        };
        let others: Vec<_> = first[1..].iter().map(place).collect();
        let also = match (n - first.len(), others.join(", ")) {
            (_, others) if others.is_empty() => String::new(),
            (0, others) => format!(" (also {others})"),
            (n, others) => format!(" (also {others} and {n} more)"),
        };
        format!("{}{}{also}: {rule}", if is_line { "line " } else { "" }, place(&first[0]))
    }
}

/// Removes the numbers and the quoted parts of a rule, so that the same fault of several rows counts as one.
fn kind(rule: &str) -> String {
    let outside = rule.split('"').step_by(2).flat_map(str::split_whitespace);
    let words = outside.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_listed_with_their_first_rows() {
        let path: Arc<Path> = Path::new("a.csv").into();
        let mut broken = Broken::new(path.clone());
        let mut add = |line, rule: &str| {
            let row = if rule.is_empty() { Ok(()) } else { Err(rule.to_owned()) };
            broken.row(&Origin { path: path.clone(), line }, row);
        };
        add(2, "");
        add(3, "empty");
        let one = broken.clone();
        assert_eq!(
            one.check("; ADVICE").unwrap_err().to_string(),
            "`a.csv`, line 3: empty; ADVICE"
        );
        assert_eq!(one.note().unwrap(), "1 broken row is left out: line 3: empty");
        let mut add = |line, rule: &str| {
            broken.row::<()>(&Origin { path: path.clone(), line }, Err(rule.to_owned()));
        };
        for line in [5, 6, 8, 9] {
            add(line, "empty");
        }
        for (line, word) in
            (10..).zip(["one", "two", "two \"2\" 22", "four", "five", "six", "seven"])
        {
            add(line, word);
        }
        let listed = "line 3 (also 5, 6 and 2 more): empty; line 10: one; line 11 (also 12): two; line 13: four; \
                      line 14: five; and 2 more";
        assert_eq!(broken.note().unwrap(), format!("12 broken rows are left out: {listed}"));
        let error = broken.check("; ADVICE").unwrap_err().to_string();
        let expected =
            format!("`a.csv`, line 3: empty; 12 of 13 rows are broken: {listed}; ADVICE");
        assert_eq!(error, expected);
    }
}
