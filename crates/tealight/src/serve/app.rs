//! What all requests share.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::counters::Counters;
use super::fault::Fault;
use super::http::security::Access;
use super::limits::{
    BODY_TIME, MAX_FOLLOWERS, MAX_JSON, MAX_LONG_BODIES, MAX_METRICS, MAX_RESULTS,
};
use super::models::catalogue::Catalogue;

/// What all requests share.
pub(super) struct App {
    pub(super) access: Access,
    pub(super) catalogue: Catalogue,
    pub(super) counters: Arc<Counters>,
    followers: Arc<Semaphore>,
    /// One run is read at a time, because its lines take memory until they are summarised.
    reading: Arc<Semaphore>,
    /// Places for bodies that are longer than [`MAX_JSON`].
    long_bodies: Arc<Semaphore>,
}

/// As the routes get it.
pub(super) type Shared = Arc<App>;

impl App {
    pub(super) fn new(access: Access, catalogue: Catalogue, counters: Arc<Counters>) -> Self {
        Self {
            access,
            catalogue,
            counters,
            followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
            reading: Arc::new(Semaphore::new(1)),
            long_bodies: Arc::new(Semaphore::new(MAX_LONG_BODIES)),
        }
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

    /// A place for a body of `n_bytes`, until it is dropped. Those of pictures are long, and wait for each other.
    ///
    /// # Errors
    /// If no place becomes free within [`BODY_TIME`].
    pub(super) async fn place_for(
        &self,
        n_bytes: usize,
    ) -> Result<Option<OwnedSemaphorePermit>, Fault> {
        if n_bytes <= MAX_JSON {
            return Ok(None);
        }
        let place = timeout(BODY_TIME, self.long_bodies.clone().acquire_owned()).await;
        let place = place.ok().and_then(Result::ok).map(Some);
        place.ok_or_else(|| {
            Fault::busy(format!("{MAX_LONG_BODIES} long requests are answered: try again later"))
        })
    }

    /// The number of answers that stay open.
    pub(super) fn n_followers(&self) -> usize {
        MAX_FOLLOWERS - self.followers.available_permits()
    }
}

/// Refuses a run whose files take more memory than a page is worth.
pub(super) fn check_size(run: &Path) -> anyhow::Result<()> {
    let shorter = ": use `tealight report`";
    let files = [
        ("metrics.jsonl", MAX_METRICS, shorter),
        ("samples.jsonl", MAX_RESULTS, shorter),
        ("report.json", MAX_RESULTS, ""),
    ];
    for (name, limit, advice) in files {
        let path = run.join(name);
        let size = fs::metadata(&path).map_or(0, |file| file.len());
        anyhow::ensure!(
            size <= limit,
            "`{}` has {size} bytes, and pages are made of at most {limit}{advice}",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::time::Duration;

    use tealight_ops::ProductPrecision;
    use tokio::runtime::Builder;

    use super::*;
    use crate::args::shared::Weights;
    use crate::serve::http::security::Token;
    use crate::serve::models::worker::Settings;
    use crate::system::device::DeviceName;

    #[test]
    fn long_bodies_and_reading_wait_for_a_place() {
        let counters = Arc::new(Counters::default());
        let settings = Settings {
            weights: Weights { checkpoint: None, device: DeviceName::Cpu },
            precision: ProductPrecision::default(),
            counters: counters.clone(),
            memory: 0,
            answer_time: Duration::from_secs(1),
            loading: Arc::default(),
        };
        let folder = tempfile::tempdir().unwrap();
        let access = Access::new("127.0.0.1", [127, 0, 0, 1].into(), Token::Absent).unwrap();
        let catalogue = Catalogue::new(&[folder.path().to_owned()], settings).unwrap();
        let app = App::new(access, catalogue, counters);
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let place = || app.place_for(MAX_JSON + 1);
            let mut places = Vec::new();
            for _ in 0..MAX_LONG_BODIES {
                places.push(place().await.unwrap());
            }
            assert!(is_waiting(place()).await && !is_waiting(app.place_for(MAX_JSON)).await);
            places.pop();
            assert!(!is_waiting(place()).await);
            let turn = app.turn_to_read().await.unwrap();
            assert!(is_waiting(app.turn_to_read()).await);
            drop(turn);
            assert!(!is_waiting(app.turn_to_read()).await);
        });
    }

    async fn is_waiting(place: impl Future) -> bool {
        timeout(Duration::from_millis(10), place).await.is_err()
    }
}
