//! The configuration of a run, and which run is resumed.

use anyhow::{Result, bail};
use tealight_train::Error;
use tealight_train::run::RunDirectory;

use crate::args::train::Train;
use crate::runs::config::{LoadedConfig, check_same_run};
use crate::terminal::escape::shell_path;

/// The configuration, and the run to resume.
pub(super) fn configuration(args: &Train) -> Result<(LoadedConfig, Option<RunDirectory>)> {
    let skip_broken = args.skip_broken.then(|| "task.data.skip_broken=true".to_owned());
    let steps = args.steps.map(|steps| format!("training.steps={steps}"));
    let overrides = args.overrides.iter().cloned().chain(skip_broken).chain(steps);
    let overrides: Vec<String> = overrides.collect();
    let (origin, loaded, directory) = if args.config.is_dir() {
        let directory = RunDirectory::open(&args.config)?;
        if directory.path() != args.config {
            bail!(
                "`{}` is inside a run; `tealight train {}` resumes the run from its latest checkpoint",
                args.config.display(),
                shell_path(directory.path())
            );
        }
        if let Some(steps) = args.steps {
            return Ok((LoadedConfig::from_parameters_of(&directory, overrides, steps)?, None));
        }
        if args.name.is_some() {
            bail!("`--name` cannot be used with a run's directory: a run keeps its name");
        }
        let loaded = LoadedConfig::of_run(&directory, &overrides)?;
        ("the command line".to_owned(), loaded, directory)
    } else {
        let loaded = LoadedConfig::read(&args.config, &overrides)?;
        if !args.resume {
            return Ok((loaded, None));
        }
        let directory = resumable(args, &loaded)?;
        (format!("`{}`", args.config.display()), loaded, directory)
    };
    let than = format!(
        "{origin} has now, and a resumed run must keep them; restore these settings, or start a new run \
         without --resume (`tealight train {path}` continues this one with its own settings; with `--steps N` it starts \
         a new run from its parameters)",
        path = shell_path(directory.path())
    );
    check_same_run(&directory, &loaded.config, &than)?;
    Ok((loaded, Some(directory)))
}

/// The newest run of the configuration that has its settings. If none has them, the newest, which the caller refuses.
/// A run that cannot be read does not keep another from being resumed.
fn resumable(args: &Train, loaded: &LoadedConfig) -> Result<RunDirectory> {
    let name = run_name(args, loaded);
    let runs = RunDirectory::all(&args.runs, &name)?;
    for run in &runs {
        let own = LoadedConfig::of_run(run, &[]);
        if own.is_ok_and(|own| own.config.same_run(&loaded.config).is_ok()) {
            return Ok(run.clone());
        }
    }
    if let Some(newest) = runs.into_iter().next() {
        return Ok(newest);
    }
    let path = args.runs.join(name);
    let hint = match RunDirectory::open(&path) {
        Ok(run) if run.path() == path => format!(
            "; it exists, but is a run of another name: `tealight train {}` continues it",
            shell_path(&path)
        ),
        Err(Error::NotARun { missing, .. }) => format!(
            "; it exists, but lacks the `{missing}` of a run that has started: train without `--resume`"
        ),
        _ => String::new(),
    };
    bail!("nothing to resume: there is no run `{}`{hint}", path.display())
}

/// `--name`, or the name that follows from the configuration.
pub(super) fn run_name(args: &Train, loaded: &LoadedConfig) -> String {
    let of_configuration = || loaded.origin.run_name(&args.config, &loaded.config);
    args.name.clone().unwrap_or_else(of_configuration)
}
