//! The thread of a model: it loads the model, then answers all requests that wait, together, until nobody can ask.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;

use axum::http::StatusCode;
use tealight_ops::{ProductPrecision, with_product_precision};
use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};
use tokio::sync::oneshot;

use super::batch::{self, Batched, Job, Waiting};
use super::loaded::Loaded;
use crate::args::shared::Weights;
use crate::serve::counters::Counters;
use crate::serve::fault::Fault;
use crate::serve::limits::{MAX_TOGETHER, MAX_WAITING};

/// How models are loaded and computed.
#[derive(Clone)]
pub(in crate::serve) struct Settings {
    pub(in crate::serve) weights: Weights,
    pub(in crate::serve) precision: ProductPrecision,
    pub(in crate::serve) counters: Arc<Counters>,
}

/// The way to the thread of a model.
#[derive(Clone)]
pub(in crate::serve) struct Worker {
    jobs: Sender<Job>,
    /// Known once the model is loaded.
    task: Arc<OnceLock<&'static str>>,
}

impl Worker {
    /// Starts the thread of the model at `path`.
    pub(super) fn start(path: PathBuf, settings: Settings) -> Result<Self, Fault> {
        let (jobs, waiting) = mpsc::channel(MAX_WAITING);
        let task = Arc::new(OnceLock::new());
        let known = task.clone();
        let work = move || {
            let precision = settings.precision;
            with_product_precision(precision, || work(&path, &settings, &known, waiting));
        };
        let started = thread::Builder::new().name("model".to_owned()).spawn(work);
        started.map_err(|error| {
            Fault::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot start a thread: {error}"))
        })?;
        Ok(Self { jobs, task })
    }

    /// Whether the thread has ended, because the model could not be loaded.
    pub(super) fn has_ended(&self) -> bool {
        self.jobs.is_closed()
    }

    /// The task of the model; waits until it is loaded.
    pub(in crate::serve) async fn task(&self) -> Result<&'static str, Fault> {
        match self.task.get() {
            Some(task) => Ok(task),
            None => self.run(|model| Ok(model.task())).await,
        }
    }

    /// The answer to `request`, computed together with others that wait.
    pub(in crate::serve) async fn ask<R: Batched>(&self, request: R) -> Result<R::Answer, Fault> {
        let (answer, answered) = oneshot::channel();
        self.send(R::job(Waiting { request, answer }))?;
        answered.await.map_err(|_| ended())?
    }

    /// The result of `work`, which the model's thread runs by itself.
    pub(in crate::serve) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Loaded) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Alone(Box::new(move |model| {
            if !answer.is_closed() {
                let _ = answer.send(model.and_then(work));
            }
        })))?;
        answered.await.map_err(|_| ended())?
    }

    fn send(&self, job: Job) -> Result<(), Fault> {
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => {
                Fault::busy(format!("{MAX_WAITING} requests wait for this model: try again later"))
            }
            TrySendError::Closed(_) => ended(),
        })
    }
}

fn ended() -> Fault {
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "the model failed; see the server's log")
}

/// Loads the model and answers until nobody can ask. If it cannot be loaded, all that wait get the reason.
fn work(
    path: &Path,
    settings: &Settings,
    task: &OnceLock<&'static str>,
    mut waiting: Receiver<Job>,
) {
    match Loaded::open(path, settings.weights) {
        Ok(model) => {
            task.get_or_init(|| model.task());
            while let Some(jobs) = next(&mut waiting) {
                settings.counters.computed(jobs.len());
                batch::answer(Ok(&model), jobs);
            }
        }
        Err(fault) => {
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
