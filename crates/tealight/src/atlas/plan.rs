//! The file of an atlas: which kinds of attention are trained on which panels, and by which rule their rates are chosen.
//!
//! ```toml
//! lr = [1e-3, 3e-3, 1e-2]
//! seeds = 3
//! parameters = 76_000
//! theorems = { real = "…" }        # what bars a kind from a panel
//!
//! [[panels]]
//! name = "recall"                  # of a folder
//! title = "recall"
//! config = "atlas/recall"          # a file beside the plan, or a shipped configuration
//! columns = [{ title = "8 pairs", test = "8 pairs", metric = "accuracy" }]
//!
//! [[kinds]]
//! name = "softmax"
//! attention = { kind = "softmax", conv_size = 4 }
//! position = "rotary"
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::create_dir_all;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tealight_train::config::ConfigSource;
use tealight_train::storage::files::{read_text, replace};
use toml::Value;

use crate::shipped;

/// The copy of a panel's configuration in the folder of its runs.
pub(super) const CONFIG: &str = "config.toml";
/// A bound on `parameters`.
const MAX_PARAMETERS: u64 = 1_000_000_000;
/// The plan that is part of the program.
const SHIPPED: &str = include_str!("../../configs/atlas.toml");

/// What is compared, and how.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    /// The learning rates among which each kind chooses on each panel, by its loss on the validation split.
    pub(super) lr: Vec<f64>,
    /// Seeds of the chosen rate.
    pub(super) seeds: u64,
    /// Parameters outside of embedding and output, which the width of the feed-forward network is chosen for; as
    /// configured when absent.
    pub(super) parameters: Option<u64>,
    /// Theorems that bar kinds from panels, by a short name.
    #[serde(default)]
    theorems: BTreeMap<String, String>,
    pub(super) panels: Vec<Panel>,
    pub(super) kinds: Vec<Kind>,
    /// SHA-256 of the text.
    #[serde(skip)]
    pub(super) hash: String,
}

/// A task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Panel {
    /// The name of its folder.
    pub(super) name: String,
    /// What tables call it.
    pub(super) title: String,
    /// A file beside the plan, or a shipped configuration.
    pub(super) config: PathBuf,
    /// Settings, as for `--set`.
    #[serde(default)]
    pub(super) set: Vec<String>,
    /// The panel whose chart over the size of the state its scores join, in place of columns of the table.
    #[serde(default)]
    pub(super) joins: Option<String>,
    /// Take the rate and the widths of the configuration.
    #[serde(default)]
    pub(super) as_configured: bool,
    pub(super) columns: Vec<Column>,
    /// The text of the configuration.
    #[serde(skip)]
    pub(super) text: String,
}

/// A score of a panel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    pub(super) title: String,
    /// The test of the task; the test split of the training distribution when absent.
    pub(super) test: Option<String>,
    pub(super) metric: String,
}

impl Column {
    /// The text that stands for it in the digest of a cell. Another text would make all recorded cells stale.
    pub(super) fn digested(&self) -> String {
        let Self { title, test, metric } = self;
        format!("Column {{ title: {title:?}, test: {test:?}, metric: {metric:?} }}")
    }
}

/// A row: what is changed in the configurations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kind {
    pub(super) name: String,
    pub(super) attention: Value,
    #[serde(default)]
    pub(super) position: Option<Value>,
    /// Further settings, as for `--set`.
    #[serde(default)]
    pub(super) set: Vec<String>,
    /// The panels that it is trained on; all when absent.
    #[serde(default)]
    pub(super) panels: Option<Vec<String>>,
    /// The panels that a theorem bars it from: in the file the name of the theorem, then what it says.
    #[serde(default)]
    pub(super) barred: BTreeMap<String, String>,
    /// The panels whose limit it reaches with weights that are set by hand.
    #[serde(default)]
    pub(super) hand_set: Vec<String>,
}

impl Plan {
    /// Reads the file at `path`, or the plan that is part of the program.
    pub(super) fn read(path: Option<&Path>) -> Result<Self> {
        let (label, text) = match path {
            Some(path) => (path.display().to_string(), read_text(path)?),
            None => ("<atlas>".to_owned(), SHIPPED.to_owned()),
        };
        let plan: Self = toml::from_str(&text).with_context(|| format!("`{label}` is no plan"))?;
        plan.check().with_context(|| format!("`{label}`"))?;
        let hash = format!("{:x}", Sha256::digest(text.as_bytes()));
        let mut plan = Self { hash, ..plan };
        for kind in &mut plan.kinds {
            for theorem in kind.barred.values_mut() {
                let Some(text) = plan.theorems.get(theorem) else {
                    bail!(
                        "`{label}`: the kind `{}` names a theorem `{theorem}`, which the plan does not have",
                        kind.name
                    )
                };
                theorem.clone_from(text);
            }
        }
        for panel in &mut plan.panels {
            panel.text = panel.read(path.and_then(Path::parent))?;
        }
        Ok(plan)
    }

