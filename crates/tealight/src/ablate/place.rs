//! Where an ablation is written: a directory for each set of settings that are varied, so that its table is not
//! overwritten by that of other settings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use tealight_train::run::{numbered_path, run_numbers};
use tealight_train::storage::files::read_text;

use super::variants::Axis;

/// The table, which also says what is varied.
pub(super) const TABLE: &str = "table.json";
/// Where ablations are without `--output`.
const ROOT: &str = "runs/ablations";

/// What is read of a table.
#[derive(Deserialize)]
struct Table {
    /// The values of each setting that is varied.
    vary: BTreeMap<String, Value>,
}

/// The directory of the ablation of `axes`, `name` or `name-2` and so on: the one whose table is of the same settings,
/// else the first without a table, else a new one.
pub(super) fn find(name: &str, axes: &[Axis]) -> Result<PathBuf> {
    let root = Path::new(ROOT);
    let own = keys(axes);
    let (mut free, mut last) = (None, 0);
    for number in run_numbers(root, name)? {
        let directory = numbered_path(root, name, number);
        match varied(&directory)? {
            Some(keys) if keys == own => return Ok(directory),
            Some(_) => {}
            None => free = free.or(Some(directory)),
        }
        last = number;
    }
    Ok(free.unwrap_or_else(|| numbered_path(root, name, last + 1)))
}

/// Refuses a directory with a table of other settings than `axes`.
pub(super) fn check(directory: &Path, axes: &[Axis]) -> Result<()> {
    let own = keys(axes);
    let Some(others) = varied(directory)?.filter(|keys| *keys != own) else { return Ok(()) };
    bail!(
        "`{}` is the table of an ablation that varies {}, but this one varies {}; choose another directory with \
         --output",
        directory.join(TABLE).display(),
        listed(&others),
        listed(&own)
    )
}

/// The settings that the table in `directory` is of; `None` if there is no table.
fn varied(directory: &Path) -> Result<Option<BTreeSet<String>>> {
    let path = directory.join(TABLE);
    if !path.exists() {
        return Ok(None);
    }
    let table: Table = serde_json::from_str(&read_text(&path)?)
        .with_context(|| format!("`{}` is not the table of an ablation", path.display()))?;
    Ok(Some(table.vary.into_keys().collect()))
}

fn keys(axes: &[Axis]) -> BTreeSet<String> {
    axes.iter().map(|axis| axis.key.clone()).collect()
}

/// "`model.n_heads`, `model.n_layers`"
fn listed(keys: &BTreeSet<String>) -> String {
    if keys.is_empty() {
        return "only the seed".to_owned();
    }
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}
