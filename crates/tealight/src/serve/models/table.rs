//! The table of runs and models by name, with the threads of those that are in use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::search::{Found, Kind, MAX_ENTRIES, Version, search};
use super::worker::{Settings, Worker};
use crate::serve::fault::Fault;
use crate::serve::limits::SEARCH_TIME;

/// The table. Its lock is held for changes of memory alone, never while a disk is read.
pub(super) struct Table {
    /// The directories that are searched again and again.
    pub(super) directories: Vec<PathBuf>,
    settings: Settings,
    entries: Mutex<BTreeMap<String, Entry>>,
}

/// A run or a model.
struct Entry {
    path: PathBuf,
    is_run: bool,
    /// Whether it was found in a directory; what was given by its path stays when it is deleted.
    is_found: bool,
    /// The thread of its model, once it was asked.
    thread: Option<Thread>,
}

/// The thread of a model.
struct Thread {
    worker: Worker,
    /// The version of the weights that were loaded.
    version: Version,
    /// When the version was last compared with that on the disk.
    compared: Instant,
    /// When somebody last asked.
    used: Instant,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Item {
    pub(in crate::serve) name: String,
    pub(in crate::serve) path: PathBuf,
    pub(in crate::serve) is_run: bool,
}

impl Table {
    /// The table of what is given by its path, and of what lies in directories.
    pub(super) fn new(given: Vec<Found>, directories: Vec<PathBuf>, settings: Settings) -> Self {
        let mut entries = BTreeMap::new();
        for found in given {
            insert(&mut entries, found, false);
        }
        Self { directories, settings, entries: Mutex::new(entries) }
    }

    /// Searches the directories: adds what is new and removes what is gone.
    pub(super) fn search(&self) {
        let found = search(&self.directories);
        let paths: BTreeSet<&Path> = found.iter().map(|one| &*one.path).collect();
        let mut entries = self.entries();
        entries.retain(|_, entry| !entry.is_found || paths.contains(&*entry.path));
        let known: BTreeSet<PathBuf> = entries.values().map(|entry| entry.path.clone()).collect();
        let new: Vec<&Found> = found.iter().filter(|one| !known.contains(&one.path)).collect();
        for one in new.into_iter().take(MAX_ENTRIES.saturating_sub(known.len())) {
            insert(&mut entries, one.clone(), true);
        }
    }

    /// All runs and models, by name.
    pub(super) fn items(&self) -> Vec<Item> {
        let entries = self.entries();
        entries.iter().map(|(name, entry)| entry.item(name)).collect()
    }

    /// The run or model called `name`.
    pub(super) fn item(&self, name: &str) -> Option<Item> {
        self.entries().get(name).map(|entry| entry.item(name))
    }

    /// The names, up to two.
    pub(super) fn some_names(&self) -> (Vec<String>, usize) {
        let entries = self.entries();
        (entries.keys().take(2).cloned().collect(), entries.len())
    }

    /// The number of models in memory.
    pub(super) fn n_loaded(&self) -> usize {
        self.entries().values().filter(|entry| entry.n_bytes() > 0).count()
    }

    /// The thread of the model called `name`, if it is known to have the weights of now.
    pub(super) fn current(&self, name: &str) -> Option<Worker> {
        let mut entries = self.entries();
        let entry = entries.get_mut(name)?;
        let is_run = entry.is_run;
        let thread = entry.thread.as_mut().filter(|thread| !thread.worker.has_ended())?;
        let is_current = !is_run || thread.compared.elapsed() < SEARCH_TIME;
        is_current.then(|| thread.answer())
    }

    /// Returns the thread of a model. Starts one if the model has none, or if its weights on the disk have changed.
    pub(super) fn thread(self: &Arc<Self>, item: Item) -> Result<Worker, Fault> {
        let version = Version::read(&item.path);
        let mut entries = self.entries();
        let entry =
            entries.get_mut(&item.name).ok_or_else(|| Fault::missing("the run was deleted"))?;
        let is_current =
            |thread: &&mut Thread| !thread.worker.has_ended() && thread.version == version;
        if let Some(thread) = entry.thread.as_mut().filter(is_current) {
            thread.compared = Instant::now();
            return Ok(thread.answer());
        }
        let (table, name) = (self.clone(), item.name);
        let make_room = move || table.make_room(&name);
        let worker = Worker::start(item.path, self.settings.clone(), make_room)?;
        let now = Instant::now();
        entry.thread = Some(Thread { worker: worker.clone(), version, compared: now, used: now });
        Ok(worker)
    }

    /// Unloads models, the one first that was not used for longest, until the others fit into the memory for them. The
    /// one called `kept` stays; answers that an unloaded one has begun are finished.
    fn make_room(&self, kept: &str) {
        let mut entries = self.entries();
        while entries.values().map(Entry::n_bytes).sum::<u64>() > self.settings.memory {
            let others =
                entries.iter_mut().filter(|(name, entry)| *name != kept && entry.n_bytes() > 0);
            let oldest = others.min_by_key(|(_, entry)| entry.thread.as_ref().map(|one| one.used));
            let Some((_, entry)) = oldest else { return };
            entry.thread = None;
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        // Each change of the table is complete before anything can panic.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Thread {
    /// The way to the thread, for somebody who asks.
    fn answer(&mut self) -> Worker {
        self.used = Instant::now();
        self.worker.clone()
    }
}

impl Entry {
    fn item(&self, name: &str) -> Item {
        Item { name: name.to_owned(), path: self.path.clone(), is_run: self.is_run }
    }

    /// The bytes of the parameters in memory.
    fn n_bytes(&self) -> u64 {
        self.thread.as_ref().and_then(|thread| thread.worker.n_bytes()).unwrap_or(0)
    }
}

/// Adds an entry, with a number if its name is taken.
fn insert(entries: &mut BTreeMap<String, Entry>, found: Found, is_found: bool) {
    let Found { path, kind, name: base } = found;
    let names = (1..).map(|n| if n == 1 { base.clone() } else { format!("{base}({n})") });
    let mut free = names.filter(|name| !entries.contains_key(name));
    let name = free.next().expect("invariant: there are more numbers than entries");
    let is_run = kind == Kind::Run;
    entries.insert(name, Entry { path, is_run, is_found, thread: None });
}
