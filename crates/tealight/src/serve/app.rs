//! What all requests share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::counters::Counters;
use super::fault::Fault;
use super::http::security::Access;
use super::limits::MAX_FOLLOWERS;
use super::models::catalogue::Catalogue;

/// What all requests share.
pub(super) struct App {
    pub(super) access: Access,
    pub(super) catalogue: Catalogue,
    pub(super) counters: Arc<Counters>,
    followers: Arc<Semaphore>,
}

/// As the routes get it.
pub(super) type Shared = Arc<App>;

impl App {
    pub(super) fn new(access: Access, catalogue: Catalogue, counters: Arc<Counters>) -> Self {
        let followers = Arc::new(Semaphore::new(MAX_FOLLOWERS));
        Self { access, catalogue, counters, followers }
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

    /// The number of answers that stay open.
    pub(super) fn n_followers(&self) -> usize {
        MAX_FOLLOWERS - self.followers.available_permits()
    }
}
