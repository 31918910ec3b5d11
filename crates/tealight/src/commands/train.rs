//! `tealight train CONFIG`

use std::cell::Cell;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use serde_json::json;
use tealight_model::ConfigFault;
use tealight_ops::{bf16_instructions, with_product_precision};
use tealight_train::communicator::ranks::Ranks;
use tealight_train::config::{Precision, RunConfig, to_resolved_toml};
use tealight_train::data::DataFile;
use tealight_train::observer::jsonl::{JsonLines, cut_after};
use tealight_train::observer::samples::{self, SampleLines};
use tealight_train::observer::tensorboard::TensorBoard;
use tealight_train::observer::{Event, Observer, notify};
use tealight_train::run::manifest::{Instructions, changed_instructions, device_name};
use tealight_train::run::{
    DamagedCheckpoint, Lock, Manifest, NewestCheckpoint, RunDirectory, load_weights,
};
use tealight_train::storage::digests::Digest;
use tealight_train::storage::files::{replace, to_json};
use tealight_train::task::table::thousands;
use tealight_train::task::{AttentionMap, RegisteredTask, Task, TaskReport, TaskVisitor};
use tealight_train::training::distributed::join::Identity;
use tealight_train::training::session::Progress;
use tealight_train::{Error, Session, fit_unless_stopped};

use crate::args::train::Train;
use crate::pictures::attention;
use crate::pictures::illustrations::save_of;
use crate::runs::config::{LoadedConfig, check_same_run};
use crate::runs::ended::Ended;
use crate::runs::job::{self, agree, log_on_first, open_device};
use crate::runs::load::{weights_mismatch, with_task};
use crate::runs::notes::notes;
use crate::runs::preflight::{self, explain_out_of_memory};
use crate::runs::summary::Summary;
use crate::system::signals::{Signal, SignalHandlers};
use crate::system::subprocess::read_this_program;
use crate::terminal::failure::at_its_place;
use crate::terminal::output::{print, print_indented_json, warn};
use crate::terminal::progress::ProgressObserver;
use crate::terminal::verbosity::is_quiet;

pub(crate) fn run(args: &Train) -> Result<ExitCode> {
    let started = Instant::now();
    job::run(|ranks, _| train(args, started, ranks))
}

fn train(args: &Train, started: Instant, ranks: &Ranks) -> Result<ExitCode> {
    let opened =
        open_device(args.device, ranks).and_then(|device| Ok((device, configuration(args)?)));
    let (device, (loaded, resumed)) = agree(ranks, opened)?;
    let (device, loaded, resumed) = (&device, &loaded, resumed.as_ref());
    // Locked before the data are loaded, which can take long.
    let locked = resumed.filter(|_| !args.dry_run && ranks.is_first());
    let lock = locked.map(|run| Lock::acquire(run.path())).transpose();
    let _lock = agree(ranks, lock.map_err(Into::into))?;
    let is_prepared = Cell::new(false);
    let training =
        Training { ranks, args, started, device, loaded, resumed, is_prepared: &is_prepared };
    for dropped in &loaded.source.dropped_keys {
        training.log(&dropped.to_string());
    }
    // The first rank of a host prepares the data, such as a file of tokens; then the others there read them.
    let prepares = ranks.on_this_host()[0] == ranks.rank();
    if !prepares {
        agree(ranks, Ok(()))?;
    }
    let result = with_task(loaded, device, resumed, training);
    if is_prepared.get() { result } else { agree(ranks, result) }
}

/// The arguments of `train` with everything read that does not depend on the task.
#[derive(Clone, Copy)]
struct Training<'a> {
    ranks: &'a Ranks,
    /// Set when the task has been built.
    is_prepared: &'a Cell<bool>,
    args: &'a Train,
    started: Instant,
    device: &'a Device,
    loaded: &'a LoadedConfig,
    /// The run to resume, if any.
    resumed: Option<&'a RunDirectory>,
}

