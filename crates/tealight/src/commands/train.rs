//! `tealight train CONFIG`

use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use tealight_train::config::{ConfigSource, Difference, RunConfig, to_resolved_toml};
use tealight_train::observer::jsonl::JsonLines;
use tealight_train::observer::tensorboard::TensorBoard;
use tealight_train::observer::{Event, Observer, notify};
use tealight_train::pretrained::Pretrained;
use tealight_train::run::files::{replace, to_json};
use tealight_train::run::manifest::device_name;
use tealight_train::run::{Checkpoint, Manifest, RunDirectory, Selection, load_weights};
use tealight_train::session::Progress;
use tealight_train::task::{Reading, Reported, Task};
use tealight_train::{Session, fit};

use super::load::{ForAnyTask, Given, misfit, resolved, same_data, with_task};
use super::presented::Presented;
use super::{attend, print};
use crate::args::Train;
use crate::console::{log, progress};
use crate::failure::at_its_place;
use crate::summary::Summary;
use crate::table::thousands;

pub(crate) fn run(args: &Train) -> Result<()> {
    let device = args.device.open()?;
    let (Given { source, config, begins_with }, earlier) = configuration(args)?;
    let (source, config) = (&source, &config);
    let kept = earlier.clone();
    let training = Training { args, device: &device, source, config, earlier, begins_with };
    for dropped in source.dropped_keys() {
        training.say(&dropped.to_string());
    }
    with_task(config, source, &device, kept.as_ref(), training)
}

/// What is to be trained, and how it was asked for.
struct Training<'a> {
    args: &'a Train,
    device: &'a Device,
    source: &'a ConfigSource,
    config: &'a RunConfig,
    earlier: Option<RunDirectory>,
    begins_with: Option<Rc<Pretrained>>,
}

impl ForAnyTask for Training<'_> {
    fn run<T: Presented>(self, task: T) -> Result<()> {
        let Self { args, device, source, config, .. } = self;
        let mut session = self.session(task).map_err(|error| at_its_place(error, source))?;
        self.say(&describe(&session, device));
        if args.dry_run {
            self.say("dry run: everything is built, nothing is trained");
            return Ok(());
        }

        let directory = match &self.earlier {
            Some(directory) => {
                resume(&mut session, directory, device)?;
                directory.clone()
            }
            None => start(args, source, &session, device)?,
        };
        self.say(&format!("run {}", directory.path().display()));
        let mut observers: Vec<Box<dyn Observer>> =
            vec![Box::new(JsonLines::append(&directory.metrics_path())?)];
        if config.log.tensorboard {
            let step = session.progress.step;
            let n_heads = config.model.n_heads;
            let draw = Box::new(move |readings: &[Reading]| attend::images(readings, n_heads));
            observers.push(Box::new(TensorBoard::create(directory.path(), step, draw)?));
        }
        if !args.quiet {
            observers.push(progress());
        }
        let first_step = session.progress.step;
        train(&mut session, &directory, args.stop_after, &mut observers)
            .map_err(|error| at_its_place(error, source))?;

        let Progress { step, early_stopping } = &session.progress;
        let is_complete = *step >= config.training.steps || early_stopping.has_stopped();
        if !is_complete && args.stop_after.is_some() {
            self.say(&format!("stopped after step {step}; go on with --resume"));
            return Ok(());
        }
        self.conclude(&session, &directory, first_step)
    }
}

