//! `tealight train CONFIG`

mod configuration;
mod ending;
mod resuming;
mod session;

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use candle_core::Device;
use configuration::{configuration, run_name};
use resuming::resume;
use tealight_train::communicator::ranks::Ranks;
use tealight_train::config::{RunConfig, to_resolved_toml};
use tealight_train::data::DataFile;
use tealight_train::inference::attention_map::AttentionMap;
use tealight_train::observer::jsonl::JsonLines;
use tealight_train::observer::samples::SampleLines;
use tealight_train::observer::tensorboard::TensorBoard;
use tealight_train::observer::{Event, Observer, notify};
use tealight_train::run::manifest::Instructions;
use tealight_train::run::{Checkpoints, Lock, Manifest, RunDirectory};
use tealight_train::storage::digests::Digest;
use tealight_train::storage::files::replace;
use tealight_train::task::{AnyTask, RegisteredTask, Task};
use tealight_train::training::distributed::join::Identity;
use tealight_train::{Error, Session, fit_unless_stopped};

use crate::args::train::Train;
use crate::charts::attention;
use crate::runs::config::LoadedConfig;
use crate::runs::job::{self, agree, log_on_first, open_device};
use crate::runs::load::task_of;
use crate::runs::notes::notes;
use crate::runs::resources::explain_out_of_memory;
use crate::runs::teacher::TeacherScores;
use crate::runs::test_data;
use crate::system::signals::{Signal, SignalHandlers};
use crate::system::subprocess::read_this_program;
use crate::terminal::failure::at_its_place;
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
    let lock = agree(ranks, lock.map_err(Into::into))?;
    let training = Training { ranks, args, started, device, loaded, resumed, lock: lock.as_ref() };
    for dropped in &loaded.source.dropped_keys {
        training.log(&dropped.to_string());
    }
    if let (Some(steps), true) = (args.steps, args.config.is_dir()) {
        training.log(&format!(
            "a new run from the parameters of {}: {steps} steps, for which the schedule begins anew",
            args.config.display()
        ));
    }
    // The next call of `agree` ends the preparation of the data, such as a file of tokens: the first rank of a host
    // makes it in `joined` when its task is built, or below with its error; the others make it here and wait, so that
    // they find the data prepared. If one of these then cannot build its task, it tells so below, in the call that is
    // the first of `session` on the other ranks: all get its error.
    if !training.prepares_data() {
        agree(ranks, Ok(()))?;
    }
    match task_of(loaded, device, resumed) {
        Ok(task) => training.run(task),
        Err(error) => agree(ranks, Err(error)),
    }
}

/// The arguments of `train` with everything read that does not depend on the task.
#[derive(Clone, Copy)]
struct Training<'a> {
    ranks: &'a Ranks,
    args: &'a Train,
    started: Instant,
    device: &'a Device,
    loaded: &'a LoadedConfig,
    /// The run to resume, if any.
    resumed: Option<&'a RunDirectory>,
    /// The lock of the run to resume.
    lock: Option<&'a Lock>,
}

impl Training<'_> {
    fn run(self, task: AnyTask) -> Result<ExitCode> {
        let Self { args, ranks, .. } = self;
        let mut session = self.joined(task)?;
        if args.dry_run {
            self.loaded.on_test_data()?;
            self.log("dry run: built and checked, not trained");
            self.print_end(&session, None, "dry_run", None)?;
            return Ok(ExitCode::SUCCESS);
        }

        let (directory, lock) = self.directory(&mut session)?.unzip();
        let lock = lock.flatten();
        let directory = directory.as_ref();
        let first_step = session.progress.step;
        let mut observers = agree(ranks, self.observers(directory, first_step))?;
        let signals = SignalHandlers::install(args.parent)?;
        let checkpoints = directory.map(|directory| match lock.as_ref().or(self.lock) {
            Some(lock) => directory.checkpoints().owned_by(lock),
            None => directory.checkpoints(),
        });
        let kept = directory.zip(checkpoints.as_ref());
        let trained = self.train(&mut session, kept, &mut observers, &signals);
        if let Err(error) = trained {
            self.log_last_checkpoint(directory, &error);
            return Err(self.failed(&session, directory, self.at_its_place(error)));
        }
        let signal = self.signal(&signals)?;
        // From here on a signal ends the process: only the evaluation follows.
        drop(signals);
        let exit_code = signal.as_ref().map_or(0, |(signal, _)| signal.exit_code);
        if let Some(directory) = directory {
            self.conclude(&session, directory, first_step, signal)
                .map_err(|error| self.failed(&session, Some(directory), error))?;
        }
        Ok(ExitCode::from(exit_code))
    }
}