impl TaskVisitor for Training<'_> {
    type Output = Result<ExitCode>;

    fn visit<T: RegisteredTask>(self, task: T) -> Result<ExitCode> {
        let Self { args, ranks, .. } = self;
        let mut session = self.joined(task)?;
        if args.dry_run {
            self.log("dry run: built and checked, not trained");
            self.print_end(&session, None, "dry_run", None)?;
            return Ok(ExitCode::SUCCESS);
        }

        let (directory, _lock) = self.directory(&mut session)?.unzip();
        let directory = directory.as_ref();
        let first_step = session.progress.step;
        let mut observers = agree(ranks, self.observers(directory, first_step))?;
        let signals = SignalHandlers::install()?;
        let trained = self.train(&mut session, directory, &mut observers, &signals);
        if let Err(error) = trained {
            self.log_last_checkpoint(directory);
            let error = self.at_its_place(error);
            if let Some(directory) = directory {
                let ended = Ended::new("error", session.progress.step, Some(&format!("{error:#}")));
                // Report the original error, not a failure to write it down.
                let _ = ended.write(directory.path());
            }
            return Err(error);
        }
        let signal = self.signal(&signals)?;
        // From here on a signal ends the process: only the evaluation follows.
        drop(signals);
        let exit_code = signal.as_ref().map_or(0, |(signal, _)| signal.exit_code);
        if let Some(directory) = directory {
            self.conclude(&session, directory, first_step, signal)?;
        }
        Ok(ExitCode::from(exit_code))
    }
}

