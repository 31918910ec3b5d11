//! The parameters of a model that is no run: of an exported folder, or of one of Hugging Face.

use std::path::Path;

use anyhow::{Error, Result, bail};
use serde_json::json;
use tealight_train::task::table::{Table, thousands};
use tealight_train::trained::TrainedModel;

use super::shape;
use crate::args::inspect::Inspect;
use crate::runs::load::log_notes;
use crate::terminal::output::{print, print_indented_json};

/// Prints the kind and the parameters of the model at `path`. Fails with `no_config`, why `path` is no configuration, if it
/// is no model either.
pub(super) fn print_model(path: &Path, args: &Inspect, no_config: Error) -> Result<()> {
    // What is a file, but no model, is a configuration with a mistake.
    let model = match TrainedModel::open(path, None) {
        Err(error) if path.is_dir() => return Err(error.into()),
        Err(_) => return Err(no_config),
        Ok(model) => model,
    };
    if !args.overrides.is_empty() {
        bail!("`--set` changes a configuration, and `{}` is a model", path.display());
    }
    log_notes(&model);
    let parameters = || model.weights.iter().map(|(name, tensor)| (name, tensor.dims()));
    let n: usize = parameters().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let description = model.description();
    if args.json {
        let parameters = parameters().map(|(name, shape)| json!({ "name": name, "shape": shape }));
        let parameters: Vec<_> = parameters.collect();
        return print_indented_json(
            &json!({ "description": description, "n_parameters": n, "parameters": parameters }),
        );
    }
    let mut table = Table::new(["parameter", "shape", "count"]);
    for (name, dims) in parameters() {
        table.row([name.clone(), shape(dims), thousands(dims.iter().product::<usize>() as u64)]);
    }
    print(&format!("{table}\n{description}, {} parameters\n", thousands(n as u64)))
}
