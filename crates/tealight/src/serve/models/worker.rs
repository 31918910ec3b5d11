//! The thread of a model: it loads the model, then answers all requests that wait, together, until nobody can ask.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use axum::http::StatusCode;
use tealight_ops::{ProductPrecision, with_product_precision};
use tealight_train::pipelines::Pipeline;
use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::batch::{self, Job, Waiting, caught};
use super::loaded::Loaded;
use crate::args::shared::Weights;
use crate::serve::counters::Counters;
use crate::serve::fault::Fault;
use crate::serve::limits::{MAX_TOGETHER, MAX_WAITING};
use crate::terminal::output::warn;

/// How models are loaded and computed.
#[derive(Clone)]
pub(in crate::serve) struct Settings {
    pub(in crate::serve) weights: Weights,
    pub(in crate::serve) precision: ProductPrecision,
    pub(in crate::serve) counters: Arc<Counters>,
    /// The bytes for the parameters of all models together.
    pub(in crate::serve) memory: u64,
    /// How long somebody waits for an answer.
    pub(in crate::serve) answer_time: Duration,
    /// Held while a model is loaded and others are unloaded for it, so that no two are loaded at once.
    pub(in crate::serve) loading: Arc<Mutex<()>>,
}

/// What is known of a model once it is loaded.
#[derive(Clone, Copy)]
struct Known {
    task: &'static str,
    n_bytes: u64,
}

/// What is known of a model once it is loaded, or why it could not be loaded.
type Outcome = OnceLock<Result<Known, Fault>>;

/// The way to the thread of a model.
#[derive(Clone)]
pub(in crate::serve) struct Worker {
    jobs: Sender<Job>,
    outcome: Arc<Outcome>,
    answer_time: Duration,
}

impl Worker {
    /// Starts the thread of the model at `path`, which calls `loaded` once the model is in memory.
    pub(super) fn start(
        path: PathBuf,
        settings: Settings,
        loaded: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Fault> {
        let (jobs, waiting) = mpsc::channel(MAX_WAITING);
        let outcome = Arc::new(Outcome::new());
        let (known, answer_time) = (outcome.clone(), settings.answer_time);
        let work = move || {
            let precision = settings.precision;
            with_product_precision(precision, || work(&path, &settings, &known, waiting, loaded));
        };
        let started = thread::Builder::new().name("model".to_owned()).spawn(work);
        started.map_err(|error| {
            Fault::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot start a thread: {error}"))
        })?;
        Ok(Self { jobs, outcome, answer_time })
    }

    /// Whether the thread has ended, because the model could not be loaded.
    pub(super) fn has_ended(&self) -> bool {
        self.jobs.is_closed()
    }

    /// The bytes of the model's parameters, if it is in memory.
    pub(super) fn n_bytes(&self) -> Option<u64> {
        let known = self.outcome.get()?.as_ref().ok()?;
        (!self.has_ended()).then_some(known.n_bytes)
    }

    /// The task of the model; waits until it is loaded.
    pub(in crate::serve) async fn task(&self) -> Result<&'static str, Fault> {
        match self.outcome.get() {
            Some(outcome) => outcome.clone().map(|known| known.task),
            None => self.run(|model| Ok(model.task())).await,
        }
    }

    /// The answer of a pipeline to `request`, computed together with others that wait.
    pub(in crate::serve) async fn ask<P: Pipeline>(
        &self,
        request: P::Request,
    ) -> Result<P::Answer, Fault> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Request(Box::new(Waiting::<P> { request, answer })))?;
        self.wait(answered).await
    }

    /// The result of `work`, which the model's thread does by itself.
    pub(in crate::serve) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Loaded) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.run_while_waited_for(|model, _| work(model)).await
    }

    /// As [`Self::run`], for long work, which asks between its parts whether nobody waits for its result any more.
    pub(in crate::serve) async fn run_while_waited_for<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Loaded, &dyn Fn() -> bool) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Alone(Box::new(move |model| {
            if !answer.is_closed() {
                let done = caught(|| work(model?, &|| answer.is_closed()));
                let _ = answer.send(done);
            }
        })))?;
        self.wait(answered).await
    }

    /// What the model's thread sends. A client that is gone does not wait, nor one that has waited for `answer_time`.
    async fn wait<T>(&self, answered: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
        let Ok(received) = timeout(self.answer_time, answered).await else {
            let seconds = self.answer_time.as_secs();
            return Err(Fault::busy(format!("the answer took longer than {seconds} s")));
        };
        received.map_err(|_| self.failure())?
    }

    fn send(&self, job: Job) -> Result<(), Fault> {
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => {
                Fault::busy(format!("{MAX_WAITING} requests wait for this model: try again later"))
            }
            TrySendError::Closed(_) => self.failure(),
        })
    }

    /// Why there is no answer: the model could not be loaded, or its thread has ended.
    fn failure(&self) -> Fault {
        match self.outcome.get() {
            Some(Err(fault)) => fault.clone(),
            _ => Fault::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the model failed; see the server's log",
            ),
        }
    }
}

