//! What all requests share.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::counters::Counters;
use super::fault::Fault;
use super::http::security::Access;
use super::limits::{MAX_FOLLOWERS, MAX_METRICS};
use super::models::catalogue::Catalogue;

/// What all requests share.
pub(super) struct App {
    pub(super) access: Access,
    pub(super) catalogue: Catalogue,
    pub(super) counters: Arc<Counters>,
    followers: Arc<Semaphore>,
    /// One run is read at a time, because its lines take memory until they are summarised.
    reading: Arc<Semaphore>,
}

/// As the routes get it.
pub(super) type Shared = Arc<App>;

impl App {
    pub(super) fn new(access: Access, catalogue: Catalogue, counters: Arc<Counters>) -> Self {
        let followers = Arc::new(Semaphore::new(MAX_FOLLOWERS));
        Self { access, catalogue, counters, followers, reading: Arc::new(Semaphore::new(1)) }
    }

    /// A place for an answer that stays open, until it is dropped.
    ///
    /// # Errors
    /// If [`MAX_FOLLOWERS`] are open.
    pub(super) fn follow(&self) -> Result<OwnedSemaphorePermit, Fault> {
        self.followers.clone().try_acquire_owned().map_err(|_| {
            Fault::busy(format!("{MAX_FOLLOWERS} pages are followed live: close one of them"))
        })
    }

    /// The turn to read a run, until it is dropped.
    ///
    /// # Errors
    /// If the server ends.
    pub(super) async fn turn_to_read(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let turn = self.reading.clone().acquire_owned().await;
        turn.map_err(|_| Fault::busy("the server ends".to_owned()))
    }

    /// The number of answers that stay open.
    pub(super) fn n_followers(&self) -> usize {
        MAX_FOLLOWERS - self.followers.available_permits()
    }
}

/// Refuses a run whose metrics take more memory than a page is worth.
pub(super) fn check_size(run: &Path) -> anyhow::Result<()> {
    let metrics = run.join("metrics.jsonl");
    let size = fs::metadata(&metrics).map_or(0, |file| file.len());
    anyhow::ensure!(
        size <= MAX_METRICS,
        "`{}` has {size} bytes, and pages are made of at most {MAX_METRICS}: use `tealight report`",
        metrics.display()
    );
    Ok(())
}
