//! The requirements of a class of `transformers`, and the list of faults of a model.

use super::{Family, HfError, HfResult};
use crate::config::{LmHeadConfig, ModelConfig};
use crate::error::ConfigFault;

/// Collects the faults of a model; all requirements are checked.
pub(super) struct Rules {
    class: &'static str,
    /// Whether the class has a language-model head.
    is_language_model: bool,
    faults: Vec<ConfigFault>,
    notes: Vec<String>,
}

impl Rules {
    /// Those of a language model.
    pub(super) fn new(class: &'static str) -> Self {
        Self { class, is_language_model: true, faults: Vec::new(), notes: Vec::new() }
    }

    /// Those of a class without a language-model head.
    pub(super) fn without_lm_head(class: &'static str) -> Self {
        Self { is_language_model: false, ..Self::new(class) }
    }

    /// The language-model head of `config`, if the class has one.
    pub(super) fn lm_head(&self, config: &ModelConfig) -> Option<LmHeadConfig> {
        self.is_language_model.then(|| config.lm_head.clone().unwrap_or_default())
    }

    /// Records a fault of `key` unless `holds`; `required` completes "…, but the class requires".
    pub(super) fn check(&mut self, holds: bool, key: &str, value: &str, required: &str) {
        if !holds {
            self.fault(&[key], value, required);
        }
    }

    /// Records a fault if the switch `key` is off; `required` as in [`Self::check`].
    pub(super) fn require_on(&mut self, key: &str, is_on: bool, required: &str) {
        self.check(is_on, key, "false", required);
    }

    /// Records a fault if the switch `key` is on.
    pub(super) fn require_off(&mut self, key: &str, is_on: bool, required: &str) {
        self.check(!is_on, key, "true", required);
    }

    /// As [`Self::check`], for a fault of several `keys`, of which the message names the first. A fault that several
    /// layers share is recorded once.
    pub(super) fn fault(&mut self, keys: &[&str], value: &str, required: &str) {
        let message = format!("`{}` is {value}, but {} requires {required}", keys[0], self.class);
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        let fault = ConfigFault { keys, message };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Records the fault that a choice, `key`, is of the kind `kind` and not `required`.
    pub(super) fn wrong_kind(&mut self, key: &str, kind: &str, required: &str) {
        self.check(false, key, &format!("\"{kind}\""), &format!("\"{required}\""));
    }

    pub(super) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// The notes, or an error if there are faults.
    pub(super) fn finish(self, family: Family) -> HfResult<Vec<String>> {
        if self.faults.is_empty() {
            return Ok(self.notes);
        }
        Err(HfError::Inexpressible { family, architecture: self.class, faults: self.faults })
    }
}
