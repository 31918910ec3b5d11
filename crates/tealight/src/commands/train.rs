//! `tealight train CONFIG`

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use tealight_train::config::{ConfigSource, Precision, RunConfig, to_resolved_toml};
use tealight_train::observer::jsonl::JsonLines;
use tealight_train::observer::tensorboard::TensorBoard;
use tealight_train::observer::{Event, Observer, notify};
use tealight_train::pretrained::Pretrained;
use tealight_train::run::manifest::device_name;
use tealight_train::run::{Lock, Manifest, Newest, PassedOver, RunDirectory, load_weights};
use tealight_train::storage::files::{replace, to_json};
use tealight_train::task::table::thousands;
use tealight_train::task::{AttentionMap, RegisteredTask, Task, TaskReport, TaskVisitor};
use tealight_train::training::session::Progress;
use tealight_train::{Session, StopCondition, fit};

use crate::args::Train;
use crate::pictures::attention;
use crate::runs::config::{Given, listed, resolved};
use crate::runs::load::{misfit, same_data, with_task};
use crate::runs::preflight::{self, Shortage};
use crate::runs::summary::Summary;
use crate::system::interrupt::{Interrupt, Interrupts};
use crate::terminal::failure::at_its_place;
use crate::terminal::output::{log, print};
use crate::terminal::progress::progress;

pub(crate) fn run(args: &Train) -> Result<ExitCode> {
    let started = Instant::now();
    let device = args.device.open()?;
    let (Given { source, config, begins_with }, earlier) = configuration(args)?;
    let (source, config) = (&source, &config);
    // Before any data are prepared, which can take long.
    let resumes = earlier.as_ref().filter(|_| !args.dry_run);
    let _lock = resumes.map(RunDirectory::lock).transpose()?;
    let kept = earlier.clone();
    let mut exit_code = ExitCode::SUCCESS;
    let training = Training {
        args,
        started,
        device: &device,
        source,
        config,
        earlier,
        begins_with,
        exit_code: &mut exit_code,
    };
    for dropped in source.dropped_keys() {
        training.say(&dropped.to_string());
    }
    with_task(config, source, &device, kept.as_ref(), training)?;
    Ok(exit_code)
}

/// What is to be trained, and how it was asked for.
struct Training<'a> {
    args: &'a Train,
    started: Instant,
    device: &'a Device,
    source: &'a ConfigSource,
    config: &'a RunConfig,
    earlier: Option<RunDirectory>,
    begins_with: Option<Rc<Pretrained>>,
    /// How the process ends.
    exit_code: &'a mut ExitCode,
}

impl TaskVisitor for Training<'_> {
    type Output = Result<()>;

    fn visit<T: RegisteredTask>(self, task: T) -> Result<()> {
        let Self { args, device, source, .. } = self;
        let mut session = self.session(task).map_err(|error| at_its_place(error, source))?;
        self.say(&describe(&session, device));
        if !args.force {
            self.check_room(&session)?;
        }
        let checked = session.check().map_err(|error| preflight::explained(error, &session));
        checked.map_err(|error| at_its_place(error, source))?;
        if args.dry_run {
            self.say("dry run: everything is built, nothing is trained");
            return Ok(());
        }

        let (directory, _lock) = if let Some(directory) = &self.earlier {
            resume(&mut session, directory, device)?;
            (directory.clone(), None)
        } else {
            let (directory, lock) = start(args, source, &session, device)?;
            (directory, Some(lock))
        };
        self.say(&format!("run {}", directory.path().display()));
        let first_step = session.progress.step;
        let mut observers = self.observers(&directory, first_step)?;
        let interrupts = Interrupts::listen()?;
        let ended = self.train(&mut session, &directory, &mut observers, &interrupts);
        // What follows can be interrupted at any point.
        drop(interrupts);
        let ended = ended.map_err(|error| {
            self.tell_what_is_kept(&directory);
            at_its_place(error, source)
        })?;

        let step = session.progress.step;
        let goes_on =
            || format!("`tealight train {}` goes on from there", directory.path().display());
        match ended {
            Ended::Interrupted(Interrupt { name, exit_code }) => {
                log(&format!("stopped by {name} after step {step}; {}", goes_on()));
                *self.exit_code = ExitCode::from(exit_code);
                Ok(())
            }
            Ended::TimeIsUp => {
                log(&format!("time is up after step {step}; {}", goes_on()));
                Ok(())
            }
            Ended::Early => {
                self.say(&format!("stopped after step {step}; go on with --resume"));
                Ok(())
            }
            Ended::Complete => self.conclude(&session, &directory, first_step),
        }
    }
}