    /// Refuses names of panels or kinds that the plan does not have.
    pub(super) fn check_selection(
        &self,
        panels: Option<&[String]>,
        kinds: Option<&[String]>,
    ) -> Result<()> {
        let known = self.panels.iter().map(|panel| panel.name.as_str());
        check_known("panel", &known.collect::<Vec<_>>(), panels)?;
        check_known(
            "kind",
            &self.kinds.iter().map(|kind| kind.name.as_str()).collect::<Vec<_>>(),
            kinds,
        )
    }

    fn check(&self) -> Result<()> {
        let Self { lr, seeds, panels, kinds, .. } = self;
        let is_repeated = lr.iter().enumerate().any(|(at, rate)| lr[..at].contains(rate));
        if lr.is_empty() || is_repeated || lr.iter().any(|rate| !(1e-9..=1e3).contains(rate)) {
            bail!("`lr` = {lr:?} must be a list of different numbers from 1e-9 to 1e3");
        }
        if self.parameters.is_some_and(|wanted| wanted > MAX_PARAMETERS) {
            bail!("`parameters` must be at most {MAX_PARAMETERS}");
        }
        if !(1..=100).contains(seeds) {
            bail!("`seeds` = {seeds} must be from 1 to 100");
        }
        check_names("panels", panels.iter().map(|panel| &panel.name))?;
        check_names("kinds", kinds.iter().map(|kind| &kind.name))?;
        let known: BTreeSet<&str> = panels.iter().map(|panel| panel.name.as_str()).collect();
        panels.iter().try_for_each(|panel| panel.check(panels))?;
        for kind in kinds {
            check_settings(&format!("kind `{}`", kind.name), &kind.set)?;
            let named =
                kind.panels.iter().flatten().chain(kind.barred.keys()).chain(&kind.hand_set);
            if let Some(unknown) = named.into_iter().find(|name| !known.contains(name.as_str())) {
                bail!(
                    "the kind `{}` names a panel `{unknown}`, which the plan does not have",
                    kind.name
                );
            }
        }
        Ok(())
    }
}

fn check_known(what: &str, known: &[&str], typed: Option<&[String]>) -> Result<()> {
    let mut typed = typed.into_iter().flatten();
    let Some(unknown) = typed.find(|typed| !known.contains(&typed.as_str())) else { return Ok(()) };
    let names: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
    bail!("the plan has no {what} `{unknown}`; it has {}", names.join(", "))
}

/// A name without spaces, and with `pm` for `±`.
pub(super) fn folder_name(name: &str) -> String {
    name.replace(' ', "_").replace('±', "pm")
}

/// Refuses settings that the atlas chooses itself.
fn check_settings(whose: &str, settings: &[String]) -> Result<()> {
    const OWN: [&str; 3] = ["seed", "optimizer.lr", "model.feed_forward.d_ff"];
    let key = |setting: &String| setting.split('=').next().unwrap_or_default().trim().to_owned();
    match settings.iter().map(key).find(|key| OWN.contains(&key.as_str())) {
        Some(key) => bail!("{whose} sets `{key}`, which the atlas chooses"),
        None => Ok(()),
    }
}

/// Names of folders and files, each of which is given once.
fn check_names<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut known = BTreeSet::new();
    for name in names {
        let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | ' ' | '±');
        if name.is_empty()
            || name.len() > 60
            || name.starts_with('-')
            || !name.chars().all(is_plain)
        {
            bail!(
                "`{what}` has the name `{name}`: names are 1 to 60 bytes of letters, digits, spaces, `_`, `-`, `+` and `±`, \
                 and do not begin with `-`"
            );
        }
        if !known.insert(folder_name(name)) {
            bail!("`{what}` has two names with the folder `{}`", folder_name(name));
        }
    }
    if known.is_empty() {
        bail!("`{what}` is empty");
    }
    Ok(())
}

impl Panel {
    fn check(&self, all: &[Self]) -> Result<()> {
        let Self { name, columns, joins, set, .. } = self;
        check_settings(&format!("panel `{name}`"), set)?;
        if columns.is_empty() {
            bail!("the panel `{name}` has no columns");
        }
        for (at, Column { title, .. }) in columns.iter().enumerate() {
            let is_plain = !title.trim().is_empty()
                && !title.contains(|c: char| c.is_control() || matches!(c, '"' | '|'));
            if !is_plain || columns[..at].iter().any(|other| other.title == *title) {
                bail!(
                    "the panel `{name}` has the column `{}`: titles are given once, and without quotes",
                    title.escape_debug()
                );
            }
        }
        let Some(joins) = joins else { return Ok(()) };
        let target = all.iter().find(|other| other.name == *joins && other.name != *name);
        match target {
            Some(target)
                if target.joins.is_none() && target.columns[0].title == columns[0].title =>
            {
                Ok(())
            }
            _ => bail!(
                "the panel `{name}` joins `{joins}`, which must be another panel that joins none, with the same title of \
                 the first column"
            ),
        }
    }

