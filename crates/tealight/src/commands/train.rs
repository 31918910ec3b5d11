//! `tealight train CONFIG`

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use tealight_train::config::{ConfigSource, Difference, RunConfig, to_resolved_toml};
use tealight_train::observer::jsonl::JsonLines;
use tealight_train::observer::{Event, Observer, notify};
use tealight_train::run::files::replace;
use tealight_train::run::manifest::device_name;
use tealight_train::run::{Checkpoint, Manifest, RunDirectory, Selection, load_weights};
use tealight_train::session::Progress;
use tealight_train::task::Task;
use tealight_train::task::weather::{Report, Weather};
use tealight_train::{Session, fit};

use super::load::{misfit, resolved, same_data, session};
use super::{print, weather};
use crate::args::Train;
use crate::console::{log, progress};
use crate::failure::at_its_place;
use crate::table::thousands;

pub(crate) fn run(args: &Train) -> Result<()> {
    let device = args.device.open()?;
    let (source, config, earlier) = configuration(args)?;
    let say = |line: &str| {
        if !args.quiet {
            log(line);
        }
    };
    for dropped in source.dropped_keys() {
        say(&dropped.to_string());
    }
    let mut session = session(&config, &device).map_err(|error| at_its_place(error, &source))?;
    session.check().map_err(|error| at_its_place(error, &source))?;
    say(&describe(&session, &device));
    if args.dry_run {
        say("dry run: everything is built, nothing is trained");
        return Ok(());
    }

    let directory = match &earlier {
        Some(directory) => {
            resume(&mut session, directory, &device)?;
            directory.clone()
        }
        None => start(args, &source, &session, &device)?,
    };
    say(&format!("run {}", directory.path().display()));
    let mut observers: Vec<Box<dyn Observer>> =
        vec![Box::new(JsonLines::append(&directory.metrics_path())?)];
    if !args.quiet {
        observers.push(progress());
    }
    train(&mut session, &directory, args.stop_after, &mut observers)
        .map_err(|error| at_its_place(error, &source))?;

    let Progress { step, early_stopping } = &session.progress;
    let is_complete = *step >= config.training.steps || early_stopping.has_stopped();
    if !is_complete && args.stop_after.is_some() {
        say(&format!("stopped after step {step}; go on with --resume"));
        return Ok(());
    }
    conclude(&session, &directory, &device, &say)
}

/// The settings, and the run that they resume.
fn configuration(args: &Train) -> Result<(ConfigSource, RunConfig, Option<RunDirectory>)> {
    if args.config.is_dir() {
        let directory = RunDirectory::open(&args.config)?;
        if directory.path() != args.config {
            bail!(
                "`{}` is inside of a run; a run goes on from its latest checkpoint: `tealight train {}`",
                args.config.display(),
                directory.path().display()
            );
        }
        if !args.overrides.is_empty() {
            bail!("`--set` does not go with a run's directory: a run keeps its settings");
        }
        if args.name.is_some() {
            bail!("`--name` does not go with a run's directory: a run keeps its name");
        }
        let (source, config) = resolved(&directory)?;
        return Ok((source, config, Some(directory)));
    }
    let source = ConfigSource::read(&args.config, &args.overrides)?;
    let mut config: RunConfig = source.deserialize()?;
    config.absolute_paths()?;
    if !args.resume {
        return Ok((source, config, None));
    }
    let name = run_name(args);
    let Some(directory) = RunDirectory::last(&args.runs, &name)? else {
        bail!("nothing to resume: there is no run `{}`", args.runs.join(name).display());
    };
    let (_, before) = resolved(&directory)?;
    if let Err(differences) = before.same_run(&config) {
        bail!(
            "`{}` was started with other settings than `{}` has now, and a resumed run must be the \
             same run; start a new one without --resume, or change back:\n{}",
            directory.path().display(),
            args.config.display(),
            listed(&differences)
        );
    }
    Ok((source, config, Some(directory)))
}

/// More differences than these are counted, not listed.
const MAX_DIFFERENCES: usize = 10;

