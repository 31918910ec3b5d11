//! The classes, in the order of the model's outputs.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::storage::files::{read_json, to_json};

/// The file that a run keeps them in.
const FILE: &str = "labels.json";
const FORMAT_VERSION: u64 = 1;

/// The labels in ascending order; a class is an index into them. Serialised as the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    format_version: u64,
    labels: Vec<String>,
}

impl Labels {
    /// The different labels.
    pub(super) fn of<'a>(labels: impl IntoIterator<Item = &'a str>) -> Self {
        let labels: BTreeSet<&str> = labels.into_iter().collect();
        let labels = labels.into_iter().map(str::to_owned).collect();
        Self { format_version: FORMAT_VERSION, labels }
    }

    /// The labels in the directory of a run.
    pub fn read(run: &Path) -> Result<Self> {
        read_json(&run.join(FILE), FORMAT_VERSION)
    }

    /// Name and content of the file that a run, or an exported folder, keeps them in.
    pub(crate) fn file(&self) -> Result<(&'static str, Vec<u8>)> {
        Ok((FILE, to_json(Path::new(FILE), self)?))
    }

    /// The labels in their order.
    pub fn names(&self) -> &[String] {
        &self.labels
    }

    /// The class of a label; `None` for a new label.
    pub(super) fn class(&self, label: &str) -> Option<u32> {
        let place = self.labels.binary_search_by(|known| known.as_str().cmp(label));
        place.ok().map(|class| class as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_keeps_its_labels_in_their_order() {
        let labels = Labels::of(["b", "a", "b", "ü"]);
        assert_eq!(labels.names(), ["a", "b", "ü"]);
        assert_eq!(["b", "c"].map(|label| labels.class(label)), [Some(1), None]);
        let run = tempfile::tempdir().unwrap();
        let (name, content) = labels.file().unwrap();
        std::fs::write(run.path().join(name), content).unwrap();
        assert_eq!(Labels::read(run.path()).unwrap(), labels);
    }
}