impl Training<'_> {
    /// Logs on rank 0.
    fn log(&self, line: &str) {
        log_on_first(self.ranks, line);
    }

    /// A session at step 0 that has joined the other ranks.
    fn joined<T: RegisteredTask>(&self, task: T) -> Result<Session<T>> {
        let ranks = self.ranks;
        self.is_prepared.set(true);
        if ranks.on_this_host()[0] == ranks.rank() {
            agree(ranks, Ok(()))?;
        }
        let data = task.data_files();
        let mut session = self.session(task)?;
        for note in notes(&session) {
            self.log(&note);
        }
        let identity = agree(ranks, self.identity(data))?;
        session.join(ranks.clone(), &identity).map_err(|error| self.at_its_place(error))?;
        Ok(session)
    }

    /// What ranks compare beside settings; nothing in a single process.
    fn identity(&self, data: Vec<DataFile>) -> Result<Identity> {
        if self.ranks.is_alone() {
            return Ok(Identity::default());
        }
        let Train { dry_run, stop_after, .. } = self.args;
        let begins = if self.resumed.is_some() { "resume a run" } else { "start a run" };
        let ends = match (dry_run, stop_after) {
            (true, _) => " without training".to_owned(),
            (false, Some(step)) => format!(" and stop after step {step}"),
            (false, None) => String::new(),
        };
        let mut digest = Digest::default();
        digest.add(&read_this_program()?);
        let program = format!("tealight {} ({:.12})", env!("CARGO_PKG_VERSION"), digest.finish());
        Ok(Identity { program, arguments: format!("{begins}{ends}"), data })
    }

    /// Resumes the run or starts a new one. Its directory, in which rank 0 alone writes, and its lock; `None` on the
    /// other ranks.
    fn directory<T: RegisteredTask>(
        &self,
        session: &mut Session<T>,
    ) -> Result<Option<(RunDirectory, Option<Lock>)>> {
        let is_first = self.ranks.is_first();
        if let Some(directory) = self.resumed {
            resume(session, directory)?;
            return Ok(is_first.then(|| (directory.clone(), None)));
        }
        let started = is_first.then(|| self.start(session)).transpose();
        let started = agree(self.ranks, started)?;
        Ok(started.map(|(directory, lock)| (directory, Some(lock))))
    }

    /// The signal that a rank has received, if any, and where: empty in a single process.
    fn signal(&self, signals: &SignalHandlers) -> Result<Option<(Signal, String)>> {
        let ranks = self.ranks;
        if ranks.is_alone() {
            return Ok(signals.received().map(|signal| (signal, String::new())));
        }
        let all = ranks.gather(&signals.received().map(Signal::number))?;
        let received = all.into_iter().enumerate().find_map(|(rank, n)| Some((rank, n?)));
        let named = received.and_then(|(rank, number)| {
            Some((Signal::of_number(number)?, format!(" on rank {rank} ({})", ranks.host(rank))))
        });
        Ok(named)
    }

    /// A session at step 0 that has passed the checks before training. All ranks call it.
    fn session<T: Task>(&self, task: T) -> Result<Session<T>> {
        let ranks = self.ranks;
        let session = agree(ranks, self.initialised(task))?;
        if !self.args.force {
            // Before the first batch, which would run out of memory.
            self.check_resources(&session)?;
        }
        let checked = session.check();
        let explained = |error| explain_out_of_memory(error, &session);
        agree(ranks, checked.map_err(|error| self.at_its_place(explained(error))))?;
        Ok(session)
    }

    /// A session at step 0.
    fn initialised<T: Task>(&self, task: T) -> Result<Session<T>> {
        let mut session = self.loaded.session(task, self.device)?;
        // A resumed run loads all parameters from its checkpoint.
        if let (Some(model), None) = (&self.loaded.init_model, self.resumed) {
            let initialised =
                session.begin_with(model).map_err(|error| self.at_its_place(error))?;
            self.log(&format!("initialised from {}: {initialised}", model.origin.display()));
        }
        self.log(&describe(&session, self.device));
        Ok(session)
    }

    /// Fails if memory or disk space is short. All ranks call it; rank 0 alone writes.
    fn check_resources<T: Task>(&self, session: &Session<T>) -> Result<()> {
        let ranks = self.ranks;
        let checked = session.check_memory(ranks.size());
        agree(ranks, checked.map_err(|error| self.at_its_place(error)))?;
        let shortage = preflight::memory_shortage(session, ranks)?;
        agree(ranks, self.refuse(shortage))?;
        let shortage = if ranks.is_first() { self.disk_shortage(session) } else { Ok(None) };
        agree(ranks, shortage.and_then(|shortage| self.refuse(shortage)))
    }

    fn disk_shortage<T: Task>(&self, session: &Session<T>) -> Result<Option<ConfigFault>> {
        let saved = self.resumed.map(RunDirectory::checkpoints);
        let directory = self.resumed.map_or(self.args.runs.as_path(), RunDirectory::path);
        preflight::disk_shortage(session, directory, saved.as_ref())
    }

    fn refuse(&self, shortage: Option<ConfigFault>) -> Result<()> {
        let Some(mut fault) = shortage else { return Ok(()) };
        fault.message += "; `--force` skips this check";
        Err(self.at_its_place(Error::Config(fault)))
    }

    fn at_its_place(&self, error: Error) -> anyhow::Error {
        at_its_place(error, &self.loaded.source)
    }

    /// Creates and locks the directory of a new run.
    fn start<T: RegisteredTask>(&self, session: &Session<T>) -> Result<(RunDirectory, Lock)> {
        let resolved = to_resolved_toml(&session.config)?;
        let n_parameters = session.params.n_parameters() as u64;
        let manifest = Manifest {
            data: session.task.data_files(),
            instructions: Instructions::of(session.config.training.precision, self.device),
            ..Manifest::new(self.device, session.task.sizes(), n_parameters)
        };
        let directory = RunDirectory::create(&self.args.runs, &run_name(self.args, self.loaded))?;
        let lock = Lock::acquire(directory.path())?;
        for (name, bytes) in session.task.kept_files()? {
            replace(&directory.path().join(name), &bytes)?;
        }
        directory.write_start(self.loaded.source.text(), &resolved, &manifest)?;
        Ok((directory, lock))
    }

    /// The observers of a run that starts or resumes after `step`.
    fn observers(
        &self,
        directory: Option<&RunDirectory>,
        step: u64,
    ) -> Result<Vec<Box<dyn Observer>>> {
        let Some(directory) = directory else { return Ok(Vec::new()) };
        self.log(&format!("run {}", directory.path().display()));
        let RunConfig { log, model, .. } = &self.loaded.config;
        let samples = SampleLines::append(&directory.path().join(samples::FILE))?;
        let mut observers: Vec<Box<dyn Observer>> =
            vec![Box::new(JsonLines::append(&directory.metrics_path())?), Box::new(samples)];
        if log.tensorboard {
            let n_heads = model.n_heads;
            let draw = Box::new(move |maps: &[AttentionMap]| attention::images(maps, n_heads));
            observers.push(Box::new(TensorBoard::create(directory.path(), step, draw)?));
        }
        if !is_quiet() {
            observers.push(Box::new(ProgressObserver::default()));
        }
        Ok(observers)
    }

    fn train<T: Task>(
        &self,
        session: &mut Session<T>,
        directory: Option<&RunDirectory>,
        observers: &mut [Box<dyn Observer>],
        signals: &SignalHandlers,
    ) -> tealight_train::Result<()> {
        let Train { stop_after, time_limit, .. } = self.args;
        let is_time_up = || time_limit.is_some_and(|limit| self.started.elapsed() >= *limit);
        let is_stop_requested = || signals.received().is_some() || is_time_up();

        let started = Instant::now();
        let total_steps = session.config.training.steps;
        let event = Event::RunStarted {
            directory: directory.map(RunDirectory::path),
            step: session.progress.step,
            total_steps,
            n_parameters: session.params.n_parameters(),
        };
        notify(observers, &event)?;
        let until = stop_after.unwrap_or(total_steps);
        let checkpoints = directory.map(RunDirectory::checkpoints);
        let kept = checkpoints.as_ref();
        let result = fit_unless_stopped(session, until, &is_stop_requested, kept, observers)
            .map_err(|error| explain_out_of_memory(error, session));
        let (step, seconds) = (session.progress.step, started.elapsed().as_secs_f64());
        result.and(notify(observers, &Event::Finished { step, seconds }))
    }

    /// Evaluates a run that has ended by itself; says how another can be continued. On rank 0.
    fn conclude<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: &RunDirectory,
        first_step: u64,
        signal: Option<(Signal, String)>,
    ) -> Result<()> {
        let Progress { step, early_stopping, .. } = &session.progress;
        let resume_hint = format!("`tealight train {}` resumes", directory.path().display());
        if let Some((Signal { name, .. }, whose)) = signal {
            warn(&format!("stopped by {name}{whose} after step {step}; {resume_hint}"));
            Ended::new(name, *step, None).write(directory.path())?;
            self.print_end(session, Some(directory), name, None)
        } else if *step >= session.config.training.steps || early_stopping.has_stopped() {
            let ended = if early_stopping.has_stopped() { "early_stopping" } else { "finished" };
            self.evaluate(session, directory, first_step, ended)
        } else if self.args.stop_after.is_some_and(|last| *step >= last) {
            self.log(&format!("stopped after step {step}; continue with --resume"));
            Ended::new("--stop-after", *step, None).write(directory.path())?;
            self.print_end(session, Some(directory), "stop_after", None)
        } else {
            warn(&format!("time limit reached after step {step}; {resume_hint}"));
            Ended::new("time limit", *step, None).write(directory.path())?;
            self.print_end(session, Some(directory), "time_limit", None)
        }
    }

    /// With `--json`: how training has ended, on rank 0.
    fn print_end<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: Option<&RunDirectory>,
        ended: &str,
        report: Option<&T::Report>,
    ) -> Result<()> {
        if !self.args.json || !self.ranks.is_first() {
            return Ok(());
        }
        print_indented_json(&json!({
            "run": directory.map(RunDirectory::path),
            "ended": ended,
            "step": session.progress.step,
            "notes": notes(session),
            "evaluation": report,
        }))
    }

    /// After an error: logs the checkpoint from which the run can be resumed.
    fn log_last_checkpoint(&self, directory: Option<&RunDirectory>) {
        if let Some(directory) = directory
            && let Ok(Some(step)) = directory.checkpoints().latest()
        {
            let path = directory.path().display();
            self.log(&format!(
                "the last checkpoint is that of step {step}; `tealight train {path}` resumes"
            ));
        }
    }

    /// Evaluates the selected checkpoint: writes `report.json` and `summary.json`, prints the table.
    fn evaluate<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: &RunDirectory,
        first_step: u64,
        ended: &str,
    ) -> Result<()> {
        let RunConfig { checkpoint, task, .. } = &self.loaded.config;
        let checkpoint = directory.checkpoints().find(checkpoint.select.into())?;
        session.load_weights(&load_weights(&checkpoint, self.device)?)?;
        self.log("evaluating\n");
        let products = session.config.training.precision.of_products();
        let report = with_product_precision(products, || session.task.report(&session.eval_model))?;
        let path = directory.path();
        let file = path.join("report.json");
        replace(&file, &to_json(&file, &report)?)?;
        Summary::write(session, directory, report.metrics(), first_step)?;
        if !self.args.json {
            print(&report.to_string())?;
        }
        self.print_end(session, Some(directory), ended, Some(&report))?;
        for drawn in save_of(&*session.task, &report, path)? {
            self.log(&drawn.display().to_string());
        }
        let evaluate = format!("tealight evaluate {}", path.display());
        let next = task.settings().next_command(path);
        self.log(&format!("\n{evaluate}    prints this table again\n{next}"));
        Ok(())
    }
}