/// Why training is over for now.
enum Ended {
    Complete,
    /// By `--stop-after`.
    Early,
    /// By `--time-limit`.
    TimeIsUp,
    Interrupted(Interrupt),
}

impl Training<'_> {
    fn say(&self, line: &str) {
        if !self.args.quiet {
            log(line);
        }
    }

    /// Who hears of the run, which goes on after `step`.
    fn observers(&self, directory: &RunDirectory, step: u64) -> Result<Vec<Box<dyn Observer>>> {
        let mut observers: Vec<Box<dyn Observer>> =
            vec![Box::new(JsonLines::append(&directory.metrics_path())?)];
        if self.config.log.tensorboard {
            let n_heads = self.config.model.n_heads;
            let draw = Box::new(move |maps: &[AttentionMap]| attention::images(maps, n_heads));
            observers.push(Box::new(TensorBoard::create(directory.path(), step, draw)?));
        }
        if !self.args.quiet {
            observers.push(progress());
        }
        Ok(observers)
    }

    /// After an error: from where the run can go on.
    fn tell_what_is_kept(&self, directory: &RunDirectory) {
        if let Ok(Some(step)) = directory.checkpoints().latest() {
            let path = directory.path().display();
            self.say(&format!(
                "the run is kept up to step {step}; `tealight train {path}` goes on from there"
            ));
        }
    }

    /// Everything built, at step 0.
    fn session<T: Task>(&self, task: T) -> tealight_train::Result<Session<T>> {
        let mut session = Session::new(self.config, task, self.device)?;
        // A run that goes on has all parameters in its checkpoint.
        if let (Some(model), None) = (&self.begins_with, &self.earlier) {
            let initialised = session.begin_with(model)?;
            self.say(&format!("begins with {}: {initialised}", model.origin.display()));
        }
        Ok(session)
    }

    /// Before a first batch is computed: where memory is short, that would be the end.
    fn check_room<T: Task>(&self, session: &Session<T>) -> Result<()> {
        session.check_memory().map_err(|error| at_its_place(error, self.source))?;
        let saved = self.earlier.as_ref().map(RunDirectory::checkpoints);
        let directory = self.earlier.as_ref().map_or(self.args.runs.as_path(), RunDirectory::path);
        match preflight::shortage(session, directory, saved.as_ref())? {
            None => Ok(()),
            Some(Shortage { key, message }) => {
                let message = format!("{message}, and `--force` tries all the same");
                Err(self.source.conflict_error(&[key], &message).into())
            }
        }
    }

    fn train<T: Task>(
        &self,
        session: &mut Session<T>,
        directory: &RunDirectory,
        observers: &mut [Box<dyn Observer>],
        interrupts: &Interrupts,
    ) -> tealight_train::Result<Ended> {
        let Train { stop_after, time_limit, .. } = self.args;
        let is_time_up = || time_limit.is_some_and(|limit| self.started.elapsed() >= *limit);
        let is_asked = || interrupts.received().is_some() || is_time_up();

        let started = Instant::now();
        let total_steps = session.config.training.steps;
        let event = Event::RunStarted {
            directory: Some(directory.path()),
            step: session.progress.step,
            total_steps,
            n_parameters: session.params.n_parameters(),
        };
        notify(observers, &event)?;
        let until = StopCondition::from(stop_after.unwrap_or(total_steps)).or_when(&is_asked);
        let result = fit(session, until, Some(&directory.checkpoints()), observers)
            .map_err(|error| preflight::explained(error, session));
        let Progress { step, early_stopping, .. } = &session.progress;
        let seconds = started.elapsed().as_secs_f64();
        let told = notify(observers, &Event::Finished { step: *step, seconds });
        result.and(told)?;
        let is_complete = *step >= total_steps || early_stopping.has_stopped();
        Ok(match interrupts.received() {
            Some(interrupt) => Ended::Interrupted(interrupt),
            None if is_complete => Ended::Complete,
            None if stop_after.is_some_and(|last| *step >= last) => Ended::Early,
            None => Ended::TimeIsUp,
        })
    }

    /// The trained model's report: in the run's directory, and as a table on stdout.
    fn conclude<T: RegisteredTask>(
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
        Summary::write(session, directory, report.metrics(), first_step)?;
        print(&report.to_string())?;
        let evaluate = format!("tealight evaluate {}", path.display());
        let next = self.config.task.settings().next_command(path);
        self.say(&format!("\n{evaluate}    the same again\n{next}"));
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
        if args.name.is_some() {
            bail!("`--name` does not go with a run's directory: a run keeps its name");
        }
        let (source, config) = resolved(&directory, &args.overrides)?;
        refuse_others(&directory, "the command line", &config)?;
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
    refuse_others(&directory, &format!("`{}`", args.config.display()), &given.config)?;
    Ok((given, Some(directory)))
}