/// A line for each setting that differs.
fn listed(differences: &[Difference]) -> String {
    let mut lines: Vec<String> = differences.iter().map(|one| format!("  {one}")).collect();
    if lines.len() > MAX_DIFFERENCES {
        lines.truncate(MAX_DIFFERENCES);
        lines.push(format!("  and {} more", differences.len() - MAX_DIFFERENCES));
    }
    lines.join("\n")
}

/// `--name`, or the name of the file without its ending.
fn run_name(args: &Train) -> String {
    let stem = || args.config.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    args.name.clone().unwrap_or_else(stem)
}

/// Makes the directory of a new run.
fn start(
    args: &Train,
    source: &ConfigSource,
    session: &Session<Weather>,
    device: &Device,
) -> Result<RunDirectory> {
    let resolved = to_resolved_toml(&session.config)?;
    let n_parameters = session.params.n_parameters() as u64;
    let manifest = Manifest::new(device, session.task.sizes(), n_parameters)
        .with_data(session.task.fingerprint());
    let directory = RunDirectory::create(&args.runs, &run_name(args))?;
    directory.write_start(source.text(), &resolved, &manifest)?;
    Ok(directory)
}

/// Goes on from the latest checkpoint; a run that was stopped before its first starts again.
fn resume(session: &mut Session<Weather>, directory: &RunDirectory, device: &Device) -> Result<()> {
    same_data(session, directory)?;
    let checkpoints = directory.checkpoints();
    if checkpoints.latest()?.is_some() {
        let path = checkpoints.find(Selection::Latest)?;
        let checkpoint = Checkpoint::load(&path, device)?;
        session.restore(&checkpoint).with_context(|| misfit(&path, directory))?;
    }
    Ok(directory.cut_metrics_after(session.progress.step)?)
}

fn train(
    session: &mut Session<Weather>,
    directory: &RunDirectory,
    stop_after: Option<u64>,
    observers: &mut [Box<dyn Observer>],
) -> tealight_train::Result<()> {
    let started = Instant::now();
    let total_steps = session.config.training.steps;
    let event = Event::RunStarted {
        directory: Some(directory.path()),
        step: session.progress.step,
        total_steps,
        n_parameters: session.params.n_parameters(),
    };
    notify(observers, &event)?;
    let last_step = stop_after.unwrap_or(total_steps);
    let result = fit(session, last_step, Some(&directory.checkpoints()), observers);
    let seconds = started.elapsed().as_secs_f64();
    let told = notify(observers, &Event::Finished { step: session.progress.step, seconds });
    result.and(told)
}

/// The model beside the baselines, on stdout.
fn conclude(
    session: &Session<Weather>,
    directory: &RunDirectory,
    device: &Device,
    say: &dyn Fn(&str),
) -> Result<()> {
    let selection = session.config.checkpoint.select.into();
    session.load_weights(&load_weights(&directory.checkpoints().find(selection)?, device)?)?;
    say("evaluating\n");
    let report = Report::new(&session.task, &session.twin)?;
    write_report(directory.path(), &report)?;
    print(&weather::table(&report))?;
    say(&format!(
        "\ntealight evaluate {0}    the same again\n\
         tealight forecast {0} --start \"☀️🌧️☁️\" --days 14",
        directory.path().display()
    ));
    Ok(())
}

fn write_report(directory: &Path, report: &Report) -> Result<()> {
    let path = directory.join("report.json");
    let text = serde_json::to_string_pretty(report)? + "\n";
    Ok(replace(&path, text.as_bytes())?)
}

fn describe(session: &Session<Weather>, device: &Device) -> String {
    let Session { config, params, optimizer, .. } = session;
    let groups = optimizer.groups();
    format!(
        "{} · {} layers, d_model {}, {} heads · {} parameters ({} decay, {} do not) · {} steps on {}",
        config.model.attention.kind(),
        config.model.n_layers,
        config.model.d_model,
        config.model.n_heads,
        thousands(params.n_parameters() as u64),
        thousands(groups.decayed.n_parameters as u64),
        thousands(groups.undecayed.n_parameters as u64),
        thousands(config.training.steps),
        device_name(device),
    )
}