impl Training<'_> {
    fn say(&self, line: &str) {
        if !self.args.quiet {
            log(line);
        }
    }

    /// Everything built and checked, at step 0.
    fn session<T: Task>(&self, task: T) -> tealight_train::Result<Session<T>> {
        let mut session = Session::new(self.config, task, self.device)?;
        // A run that goes on has all parameters in its checkpoint.
        if let (Some(model), None) = (&self.begins_with, &self.earlier) {
            let initialised = session.begin_with(model)?;
            self.say(&format!("begins with {}: {initialised}", model.origin.display()));
        }
        session.check()?;
        Ok(session)
    }

    /// The trained model's report: in the run's directory, and as a table on stdout.
    fn conclude<T: Presented>(
        &self,
        session: &Session<T>,
        directory: &RunDirectory,
        first_step: u64,
    ) -> Result<()> {
        let selection = self.config.checkpoint.select.into();
        let checkpoint = directory.checkpoints().find(selection)?;
        session.load_weights(&load_weights(&checkpoint, self.device)?)?;
        self.say("evaluating\n");
        let report = session.task.report(&session.twin)?;
        let path = directory.path();
        let file = path.join("report.json");
        replace(&file, &to_json(&file, &report)?)?;
        Summary::write(session, directory, T::metrics(&report), first_step)?;
        print(&T::table(&report))?;
        let evaluate = format!("tealight evaluate {}", path.display());
        self.say(&format!("\n{evaluate}    the same again\n{}", T::next_command(path)));
        Ok(())
    }
}

/// The settings, and the run that they resume.
fn configuration(args: &Train) -> Result<(Given, Option<RunDirectory>)> {
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
        let (source, config) = resolved(&directory, &[])?;
        return Ok((Given { source, config, begins_with: None }, Some(directory)));
    }
    let given = Given::read(&args.config, &args.overrides)?;
    if !args.resume {
        return Ok((given, None));
    }
    let name = run_name(args);
    let Some(directory) = RunDirectory::last(&args.runs, &name)? else {
        bail!("nothing to resume: there is no run `{}`", args.runs.join(name).display());
    };
    let (_, before) = resolved(&directory, &[])?;
    if let Err(differences) = before.same_run(&given.config) {
        bail!(
            "`{}` was started with other settings than `{}` has now, and a resumed run must be the \
             same run; start a new one without --resume, or change back:\n{}",
            directory.path().display(),
            args.config.display(),
            listed(&differences)
        );
    }
    Ok((given, Some(directory)))
}

/// More differences than these are counted, not listed.
const MAX_DIFFERENCES: usize = 10;

/// A line for each setting that differs.
pub(super) fn listed(differences: &[Difference]) -> String {
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
fn start<T: Reported>(
    args: &Train,
    source: &ConfigSource,
    session: &Session<T>,
    device: &Device,
) -> Result<RunDirectory> {
    let resolved = to_resolved_toml(&session.config)?;
    let n_parameters = session.params.n_parameters() as u64;
    let manifest =
        Manifest::new(device, session.task.sizes(), n_parameters).with_data(session.task.data());
    let directory = RunDirectory::create(&args.runs, &run_name(args))?;
    for (name, bytes) in session.task.files()? {
        directory.keep(name, &bytes)?;
    }
    directory.write_start(source.text(), &resolved, &manifest)?;
    Ok(directory)
}

/// Goes on from the latest checkpoint; a run that was stopped before its first starts again.
fn resume<T: Reported>(
    session: &mut Session<T>,
    directory: &RunDirectory,
    device: &Device,
) -> Result<()> {
    same_data(&session.task, directory)?;
    let checkpoints = directory.checkpoints();
    if checkpoints.latest()?.is_some() {
        let path = checkpoints.find(Selection::Latest)?;
        let checkpoint = Checkpoint::load(&path, device)?;
        session.restore(&checkpoint).with_context(|| misfit(&path, directory))?;
    }
    Ok(directory.cut_metrics_after(session.progress.step)?)
}

fn train<T: Task>(
    session: &mut Session<T>,
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

fn describe<T: Task>(session: &Session<T>, device: &Device) -> String {
    let Session { config, params, optimizer, .. } = session;
    let groups = optimizer.groups();
    let n_trained = groups.decayed.n_parameters + groups.undecayed.n_parameters;
    let frozen = match params.n_parameters() - n_trained {
        0 => String::new(),
        n => format!(", {} are frozen", thousands(n as u64)),
    };
    format!(
        "{} · {} layers, d_model {}, {} heads · {} parameters ({} decay, {} do not{frozen}) · {} steps on {}",
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