/// Loads the model, after those that are being loaded, and answers until nobody can ask. If it cannot be loaded, stderr
/// and all that wait get the reason.
fn work(
    path: &Path,
    settings: &Settings,
    outcome: &Outcome,
    mut waiting: Receiver<Job>,
    loaded: impl FnOnce(),
) {
    // A panic while it is held leaves nothing half done.
    let turn = settings.loading.lock().unwrap_or_else(PoisonError::into_inner);
    match caught(|| Loaded::open(path, settings.weights)) {
        Ok(model) => {
            let _ = outcome.set(Ok(Known { task: model.task(), n_bytes: model.n_bytes() }));
            loaded();
            drop(turn);
            while let Some(jobs) = next(&mut waiting) {
                settings.counters.computed(jobs.len());
                batch::answer(Ok(&model), jobs);
            }
        }
        Err(fault) => {
            drop(turn);
            warn(&format!("{}: {}", path.display(), fault.rule));
            // Before the channel is closed: whoever finds it closed looks for the reason.
            let _ = outcome.set(Err(fault.clone()));
            waiting.close();
            while let Some(jobs) = next(&mut waiting) {
                batch::answer(Err(&fault), jobs);
            }
        }
    }
}

/// Waits for a job, and takes others that are there. `None` if there will be no more.
fn next(waiting: &mut Receiver<Job>) -> Option<Vec<Job>> {
    let mut jobs = vec![waiting.blocking_recv()?];
    while jobs.len() < MAX_TOGETHER {
        match waiting.try_recv() {
            Ok(job) => jobs.push(job),
            Err(_) => break,
        }
    }
    Some(jobs)
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn settings(answer_time: Duration) -> Settings {
        Settings {
            weights: Weights { checkpoint: None, device: "cpu".parse().unwrap() },
            precision: ProductPrecision::default(),
            counters: Arc::default(),
            memory: 0,
            answer_time,
            loading: Arc::default(),
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// The thread of a model that does not exist.
    fn worker(settings: Settings) -> Worker {
        Worker::start(PathBuf::from("no/such/model"), settings, || ()).unwrap()
    }

    #[test]
    fn one_model_is_loaded_at_a_time_and_nobody_waits_without_end() {
        let settings = settings(Duration::from_millis(20));
        let turn = settings.loading.clone();
        let other = turn.lock().unwrap();
        let worker = worker(settings);
        let late = runtime().block_on(worker.task()).unwrap_err();
        assert!(late.rule.contains("took longer"), "{late:?}");
        assert!(!worker.has_ended(), "loaded while another was");
        // The request above waits, too.
        (1..MAX_WAITING).for_each(|_| worker.send(Job::Alone(Box::new(|_| ()))).unwrap());
        let full = worker.send(Job::Alone(Box::new(|_| ()))).unwrap_err();
        assert!(full.rule.contains("requests wait"), "{full:?}");
        assert_eq!([late.status, full.status], [StatusCode::SERVICE_UNAVAILABLE; 2]);
        drop(other);
        while !worker.has_ended() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The answer was "the model failed" once the thread had ended.
    #[test]
    fn why_a_model_cannot_be_loaded_is_known_after_its_thread_has_ended() {
        let worker = worker(settings(Duration::from_mins(1)));
        while !worker.has_ended() {
            thread::sleep(Duration::from_millis(1));
        }
        let runtime = runtime();
        let asked = runtime.block_on(worker.run(|model| Ok(model.task())));
        for fault in [asked, runtime.block_on(worker.task())].map(Result::unwrap_err) {
            assert_eq!(fault.status, StatusCode::SERVICE_UNAVAILABLE, "{fault:?}");
            assert!(fault.rule.contains("no/such/model"), "{fault:?}");
        }
    }
}