/// The configuration, and the run to resume.
fn configuration(args: &Train) -> Result<(LoadedConfig, Option<RunDirectory>)> {
    let skip_broken = args.skip_broken.then(|| "task.data.skip_broken=true".to_owned());
    let overrides: Vec<String> = args.overrides.iter().cloned().chain(skip_broken).collect();
    let (origin, loaded, directory) = if args.config.is_dir() {
        let directory = RunDirectory::open(&args.config)?;
        if directory.path() != args.config {
            bail!(
                "`{}` is inside a run; `tealight train {}` resumes the run from its latest checkpoint",
                args.config.display(),
                directory.path().display()
            );
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
        let name = run_name(args, &loaded);
        let Some(directory) = RunDirectory::last(&args.runs, &name)? else {
            bail!("nothing to resume: there is no run `{}`", args.runs.join(name).display());
        };
        (format!("`{}`", args.config.display()), loaded, directory)
    };
    let than = format!(
        "{origin} has now, and a resumed run must keep them; restore these settings, or start a new run \
         without --resume"
    );
    check_same_run(&directory, &loaded.config, &than)?;
    Ok((loaded, Some(directory)))
}

/// `--name`, or the name that follows from the configuration.
fn run_name(args: &Train, loaded: &LoadedConfig) -> String {
    let of_configuration = || loaded.origin.run_name(&args.config, &loaded.config);
    args.name.clone().unwrap_or_else(of_configuration)
}

/// Restores the latest intact checkpoint, which rank 0 reads; a run without one starts at step 0.
fn resume<T: RegisteredTask>(session: &mut Session<T>, directory: &RunDirectory) -> Result<()> {
    let (ranks, device) = (session.ranks.clone(), session.params.device().clone());
    let checkpoints = directory.checkpoints();
    let now = Instructions::of(session.config.training.precision, &device);
    let data = session.task.data_files();
    let mut newest = None;
    let restored = session.restore_on_all(|| {
        let manifest = directory.manifest()?;
        manifest.check_data(&data)?;
        if let Some(change) = changed_instructions(manifest.instructions.as_ref(), now.as_ref()) {
            warn(&change);
        }
        let NewestCheckpoint { checkpoint, damaged } = checkpoints.load_newest(&device)?;
        for DamagedCheckpoint { step, damage, moved_to } in damaged {
            let kept = moved_to.display();
            warn(&format!(
                "skipped the damaged checkpoint of step {step}, kept as `{kept}`: {damage}"
            ));
        }
        newest = checkpoint.as_ref().map(|checkpoint| checkpoints.path(checkpoint.state.step));
        Ok(checkpoint)
    });
    match newest {
        Some(path) => drop(restored.with_context(|| weights_mismatch(&path, directory))?),
        None => drop(restored?),
    }
    let Progress { step, bad_step, .. } = &session.progress;
    // Settings that may change on resuming.
    let resolved = to_resolved_toml(&session.config)?;
    ranks.on_first(|| {
        directory.keep_resolved(&resolved)?;
        cut_after(&directory.path().join(samples::FILE), *step, bad_step.n_roll_backs)?;
        cut_after(&directory.metrics_path(), *step, bad_step.n_roll_backs)
    })?;
    let is_clean = if ranks.is_first() { Ended::remove(directory.path()) } else { Ok(()) };
    agree(&ranks, is_clean)
}

/// The model, the number of steps and the device on one line.
fn describe<T: Task>(session: &Session<T>, device: &Device) -> String {
    let Session { config, params, optimizer, .. } = session;
    let groups = optimizer.decay_groups();
    let n_trained = groups.decayed.n_parameters + groups.undecayed.n_parameters;
    let frozen = match params.n_parameters() - n_trained {
        0 => String::new(),
        n => format!(", {} frozen", thousands(n as u64)),
    };
    let precision = match (config.training.precision, device.is_cuda(), bf16_instructions()) {
        (Precision::F32, ..) => String::new(),
        (Precision::Tf32, true, _) => " in tf32".to_owned(),
        (Precision::Bf16, true, _) => " in bf16".to_owned(),
        (Precision::Bf16, false, Some(name)) => format!(" in bf16 ({name})"),
        (Precision::Bf16, false, None) => {
            " in f32: it has no instructions that make bf16 faster".to_owned()
        }
        (Precision::Tf32, false, _) => " in f32: tf32 is a format of NVIDIA GPUs".to_owned(),
    };
    format!(
        "{} · {} layers, d_model {}, {} heads · {} parameters ({} with weight decay, {} without{frozen}) · {} steps on {}{precision}",
        config.model.attention_kinds(),
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
