//! The runs of an ablation: which exist already, and which cannot be built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::run::RunDirectory;

use super::variants::{self, Axis, Variant};
use crate::args::ablate::Ablate;
use crate::runs::config::{InitModels, LoadedConfig, check_same_run};
use crate::runs::summary::Summary;
use crate::system::subprocess::{self, first_line, this_program};

/// All variants and runs of an ablation.
#[derive(Debug)]
pub(super) struct Plan {
    /// The text of the configuration.
    pub(super) text: String,
    pub(super) axes: Vec<Axis>,
    pub(super) variants: Vec<Variant>,
    /// All variants with the first seed, then all with the second, so that variants can be compared early.
    pub(super) runs: Vec<Run>,
    /// Error messages of the variants that cannot be built, by index.
    pub(super) impossible: BTreeMap<usize, String>,
    pub(super) output: PathBuf,
}

/// One variant with one seed.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Index of the variant.
    pub(super) variant: usize,
    pub(super) seed: u64,
    pub(super) name: String,
    pub(super) state: State,
}

/// The progress of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    New,
    /// It was started, and resumes from its last checkpoint.
    Unfinished,
    Finished(Summary),
}

impl Plan {
    /// Combines the axes and finds the runs of earlier commands.
    pub(super) fn new(args: &Ablate) -> Result<Self> {
        let axes = variants::axes(&args.vary, &args.config.overrides)?;
        let variants = variants::combinations(&axes, args.seeds.count())?;
        // Reports an unreadable file as such, not as a fault of a variant.
        let source = ConfigSource::read(&args.config.path, &args.config.overrides)?;
        let name = args.config.path.file_stem().unwrap_or_default();
        let output = args.output.clone().unwrap_or_else(|| Path::new("runs/ablations").join(name));
        let mut plan = Self {
            text: source.text().to_owned(),
            axes,
            variants,
            runs: Vec::new(),
            impossible: BTreeMap::new(),
            output,
        };
        plan.find_runs(args)?;
        Ok(plan)
    }

    /// Determines the state of each run. An existing run with other settings is an error.
    pub(super) fn find_runs(&mut self, args: &Ablate) -> Result<()> {
        self.runs.clear();
        let mut init_models = InitModels::new();
        let config = |variant| self.config(args, variant, &mut init_models);
        let configs: Vec<_> = self.variants.iter().map(config).collect();
        for (variant, config) in configs.iter().enumerate() {
            if let Err(error) = config {
                let message = error.to_string();
                let message = message.trim_start_matches("error: ").to_owned();
                self.impossible.insert(variant, message);
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

    /// The configuration of a variant, without its seed.
    fn config(
        &self,
        args: &Ablate,
        variant: &Variant,
        init_models: &mut InitModels,
    ) -> Result<RunConfig> {
        let overrides = [&args.config.overrides[..], &variant.settings].concat();
        let source = ConfigSource::parse(&args.config.path, &self.text, &overrides)?;
        Ok(LoadedConfig::from_source(source, init_models)?.config)
    }

    fn state(&self, name: &str, config: &RunConfig) -> Result<State> {
        let Some(directory) = RunDirectory::last(&self.output, name)? else {
            return Ok(State::New);
        };
        let than = "this ablation; restore them, or choose another directory with --output";
        let existing = check_same_run(&directory, config, than)?;
        let summary = Summary::read(directory.path())?;
        // `same_run` permits another `checkpoint.select`, which requires a new evaluation.
        let summary = summary.filter(|_| existing == *config);
        Ok(summary.map_or(State::Unfinished, State::Finished))
    }

    /// Builds each variant without a run in its own process, and moves those that fail to `impossible`.
    pub(super) fn build(&mut self, args: &Ablate) -> Result<()> {
        for (index, variant) in self.variants.iter().enumerate() {
            let mut runs = self.runs.iter().filter(|run| run.variant == index);
            let seed = *args.seeds.iter().start();
            if runs.clone().next().is_none() || runs.any(|run| run.state != State::New) {
                continue;
            }
            let mut command = this_program()?;
            command.arg("train").arg(&args.config.path).args(["--dry-run", "--quiet"]);
            if let Err(message) = subprocess::run(command.args(settings(args, variant, seed)))? {
                self.impossible.insert(index, message);
            }
        }
        self.runs.retain(|run| !self.impossible.contains_key(&run.variant));
        Ok(())
    }

    /// Fails if variants are impossible, unless `--skip-impossible` is given and others remain.
    pub(super) fn refuse_impossible(&self, args: &Ablate) -> Result<()> {
        let mut faults =
            self.impossible.iter().map(|(&index, message)| (&self.variants[index].name, message));
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
            others => format!("\n\nalso impossible:{}", others.concat()),
        };
        let advice = match (args.skip_impossible, self.runs.is_empty()) {
            (false, false) => " (--skip-impossible skips such combinations)",
            _ => "",
        };
        // An error common to all variants is one of the configuration.
        let alike = self.variants.len() > 1
            && self.impossible.len() == self.variants.len()
            && self.impossible.values().all(|other| other == message);
        let others = if alike { String::new() } else { others };
        let name = if alike || name.is_empty() { "the configuration" } else { name };
        bail!("{name} cannot be trained{advice}: {message}{others}")
    }

    /// The directory of a run, if it was started.
    pub(super) fn directory(&self, run: &Run) -> Result<Option<RunDirectory>> {
        Ok(RunDirectory::last(&self.output, &run.name)?)
    }
}

/// The maximum number of impossible combinations in an error message.
const MAX_LISTED: usize = 8;

/// The arguments of `train` for a variant.
pub(super) fn settings(args: &Ablate, variant: &Variant, seed: u64) -> Vec<String> {
    let seed = format!("seed={seed}");
    let all = args.config.overrides.iter().chain(&variant.settings).chain([&seed]);
    let device = ["--device".to_owned(), args.device.to_string()];
    all.flat_map(|setting| ["--set".to_owned(), setting.clone()]).chain(device).collect()
}
