//! `summary.json`: what a finished run comes to, for other programs to read.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tealight_train::Result;
use tealight_train::run::RunDirectory;
use tealight_train::run::files::{replace, to_json};

/// Writes the `metrics` of the final evaluation, and the size of the model.
pub(crate) fn write(
    directory: &RunDirectory,
    metrics: &BTreeMap<String, f64>,
    n_parameters: usize,
) -> Result<()> {
    let path = directory.path().join("summary.json");
    let summary: Value = json!({ "metrics": metrics, "n_parameters": n_parameters });
    replace(&path, &to_json(&path, &summary)?)
}
