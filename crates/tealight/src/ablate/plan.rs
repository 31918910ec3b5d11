//! What is to be trained, what has been, and whether all of it can be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::run::RunDirectory;

use super::vary::{self, Axis, Variant};
use crate::args::ablate::Ablate;
use crate::runs::config::{Beginnings, Given, listed, resolved};
use crate::runs::summary::Summary;
use crate::system::subprocess::{complaint, first_line, this_program};

/// Everything that one command asks for.
#[derive(Debug)]
pub(super) struct Plan {
    /// The text of the configuration.
    pub(super) text: String,
    pub(super) axes: Vec<Axis>,
    pub(super) variants: Vec<Variant>,
    /// All variants with the first seed, then all with the second: what can be compared comes early.
    pub(super) runs: Vec<Run>,
    /// Why a variant cannot be had.
    pub(super) impossible: BTreeMap<usize, String>,
    pub(super) output: PathBuf,
}

/// One variant with one seed.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// The index of its variant.
    pub(super) variant: usize,
    pub(super) seed: u64,
    pub(super) name: String,
    pub(super) state: State,
}

/// How far a run has come.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    New,
    /// It was started, and goes on from its last checkpoint.
    Unfinished,
    Finished(Summary),
}

impl Plan {
    /// Works out the combinations, and looks for runs that an earlier command has left.
    pub(super) fn new(args: &Ablate) -> Result<Self> {
        let axes = vary::axes(&args.vary, &args.overrides)?;
        let variants = vary::combinations(&axes, args.seeds.count())?;
        // For its errors: a file that cannot be read is no fault of a variant.
        let source = ConfigSource::read(&args.config, &args.overrides)?;
        let name = args.config.file_stem().unwrap_or_default();
        let output = args.output.clone().unwrap_or_else(|| Path::new("runs/ablations").join(name));
        let mut plan = Self {
            text: source.text().to_owned(),
            axes,
            variants,
            runs: Vec::new(),
            impossible: BTreeMap::new(),
            output,
        };
        plan.look(args)?;
        Ok(plan)
    }

    /// Finds out how far each run has come; other settings than the plan's are an error.
    pub(super) fn look(&mut self, args: &Ablate) -> Result<()> {
        self.runs.clear();
        let mut beginnings = Beginnings::default();
        let config = |variant| self.config(args, variant, &mut beginnings);
        let configs: Vec<_> = self.variants.iter().map(config).collect();
        for (variant, config) in configs.iter().enumerate() {
            if let Err(error) = config {
                self.impossible.insert(variant, error.to_string());
            }
        }
        for seed in args.seeds.iter() {
            for (index, config) in configs.iter().enumerate() {
                let Ok(config) = config else { continue };
                if self.impossible.contains_key(&index) {
                    continue;
                }
                let name = self.variants[index].run_name(seed);
                let state = self.state(&name, &RunConfig { seed, ..config.clone() })?;
                self.runs.push(Run { variant: index, seed, name, state });
            }
        }
        Ok(())
    }

    /// The settings of a variant, but for the seed.
    fn config(
        &self,
        args: &Ablate,
        variant: &Variant,
        beginnings: &mut Beginnings,
    ) -> Result<RunConfig> {
        let overrides = [&args.overrides[..], &variant.settings].concat();
        let source = ConfigSource::parse(&args.config, &self.text, &overrides)?;
        Ok(Given::complete(source, beginnings)?.config)
    }

    fn state(&self, name: &str, config: &RunConfig) -> Result<State> {
        let Some(directory) = RunDirectory::last(&self.output, name)? else {
            return Ok(State::New);
        };
        let (_, before) = resolved(&directory, &[])?;
        if let Err(differences) = before.same_run(config) {
            bail!(
                "`{}` was started with other settings than those of now, and cannot be part of the same \
                 table; change back, or give the new one another place with --output:\n{}",
                directory.path().display(),
                listed(&differences)
            );
        }
        let summary = Summary::read(directory.path())?;
        // Another choice of checkpoint (`before` differs, if only there) is another evaluation.
        let summary = summary.filter(|_| before == *config);
        Ok(summary.map_or(State::Unfinished, State::Finished))
    }

    /// Builds every variant that has no run yet, each in a process of its own, and remembers those that
    /// cannot be built.
    pub(super) fn check(&mut self, args: &Ablate) -> Result<()> {
        for (index, variant) in self.variants.iter().enumerate() {
            let mut runs = self.runs.iter().filter(|run| run.variant == index);
            let seed = *args.seeds.iter().start();
            if runs.clone().next().is_none() || runs.any(|run| run.state != State::New) {
                continue;
            }
            let mut command = this_program()?;
            command.arg("train").arg(&args.config).args(["--dry-run", "--quiet"]);
            let output = command.args(settings(args, variant, seed)).output();
            let output = output.context("cannot start a process")?;
            if !output.status.success() {
                self.impossible.insert(index, complaint(&output));
            }
        }
        self.runs.retain(|run| !self.impossible.contains_key(&run.variant));
        Ok(())
    }

    /// What cannot be had, unless it may be left out and something is left.
    pub(super) fn refuse(&self, args: &Ablate) -> Result<()> {
        let mut faults = self.impossible.iter().map(|(&index, message)| {
            (&self.variants[index].name, message.trim_start_matches("error: "))
        });
        let Some((name, message)) = faults.next() else { return Ok(()) };
        if args.skip_impossible && !self.runs.is_empty() {
            return Ok(());
        }
        let others: Vec<String> = faults
            .take(MAX_LISTED)
            .map(|(name, message)| format!("\n  {name}: {}", first_line(message)))
            .collect();
        let others = match &others[..] {
            [] => String::new(),
            others => format!("\n\nimpossible, too:{}", others.concat()),
        };
        let advice = match (args.skip_impossible, self.runs.is_empty()) {
            (false, false) => " (--skip-impossible leaves such combinations out)",
            _ => "",
        };
        // What is wrong with all of them alike is no fault of one.
        let alike = self.variants.len() > 1
            && self.impossible.len() == self.variants.len()
            && self.impossible.values().all(|other| other.trim_start_matches("error: ") == message);
        let others = if alike { String::new() } else { others };
        let name = if alike || name.is_empty() { "the configuration" } else { name };
        bail!("{name} cannot be trained{advice}: {message}{others}")
    }

    /// Where a run is, if it has been started.
    pub(super) fn directory(&self, run: &Run) -> Result<Option<RunDirectory>> {
        Ok(RunDirectory::last(&self.output, &run.name)?)
    }
}

/// More impossible combinations than these are not listed.
const MAX_LISTED: usize = 8;

/// The arguments of `train` that make a variant.
pub(super) fn settings(args: &Ablate, variant: &Variant, seed: u64) -> Vec<String> {
    let seed = format!("seed={seed}");
    let all = args.overrides.iter().chain(&variant.settings).chain([&seed]);
    let device = ["--device".to_owned(), args.device.to_string()];
    all.flat_map(|setting| ["--set".to_owned(), setting.clone()]).chain(device).collect()
}