impl Training<'_> {
    /// Logs on rank 0.
    fn log(&self, line: &str) {
        log_on_first(self.ranks, line);
    }

    /// Whether this rank prepares the data of its host.
    fn prepares_data(&self) -> bool {
        self.ranks.on_this_host()[0] == self.ranks.rank()
    }

    /// A session at step 0 that has joined the other ranks.
    fn joined<T: RegisteredTask>(&self, task: T) -> Result<Session<T>> {
        let ranks = self.ranks;
        if self.prepares_data() {
            agree(ranks, Ok(()))?;
        }
        let mut session = self.session(task)?;
        let data = session.files();
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
            let checked = is_first.then(|| self.check_other_test_data(session, directory));
            agree(self.ranks, checked.unwrap_or(Ok(())))?;
            resume(session, directory, self.args.stop_after)?;
            return Ok(is_first.then(|| (directory.clone(), None)));
        }
        let of_teacher = is_first.then(|| TeacherScores::measure(session)).transpose();
        let of_teacher = agree(self.ranks, of_teacher)?.flatten();
        let started = is_first.then(|| self.start(session, of_teacher.as_ref())).transpose();
        let started = agree(self.ranks, started)?;
        Ok(started.map(|(directory, lock)| (directory, Some(lock))))
    }

    /// The signal that a rank has received, if any, and where: empty in a single process.
    fn signal(&self, signals: &SignalHandlers) -> Result<Option<(Signal, String)>> {
        let ranks = self.ranks;
        if ranks.is_alone() {
            return Ok(signals.received().map(|signal| (signal, String::new())));
        }
        let all = ranks.gather(&signals.received().map(|signal| signal.name.to_owned()))?;
        let received = all.into_iter().enumerate().find_map(|(rank, name)| Some((rank, name?)));
        let signal = received.and_then(|(rank, name)| {
            Some((Signal::named(&name)?, format!(" on rank {rank} ({})", ranks.host(rank))))
        });
        Ok(signal)
    }

    fn at_its_place(&self, error: Error) -> anyhow::Error {
        at_its_place(error, &self.loaded.source)
    }

    /// Reads the test data of a run that is resumed, if they are others than before: those may be gone by now.
    fn check_other_test_data<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: &RunDirectory,
    ) -> Result<()> {
        let before = LoadedConfig::of_run(directory, &[])?.config.training.test_data;
        if before == self.loaded.config.training.test_data {
            return Ok(());
        }
        test_data::check(self.loaded, &session.task.data_files(), directory, self.device)
    }

    /// Creates and locks the directory of a new run.
    fn start<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        of_teacher: Option<&TeacherScores>,
    ) -> Result<(RunDirectory, Lock)> {
        let resolved = to_resolved_toml(&session.config)?;
        let n_parameters = session.params.n_parameters() as u64;
        let name = run_name(self.args, self.loaded);
        let manifest = Manifest {
            name: Some(name.clone()),
            data: session.files(),
            instructions: Instructions::for_precision(
                session.config.training.precision,
                self.device,
            ),
            ..Manifest::new(self.device, session.task.sizes(), n_parameters)
        };
        let directory = RunDirectory::create(&self.args.runs, &name)?;
        let lock = Lock::acquire(directory.path())?;
        for (name, bytes) in session.task.kept_files()? {
            replace(&directory.path().join(name), &bytes)?;
        }
        of_teacher.map_or(Ok(()), |scores| scores.write(directory.path()))?;
        if let Err(error) = test_data::check(self.loaded, &manifest.data, &directory, self.device) {
            // Nothing is in it yet that the next start does not write again.
            fs::remove_dir_all(directory.path())?;
            return Err(error);
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
        let samples = SampleLines::append(directory.path())?;
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
        kept: Option<(&RunDirectory, &Checkpoints)>,
        observers: &mut [Box<dyn Observer>],
        signals: &SignalHandlers,
    ) -> tealight_train::Result<()> {
        let Train { stop_after, time_limit, .. } = self.args;
        let is_time_up = || time_limit.is_some_and(|limit| self.started.elapsed() >= *limit);
        let is_stop_requested = || signals.received().is_some() || is_time_up();

        let started = Instant::now();
        let total_steps = session.config.training.steps;
        if let Some(stop) = stop_after.filter(|stop| *stop > total_steps) {
            self.log(&format!(
                "`--stop-after {stop}` has no effect: the run ends at `training.steps` = {total_steps}"
            ));
        }
        let event = Event::RunStarted {
            directory: kept.map(|(directory, _)| directory.path()),
            step: session.progress.step,
            total_steps,
            n_parameters: session.params.n_parameters(),
        };
        notify(observers, &event)?;
        let until = stop_after.unwrap_or(total_steps);
        let checkpoints = kept.map(|(_, checkpoints)| checkpoints);
        let result = fit_unless_stopped(session, until, &is_stop_requested, checkpoints, observers)
            .map_err(|error| explain_out_of_memory(error, session));
        let (step, seconds) = (session.progress.step, started.elapsed().as_secs_f64());
        result.and(notify(observers, &Event::Finished { step, seconds }))
    }
}
