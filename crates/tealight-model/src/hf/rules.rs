//! What a class of `transformers` asks of a model, and every reason why one is not it.

use super::{Family, HfError, HfResult};
use crate::error::ConfigFault;

/// Requirements that are checked one after the other, all of them.
pub(super) struct Rules {
    class: &'static str,
    faults: Vec<ConfigFault>,
    notes: Vec<String>,
}

impl Rules {
    pub(super) fn new(class: &'static str) -> Self {
        Self { class, faults: Vec::new(), notes: Vec::new() }
    }

    /// Where it does not hold, the `keys` are to blame; `it_has` completes "…, and the class has".
    pub(super) fn check(&mut self, holds: bool, keys: &[&str], value: &str, it_has: &str) {
        if holds {
            return;
        }
        let key = keys.first().copied().unwrap_or_default();
        let message = format!("`{key}` is {value}, and {} has {it_has}", self.class);
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        self.faults.push(ConfigFault { keys, message });
    }

    pub(super) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// The notes, where nothing is amiss.
    pub(super) fn finish(self, family: Family) -> HfResult<Vec<String>> {
        if self.faults.is_empty() {
            return Ok(self.notes);
        }
        Err(HfError::Inexpressible { family, faults: self.faults })
    }
}
