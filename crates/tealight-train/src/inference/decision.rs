//! What a run has fitted to its held-out texts after training: how logits become probabilities, and probabilities
//! labels.

use std::collections::BTreeMap;
use std::mem;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::storage::files::{read_json, to_json};
use crate::storage::tensors::NamedTensors;

/// The file that a run keeps it in.
pub const FILE: &str = "decision.json";
const FORMAT_VERSION: u64 = 1;
/// The linear map that makes logits, in all classifiers.
const LAST_MAP: [&str; 2] = ["classifier.weight", "classifier.bias"];

/// What is fitted to the probabilities of a trained model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Divides the logits (`task.calibration`).
    pub temperature: Option<f64>,
    /// The probability from which on a text has a label (`task.threshold`).
    pub thresholds: BTreeMap<String, f64>,
}

/// The content of the file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format_version: u64,
    /// The name of the checkpoint that the values are fitted to.
    checkpoint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    thresholds: BTreeMap<String, f64>,
}

impl Decision {
    /// Reads the file of the `run` directory; `None` if the run has no such file, or if its values are fitted to another
    /// checkpoint than the directory `checkpoint`.
    ///
    /// # Errors
    /// If the file cannot be read, or if the temperature is not positive.
    pub fn read(run: &Path, checkpoint: &Path) -> Result<Option<Self>> {
        let path = run.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let Content { checkpoint: of, temperature, thresholds, .. } =
            read_json(&path, FORMAT_VERSION)?;
        if let Some(temperature) = temperature.filter(|&t| !(t.is_finite() && t > 0.)) {
            let rule = format!("`temperature` = {temperature} must be positive");
            return Err(Error::unusable(&path, &rule));
        }
        let is_of_it = checkpoint.file_name().is_some_and(|name| *name == *of);
        Ok(is_of_it.then_some(Self { temperature, thresholds }))
    }

    /// The content of the file, of values that are fitted to `checkpoint`.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn file(&self, checkpoint: &Path) -> Result<Vec<u8>> {
        let checkpoint = checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Self { temperature, thresholds } = self.clone();
        let format_version = FORMAT_VERSION;
        let content = Content { format_version, checkpoint, temperature, thresholds };
        to_json(Path::new(FILE), &content)
    }

    /// Divides the logits of a classifier: its last linear map becomes W / T and b / T, so that every program that
    /// computes the model gives calibrated probabilities. Returns the tensors that are replaced.
    ///
    /// # Errors
    /// If a tensor cannot be computed.
    pub fn fold(&self, weights: &mut NamedTensors) -> Result<NamedTensors> {
        let mut replaced = NamedTensors::new();
        let Some(temperature) = self.temperature else { return Ok(replaced) };
        for name in LAST_MAP {
            if let Some(tensor) = weights.get_mut(name) {
                let divided = tensor.affine(1. / temperature, 0.)?;
                replaced.insert(name.to_owned(), mem::replace(tensor, divided));
            }
        }
        Ok(replaced)
    }
}