    /// The text of its configuration: of a file in `folder`, or of a shipped one.
    fn read(&self, folder: Option<&Path>) -> Result<String> {
        let beside = folder.map(|folder| folder.join(&self.config)).filter(|path| path.is_file());
        if let Some(path) = beside {
            return Ok(read_text(&path)?);
        }
        match shipped::find(&self.config) {
            Some(shipped) => Ok(shipped.text.to_owned()),
            None => bail!(
                "panel `{}`: `{}` is neither a file beside the plan nor a shipped configuration",
                self.name,
                self.config.display()
            ),
        }
    }

    /// Writes the configuration into the folder of the panel's runs.
    pub(super) fn copy_to(&self, folder: &Path) -> Result<()> {
        create_dir_all(folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
        Ok(replace(&folder.join(CONFIG), self.text.as_bytes())?)
    }

    /// The configuration with further settings.
    pub(super) fn source(&self, settings: &[String]) -> Result<ConfigSource> {
        Ok(ConfigSource::parse(&self.config, &self.text, settings)?)
    }

    /// The configuration without its comments, which change nothing.
    pub(super) fn values(&self) -> Result<String> {
        Ok(toml::from_str::<Value>(&self.text)?.to_string())
    }
}

impl Kind {
    /// Whether it is trained on a panel.
    pub(super) fn is_on(&self, panel: &Panel) -> bool {
        self.panels.as_ref().is_none_or(|names| names.contains(&panel.name))
    }

    /// Its settings, as for `--set`.
    pub(super) fn settings(&self) -> Vec<String> {
        let tables = [
            ("model.attention", Some(&self.attention)),
            ("model.position", self.position.as_ref()),
        ];
        let tables =
            tables.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        tables.chain(self.set.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "lr = [1e-3]\nseeds = 1\ntheorems = { none = 'A theorem.' }\n\
        [[panels]]\nname = 'recall'\ntitle = 'recall'\nconfig = 'atlas/recall'\n\
        columns = [{ title = 'far', test = 'far', metric = 'accuracy' }]\n\
        [[kinds]]\nname = 'softmax'\nattention = { kind = 'softmax', conv_size = 4 }\nposition = 'rotary'\n\
        set = ['model.n_heads=1']\nbarred = { recall = 'none' }\n";

    fn read(text: &str) -> Result<Plan> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("plan.toml");
        std::fs::write(&path, text)?;
        Plan::read(Some(&path))
    }

    #[test]
    fn a_kind_is_a_list_of_settings() {
        let plan = read(PLAN).unwrap();
        assert_eq!(
            plan.kinds[0].settings(),
            [
                "model.attention={ kind = \"softmax\", conv_size = 4 }",
                "model.position=\"rotary\"",
                "model.n_heads=1"
            ]
        );
        assert!(plan.panels[0].text.contains("kind = \"recall\""));
    }

    #[test]
    fn the_digest_of_a_column_is_that_of_recorded_cells() {
        let digested = |plan: &str| read(plan).unwrap().panels[0].columns[0].digested();
        assert_eq!(
            digested(PLAN),
            r#"Column { title: "far", test: Some("far"), metric: "accuracy" }"#
        );
        assert_eq!(
            digested(&PLAN.replace("test = 'far', ", "")),
            r#"Column { title: "far", test: None, metric: "accuracy" }"#
        );
    }

    #[test]
    fn faults_are_named() {
        let error =
            |from: &str, to: &str| format!("{:#}", read(&PLAN.replace(from, to)).unwrap_err());
        for (from, to, rule) in [
            ("[1e-3]", "[]", "`lr` = [] must be"),
            ("seeds = 1", "seeds = 0", "`seeds` = 0 must be"),
            ("name = 'recall'", "name = '../x'", "has the name `../x`"),
            ("name = 'softmax'", "name = ''", "has the name ``"),
            (
                "columns = [{ title = 'far', test = 'far', metric = 'accuracy' }]",
                "columns = []",
                "has no columns",
            ),
            ("barred = { recall", "barred = { parity", "names a panel `parity`"),
            ("recall = 'none'", "recall = 'any'", "names a theorem `any`"),
            (
                "config = 'atlas/recall'",
                "config = 'nowhere.toml'",
                "panel `recall`: `nowhere.toml`",
            ),
            ("[1e-3]", "[1e-3, 0.001]", "must be a list of different numbers"),
            ("set = ['model", "set = ['seed=3', 'model", "kind `softmax` sets `seed`"),
            ("title = 'far'", "title = 'f\"r'", "has the column"),
            ("title = 'recall'", "title = 'recall'\njoins = 'recall'", "must be another panel"),
            ("name = 'softmax'", "name = '-x'", "do not begin with `-`"),
            ("seeds = 1", "seed = 1", "unknown field `seed`"),
        ] {
            let error = error(from, to);
            assert!(error.contains(rule), "{error}");
        }
    }

    #[test]
    fn panels_and_kinds_that_the_plan_does_not_have_are_named() {
        let plan = Plan::read(None).unwrap();
        let typed = |name: &str| Some(vec![name.to_owned()]);
        plan.check_selection(typed("parity").as_deref(), typed("deltanet ±").as_deref()).unwrap();
        let error =
            plan.check_selection(typed("parties").as_deref(), None).unwrap_err().to_string();
        assert!(error.contains("no panel `parties`; it has `recall`"), "{error}");
    }
}
