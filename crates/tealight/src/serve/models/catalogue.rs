//! What requests find: runs and models by name, and the threads of models.
//!
//! Disks are read on other threads than that of the connections, and directories at most once in [`SEARCH_TIME`]: who
//! asks for an unknown name waits for the next search, together with all others who do.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tealight_train::storage::hub::HubCache;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until};

use super::search::{Found, Kind, is_checkpoint, is_in_model};
use super::table::{Item, Table};
use super::worker::{Settings, Worker};
use crate::serve::fault::Fault;
use crate::serve::http::body::beside;
use crate::serve::limits::SEARCH_TIME;

/// The table of runs and models.
pub(in crate::serve) struct Catalogue {
    table: Arc<Table>,
    /// When the last search began. It is locked while one runs.
    searched: Arc<Mutex<Option<Instant>>>,
}

impl Catalogue {
    /// The table of `paths`: runs, models, and directories that hold them.
    ///
    /// # Errors
    /// If there is no run, no model and no directory at a path.
    pub(in crate::serve) fn new(paths: &[PathBuf], settings: Settings) -> Result<Self> {
        let (mut directories, mut given) = (Vec::new(), Vec::new());
        for path in paths {
            match Kind::at(path) {
                Some(kind) => given.push(Found::new(path.clone(), kind)),
                None if path.is_dir() && !is_checkpoint(path) => directories.push(path.clone()),
                None if path.is_file() && !is_checkpoint(path) && !is_in_model(path) => {
                    bail!(
                        "`{}` is a file: expected runs, models, or a directory of them",
                        path.display()
                    );
                }
                None => {
                    HubCache::of_environment()
                        .locate(path)
                        .with_context(|| "expected runs, models, or a directory of them")?;
                    given.push(Found::new(path.clone(), Kind::Model));
                }
            }
        }
        if directories.is_empty() && given.is_empty() {
            bail!("there is nothing to serve");
        }
        let table = Arc::new(Table::new(given, directories, settings));
        table.search();
        Ok(Self { table, searched: Arc::default() })
    }

    /// Searches the directories again, unless that was done within [`SEARCH_TIME`].
    pub(in crate::serve) async fn refresh(&self) -> Result<(), Fault> {
        let searched = self.searched.clone().lock_owned().await;
        if searched.is_some_and(|before| before.elapsed() < SEARCH_TIME) {
            return Ok(());
        }
        self.search(searched).await
    }

    /// Waits for a search that begins after this is called.
    async fn renew(&self) -> Result<(), Fault> {
        let asked = Instant::now();
        let searched = self.searched.clone().lock_owned().await;
        match *searched {
            Some(before) if before > asked => return Ok(()),
            Some(before) => sleep_until(before + SEARCH_TIME).await,
            None => {}
        }
        self.search(searched).await
    }

    /// Searches the directories. The search is finished also if nobody waits for it any more, so that there is one at a
    /// time.
    async fn search(&self, mut searched: OwnedMutexGuard<Option<Instant>>) -> Result<(), Fault> {
        if self.table.directories.is_empty() {
            return Ok(());
        }
        *searched = Some(Instant::now());
        let table = self.table.clone();
        beside(move || {
            table.search();
            drop(searched);
        })
        .await
    }

    /// All runs and models, by name.
    pub(in crate::serve) fn items(&self) -> Vec<Item> {
        self.table.items()
    }

    /// The run or model called `name`; the directories are searched again if there is none.
    async fn item(&self, name: &str) -> Result<Item, Fault> {
        if let Some(item) = self.table.item(name) {
            return Ok(item);
        }
        self.renew().await?;
        self.table.item(name).ok_or_else(|| {
            Fault::missing(format!("there is no run and no model called `{name}`; `/` lists all"))
        })
    }

    /// The run called `name`.
    pub(in crate::serve) async fn run(&self, name: &str) -> Result<Item, Fault> {
        let item = self.item(name).await?;
        if item.is_run {
            return Ok(item);
        }
        Err(Fault::missing(format!("`{name}` is a model, not a run: `/play` lets you try it")))
    }

    /// The way to the model called `name`. Its thread is started when it is first asked, and again when a run has a
    /// new checkpoint.
    pub(in crate::serve) async fn worker(&self, name: &str) -> Result<Worker, Fault> {
        if let Some(worker) = self.table.current(name) {
            return Ok(worker);
        }
        let item = self.item(name).await?;
        let table = self.table.clone();
        beside(move || table.thread(item)).await?
    }

    /// The name of the only model, which requests without a name are for.
    pub(in crate::serve) fn only(&self) -> Result<String, Fault> {
        match self.table.some_names() {
            (mut names, 1) => Ok(names.remove(0)),
            (_, n) => {
                Err(Fault::bad(format!("there are {n} models: name one, as in `/models/NAME`")))
            }
        }
    }

    /// The number of models in memory.
    pub(in crate::serve) fn n_loaded(&self) -> usize {
        self.table.n_loaded()
    }
}
