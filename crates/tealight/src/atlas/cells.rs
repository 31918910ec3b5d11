//! The cells of an atlas: a kind of attention on a panel with one rate and one seed. Each is a run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};
use tealight_train::config::RunConfig;

use super::plan::{CONFIG, Column, Kind, Panel, Plan, folder_name};
use super::widths;
use crate::runs::config::{InitModels, LoadedConfig};
use crate::runs::training::Job;
use crate::system::subprocess::first_line;

/// A kind on a panel.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) panel: usize,
    pub(super) kind: usize,
    /// The settings that all its cells share, as for `--set`.
    settings: Vec<String>,
    /// Parameters outside of embedding and output.
    pub(super) parameters: u64,
    /// Why it cannot be trained.
    pub(super) refused: Option<String>,
}

/// A rate and a seed of a pair.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Its place in the list of pairs.
    pub(super) pair: usize,
    /// `None`: that of the configuration.
    pub(super) lr: Option<f64>,
    pub(super) seed: u64,
    /// `recall/softmax,lr=0.003,seed=1`, also the path of its run.
    pub(super) name: String,
    /// SHA-256 of its settings.
    pub(super) digest: String,
    /// All settings that differ from the panel's file.
    settings: Vec<String>,
}

impl Pair {
    fn new(plan: &Plan, [panel, kind]: [usize; 2]) -> Result<Self> {
        let (of_panel, of_kind) = (&plan.panels[panel], &plan.kinds[kind]);
        let settings: Vec<String> =
            of_panel.set.iter().cloned().chain(of_kind.settings()).collect();
        let wanted = plan.parameters.filter(|_| !of_panel.as_configured);
        let pair = Self { panel, kind, settings, parameters: 0, refused: None };
        let whose = || format!("the kind `{}` on the panel `{}`", of_kind.name, of_panel.name);
        // Faults of the settings are those of the plan; only what cannot be built is a result.
        widths::check(of_panel, &pair.settings, wanted).with_context(whose)?;
        Ok(match widths::choose(of_panel, &pair.settings, wanted) {
            Ok((setting, parameters)) => {
                let settings = pair.settings.iter().cloned().chain(setting).collect();
                Self { settings, parameters, ..pair }
            }
            Err(error) => {
                let message = format!("{error:#}");
                let line = first_line(message.trim_start_matches("error: "));
                Self { refused: Some(line.to_owned()), ..pair }
            }
        })
    }

    /// All pairs of a plan, the kinds of the first panel first.
    pub(super) fn all(plan: &Plan) -> Result<Vec<Self>> {
        let mut pairs = Vec::new();
        for (panel, of_panel) in plan.panels.iter().enumerate() {
            for (kind, of_kind) in plan.kinds.iter().enumerate() {
                if of_kind.is_on(of_panel) {
                    pairs.push(Self::new(plan, [panel, kind])?);
                }
            }
        }
        Ok(pairs)
    }
}

impl Cell {
    pub(super) fn new(
        plan: &Plan,
        pairs: &[Pair],
        (pair, lr, seed): (usize, Option<f64>, u64),
    ) -> Result<Self> {
        let Pair { panel, kind, settings, .. } = &pairs[pair];
        let (panel, kind): (&Panel, &Kind) = (&plan.panels[*panel], &plan.kinds[*kind]);
        let rate = lr.map(|lr| format!("optimizer.lr={lr}"));
        let own = rate.into_iter().chain([format!("seed={seed}")]);
        let settings: Vec<String> = settings.iter().cloned().chain(own).collect();
        let rate = lr.map_or(String::new(), |lr| format!(",lr={lr}"));
        let name = format!("{}/{}{rate},seed={seed}", panel.name, folder_name(&kind.name));
        let columns = panel.columns.iter().map(Column::digested);
        let parts = [panel.values()?].into_iter().chain(settings.iter().cloned()).chain(columns);
        let text = parts.collect::<Vec<_>>().join("\n");
        let digest = format!("{:x}", Sha256::digest(text.as_bytes()));
        Ok(Self { pair, lr, seed, name, digest, settings })
    }

    /// How it is trained in the folder `output`.
    pub(super) fn job(&self, output: &Path, resumes: bool) -> Job {
        let (panel, name) = self.name.split_once('/').unwrap_or_default();
        let runs = output.join(panel);
        let arguments = self.settings.iter().flat_map(|setting| ["--set", setting]);
        Job {
            config: runs.join(CONFIG),
            name: name.to_owned(),
            arguments: arguments.map(str::to_owned).collect(),
            resumes,
            runs,
        }
    }

    /// The configuration of its run.
    pub(super) fn config(&self, panel: &Panel) -> Result<RunConfig> {
        let source = panel.source(&self.settings)?;
        Ok(LoadedConfig::from_source(source, &mut InitModels::new())?.config)
    }

    /// The file that a process locks while it trains the cell.
    pub(super) fn lock_path(&self, output: &Path) -> PathBuf {
        let (panel, name) = self.name.split_once('/').unwrap_or_default();
        output.join(panel).join(".locks").join(name)
    }
}

#[cfg(test)]
impl Cell {
    /// A cell of this name without settings.
    pub(super) fn example(name: &str) -> Self {
        let (name, digest) = (name.to_owned(), "digest".to_owned());
        Self { pair: 0, lr: None, seed: 1, name, digest, settings: Vec::new() }
    }
}
