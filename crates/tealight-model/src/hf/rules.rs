//! The requirements of a class of `transformers`, and the list of faults of a model.

use super::{Family, HfError, HfResult};
use crate::error::ConfigFault;

/// Collects the faults of a model; all requirements are checked.
pub(super) struct Rules {
    class: &'static str,
    faults: Vec<ConfigFault>,
    notes: Vec<String>,
}

impl Rules {
    pub(super) fn new(class: &'static str) -> Self {
        Self { class, faults: Vec::new(), notes: Vec::new() }
    }

    /// Records a fault of `keys` unless `holds`; `required` completes "…, but the class requires".
    pub(super) fn check(&mut self, holds: bool, keys: &[&str], value: &str, required: &str) {
        if holds {
            return;
        }
        let key = keys.first().copied().unwrap_or_default();
        let message = format!("`{key}` is {value}, but {} requires {required}", self.class);
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        self.faults.push(ConfigFault { keys, message });
    }

    pub(super) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// The notes, or an error if there are faults.
    pub(super) fn finish(self, family: Family) -> HfResult<Vec<String>> {
        if self.faults.is_empty() {
            return Ok(self.notes);
        }
        Err(HfError::Inexpressible { family, faults: self.faults })
    }
}
