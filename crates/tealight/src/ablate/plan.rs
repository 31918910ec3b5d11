//! The runs of an ablation: which exist already, and which cannot be built.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::run::RunDirectory;

use super::place;
use super::variants::{self, Axis, Variant};
use crate::args::ablate::Ablate;
use crate::runs::config::{InitModels, LoadedConfig, check_same_run};
use crate::runs::origin::{self, Origin, pass_on};
use crate::runs::summary::Summary;
use crate::runs::training::{Job, Outcome};
use crate::system::subprocess::{self, first_line, this_program};

/// A copy of the configuration, so that later runs ignore edits of the original.
pub(super) const CONFIG: &str = "config.toml";

/// All variants and runs of an ablation.
#[derive(Clone, Debug)]
pub(super) struct Plan<'a> {
    pub(super) args: &'a Ablate,
    /// The text of the configuration.
    pub(super) text: String,
    /// Where it was read from.
    pub(super) origin: Origin,
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
    /// It has finished, or this command could not train it.
    Ended(Outcome),
}

impl Run {
    /// The outcome; `None` until the run has ended.
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        if let State::Ended(outcome) = &self.state { Some(outcome) } else { None }
    }

    /// The summary of a finished run.
    pub(super) fn summary(&self) -> Option<&Summary> {
        self.outcome()?.as_ref().ok()
    }

    /// The error message of a failed run.
    pub(super) fn failure(&self) -> Option<&String> {
        self.outcome()?.as_ref().err()
    }
}

impl<'a> Plan<'a> {
    /// Combines the axes and finds the runs of earlier commands.
    pub(super) fn new(args: &'a Ablate) -> Result<Self> {
        let axes = variants::axes(&args.vary, &args.config.overrides)?;
        let variants = variants::combinations(&axes, args.seeds.count())?;
        // Reports an unreadable file as such, not as a fault of a variant.
        let (source, origin) = origin::read(&args.config.path, &args.config.overrides)?;
        let text = source.text().to_owned();
        let name = match origin {
            Origin::Stdin => OsStr::new(source.kind("task").unwrap_or("stdin")),
            Origin::File | Origin::Shipped(_) => args.config.path.file_stem().unwrap_or_default(),
        };
        let output = match &args.output {
            Some(output) => output.clone(),
            None => place::find(&name.to_string_lossy(), &axes)?,
        };
        place::check(&output, &axes)?;
        let (runs, impossible) = (Vec::new(), BTreeMap::new());
        let mut plan = Self { args, text, origin, axes, variants, runs, impossible, output };
        plan.find_runs()?;
        Ok(plan)
    }

    /// Determines the state of each run. An existing run with other settings is an error.
    pub(super) fn find_runs(&mut self) -> Result<()> {
        let (mut init_models, mut configs) = (InitModels::new(), Vec::new());
        for (index, variant) in self.variants.iter().enumerate() {
            match self.config(variant, &mut init_models) {
                _ if self.impossible.contains_key(&index) => {}
                Ok(config) => configs.push((index, config)),
                Err(error) => {
                    let message = error.to_string().trim_start_matches("error: ").to_owned();
                    self.impossible.insert(index, message);
                }
            }
        }
        self.runs.clear();
        for seed in self.args.seeds.iter() {
            for (variant, config) in &configs {
                let name = self.variants[*variant].run_name(seed);
                let state = self.state(&name, &RunConfig { seed, ..config.clone() })?;
                self.runs.push(Run { variant: *variant, seed, name, state });
            }
        }
        Ok(())
    }

    /// The configuration of a variant, without its seed.
    fn config(&self, variant: &Variant, init_models: &mut InitModels) -> Result<RunConfig> {
        let file = &self.args.config;
        let overrides = [&file.overrides[..], &variant.settings].concat();
        let source = ConfigSource::parse(&self.origin.label(&file.path), &self.text, &overrides)?;
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
        Ok(summary.map_or(State::Unfinished, |summary| State::Ended(Ok(summary))))
    }

    /// Builds each variant without a run in its own process, and moves those that fail to `impossible`.
    pub(super) fn build(&mut self) -> Result<()> {
        for index in 0..self.variants.len() {
            let mut runs = self.runs.iter().filter(|run| run.variant == index);
            let Some(first) = runs.next().filter(|run| run.state == State::New) else { continue };
            if runs.any(|run| run.state != State::New) {
                continue;
            }
            let mut command = this_program()?;
            pass_on(command.arg("train"), &self.args.config.path, &self.text)?;
            command.args(["--dry-run", "--quiet"]);
            if let Err(message) = subprocess::run(command.args(self.settings(first)))? {
                self.impossible.insert(index, message);
            }
        }
        self.runs.retain(|run| !self.impossible.contains_key(&run.variant));
        Ok(())
    }

    /// Fails if variants are impossible, unless `--skip-impossible` is given and others remain.
    pub(super) fn refuse_impossible(&self) -> Result<()> {
        let faults = self.impossible.iter();
        let faults = faults.map(|(&index, message)| (&*self.variants[index].name, &**message));
        let faults: Vec<(&str, &str)> = faults.collect();
        let [(name, message), others @ ..] = &faults[..] else { return Ok(()) };
        let advice = match (self.args.skip_impossible, self.runs.is_empty()) {
            (true, false) => return Ok(()),
            (false, false) => " (--skip-impossible skips such combinations)",
            (_, true) => "",
        };
        // An error common to all variants is one of the configuration.
        let alike = faults.len() > 1
            && faults.len() == self.variants.len()
            && others.iter().all(|(_, other)| other == message);
        let name = if alike || name.is_empty() { "the configuration" } else { name };
        let mut text = format!("{name} cannot be trained{advice}: {message}");
        if !alike && !others.is_empty() {
            text += "\n\nalso impossible:";
            for (name, message) in others.iter().take(MAX_LISTED) {
                text += &["\n  ", name, ": ", first_line(message)].concat();
            }
        }
        bail!(text)
    }

    /// The directory of a run, if it was started.
    pub(super) fn directory(&self, run: &Run) -> Result<Option<RunDirectory>> {
        Ok(RunDirectory::last(&self.output, &run.name)?)
    }

    /// How a run is trained.
    pub(super) fn job(&self, run: &Run) -> Job {
        Job {
            config: self.output.join(CONFIG),
            runs: self.output.clone(),
            name: run.name.clone(),
            arguments: self.settings(run),
            resumes: run.state == State::Unfinished,
        }
    }

    /// The arguments of `train` for a run.
    fn settings(&self, Run { variant, seed, .. }: &Run) -> Vec<String> {
        let (args, seed) = (self.args, format!("seed={seed}"));
        let settings = args.config.overrides.iter().chain(&self.variants[*variant].settings);
        let settings = settings.chain([&seed]).flat_map(|setting| ["--set", setting]);
        let device = args.device.to_string();
        settings.chain(["--device", &device]).map(str::to_owned).collect()
    }
}

/// The maximum number of impossible combinations in an error message.
const MAX_LISTED: usize = 8;