/// Refuses to go on with a run with settings other than its own, but for those that may change.
fn refuse_others(directory: &RunDirectory, origin: &str, config: &RunConfig) -> Result<()> {
    let (_, before) = resolved(directory, &[])?;
    let Err(differences) = before.same_run(config) else { return Ok(()) };
    bail!(
        "`{}` was started with other settings than {origin} has now, and a resumed run must be the \
         same run; start a new one without --resume, or change back:\n{}",
        directory.path().display(),
        listed(&differences)
    );
}

/// `--name`, or the name of the file without its ending.
fn run_name(args: &Train) -> String {
    let stem = || args.config.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    args.name.clone().unwrap_or_else(stem)
}

/// Makes the directory of a new run.
fn start<T: RegisteredTask>(
    args: &Train,
    source: &ConfigSource,
    session: &Session<T>,
    device: &Device,
) -> Result<(RunDirectory, Lock)> {
    let resolved = to_resolved_toml(&session.config)?;
    let n_parameters = session.params.n_parameters() as u64;
    let manifest = Manifest::new(device, session.task.sizes(), n_parameters)
        .with_data(session.task.data_files());
    let directory = RunDirectory::create(&args.runs, &run_name(args))?;
    let lock = directory.lock()?;
    for (name, bytes) in session.task.kept_files()? {
        directory.keep(name, &bytes)?;
    }
    directory.write_start(source.text(), &resolved, &manifest)?;
    Ok((directory, lock))
}

/// Goes on from the latest checkpoint; a run that was stopped before its first starts again.
fn resume<T: RegisteredTask>(
    session: &mut Session<T>,
    directory: &RunDirectory,
    device: &Device,
) -> Result<()> {
    same_data(&*session.task, directory)?;
    let checkpoints = directory.checkpoints();
    let Newest { checkpoint, passed_over } = checkpoints.load_newest(device)?;
    for PassedOver { step, damage, kept } in passed_over {
        let kept = kept.display();
        log(&format!(
            "the checkpoint of step {step} is passed over, and kept as `{kept}`: {damage}"
        ));
    }
    if let Some(checkpoint) = checkpoint {
        let path = checkpoints.path(checkpoint.state.step);
        session.restore(&checkpoint).with_context(|| misfit(&path, directory))?;
    }
    // Those that may change hold from here on.
    directory.keep_resolved(&to_resolved_toml(&session.config)?)?;
    let Progress { step, guard, .. } = &session.progress;
    Ok(directory.cut_metrics_after(*step, guard.n_roll_backs)?)
}

fn describe<T: Task>(session: &Session<T>, device: &Device) -> String {
    let Session { config, params, optimizer, .. } = session;
    let groups = optimizer.decay_groups();
    let n_trained = groups.decayed.n_parameters + groups.undecayed.n_parameters;
    let frozen = match params.n_parameters() - n_trained {
        0 => String::new(),
        n => format!(", {} are frozen", thousands(n as u64)),
    };
    let precision = match (config.training.precision, device.is_cuda()) {
        (Precision::F32, _) => "",
        (Precision::Tf32, true) => " in tf32",
        (Precision::Bf16, true) => " in bf16",
        // `training.precision` is of GPUs.
        (_, false) => " in f32",
    };
    format!(
        "{} · {} layers, d_model {}, {} heads · {} parameters ({} decay, {} do not{frozen}) · {} steps on {}{precision}",
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
