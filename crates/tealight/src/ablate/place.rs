//! Where an ablation is written: a directory for each set of settings that are varied, so that its table is not
//! overwritten by that of other settings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use tealight_train::run::{numbered_path, run_numbers};
use tealight_train::storage::files::read_value;

use super::variants::Axis;

/// The table, which also says what is varied.
pub(super) const TABLE: &str = "table.json";
/// Where ablations are without `--output`.
const ROOT: &str = "runs/ablations";

/// What is read of a table.
#[derive(Deserialize)]
struct Table {
    /// The configuration file, as it was given.
    config: String,
    /// The values of each setting that is varied.
    vary: BTreeMap<String, Value>,
}

/// The directory of the ablation of `axes` by a file of this `name`: `name`, `name-2` and so on. It is the one whose table
/// is of the same axes, else `name` if it has no table, else a new one. A table in `name-2` may be that of the file
/// `name-2.toml`: it is passed over.
pub(super) fn find(name: &str, axes: &[Axis]) -> Result<PathBuf> {
    let root = Path::new(ROOT);
    let own = keys(axes);
    let numbers = run_numbers(root, name)?;
    for &number in &numbers {
        let directory = numbered_path(root, name, number);
        if table(&directory)?.is_some_and(|table| table.is_of(name) && table.varied() == own) {
            return Ok(directory);
        }
    }
    let first = numbered_path(root, name, 1);
    let is_free = table(&first)?.is_none();
    let new = numbers.last().map_or(1, |last| last + 1);
    Ok(if is_free { first } else { numbered_path(root, name, new) })
}

/// Refuses a directory with a table of other settings than `axes`.
pub(super) fn check(directory: &Path, axes: &[Axis]) -> Result<()> {
    let own = keys(axes);
    let others = table(directory)?.map(Table::varied).filter(|keys| *keys != own);
    let Some(others) = others else { return Ok(()) };
    bail!(
        "`{}` is the table of an ablation that varies {}, but this one varies {}; choose another directory with \
         --output",
        directory.join(TABLE).display(),
        listed(&others),
        listed(&own)
    )
}

impl Table {
    /// Whether it is of a configuration file of this `name`, or of one from standard input.
    fn is_of(&self, name: &str) -> bool {
        let file = Path::new(&self.config).file_stem();
        self.config == "-" || file.is_some_and(|stem| stem == name)
    }

    /// The settings that are varied.
    fn varied(self) -> BTreeSet<String> {
        self.vary.into_keys().collect()
    }
}

/// The table in `directory`, if there is one.
fn table(directory: &Path) -> Result<Option<Table>> {
    let path = directory.join(TABLE);
    if !path.exists() {
        return Ok(None);
    }
    let table = serde_json::from_value(read_value(&path)?);
    table.map(Some).with_context(|| format!("`{}` is not the table of an ablation", path.display()))
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
