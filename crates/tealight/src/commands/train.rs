//! `tealight train CONFIG`

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use tealight_train::config::{ConfigSource, RunConfig, to_resolved_toml};
use tealight_train::observer::jsonl::JsonLines;
use tealight_train::observer::{Event, Observer, notify};
use tealight_train::run::manifest::device_name;
use tealight_train::run::{Manifest, RunDirectory, Selection};
use tealight_train::task::Task;
use tealight_train::task::weather::{Report, Weather};
use tealight_train::{Session, fit};

use super::load::{resolved, session};
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

    if session.progress.step < config.training.steps && args.stop_after.is_some() {
        say(&format!("stopped after step {}; go on with --resume", session.progress.step));
        return Ok(());
    }
    conclude(&session, &directory, &device, &say)
}

/// The settings, and the run that they resume.
fn configuration(args: &Train) -> Result<(ConfigSource, RunConfig, Option<RunDirectory>)> {
    if args.config.is_dir() {
        let directory = RunDirectory::open(&args.config)?;
        if !args.overrides.is_empty() {
            bail!("`--set` does not go with a run's directory: a run keeps its settings");
        }
        let (source, config) = resolved(&directory)?;
        return Ok((source, config, Some(directory)));
    }
    let source = ConfigSource::read(&args.config, &args.overrides)?;
    let config: RunConfig = source.deserialize()?;
    if !args.resume {
        return Ok((source, config, None));
    }
    let name = run_name(args);
    let Some(directory) = RunDirectory::last(&args.runs, &name)? else {
        bail!("nothing to resume: there is no run `{}`", args.runs.join(name).display());
    };
    let (_, before) = resolved(&directory)?;
    if to_resolved_toml(&before)? != to_resolved_toml(&config)? {
        bail!(
            "`{}` was started with other settings than `{}` has now, and a resumed run must be the \
             same run; compare with its resolved.toml, or start a new run without --resume",
            directory.path().display(),
            args.config.display()
        );
    }
    Ok((source, config, Some(directory)))
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
    let manifest =
        Manifest::new(device, session.task.sizes(), session.params.n_parameters() as u64);
    let directory = RunDirectory::create(&args.runs, &run_name(args))?;
    directory.write_start(source.text(), &resolved, &manifest)?;
    Ok(directory)
}

/// Goes on from the latest checkpoint; a run that was stopped before its first starts again.
fn resume(session: &mut Session<Weather>, directory: &RunDirectory, device: &Device) -> Result<()> {
    let checkpoints = directory.checkpoints();
    if checkpoints.latest()?.is_some() {
        session.restore(&checkpoints.load(Selection::Latest, device)?)?;
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
    notify(observers, &Event::Finished { step: session.progress.step, seconds })?;
    result
}

/// The model beside the baselines, on stdout.
fn conclude(
    session: &Session<Weather>,
    directory: &RunDirectory,
    device: &Device,
    say: &dyn Fn(&str),
) -> Result<()> {
    let selection = session.config.checkpoint.select.into();
    session.use_weights(&directory.checkpoints().load(selection, device)?)?;
    say("evaluating");
    let report = Report::new(&session.task, &session.twin)?;
    write_report(directory.path(), &report)?;
    print(&format!("\n{}", weather::table(&report)))?;
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
    std::fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))
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
