//! Columns that nothing reads.

use std::collections::BTreeSet;

use super::Cells;

/// Names of columns that are shown.
const MAX_NAMES: usize = 12;

/// The names of the columns or fields that nothing reads.
#[derive(Debug, Default)]
pub(crate) struct Unused(BTreeSet<String>);

impl Unused {
    /// Adds those of a row that are not `used`.
    pub(crate) fn add(&mut self, cells: Cells<'_>, used: impl Fn(&str) -> bool) {
        for (name, _) in cells.iter().filter(|(name, _)| !used(name)) {
            if !self.0.contains(name) {
                self.0.insert(name.to_owned());
            }
        }
    }

    /// That they are not used; `None` if there are none.
    pub(crate) fn note(&self) -> Option<String> {
        let names = self.0.iter().map(|name| format!("`{name}`"));
        (!self.0.is_empty()).then(|| format!("not used: {}", listed(names)))
    }
}

/// The first names, and how many more there are.
pub(crate) fn listed(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<_> = names.by_ref().take(MAX_NAMES).collect();
    let more = match names.count() {
        0 => String::new(),
        n => format!(", and {n} more"),
    };
    shown.join(", ") + &more
}
