//! The table of runs and models by name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use tealight_train::run::RunDirectory;
use tealight_train::storage::hub::HubCache;

use super::worker::{Settings, Worker};
use crate::serve::fault::Fault;

/// The most runs and models of all directories together.
const MAX_ENTRIES: usize = 2000;
/// How many folders deep a directory is searched.
const DEPTH: usize = 3;
/// The files of a folder with a model.
const MODEL_FILES: [&str; 2] = ["tealight.json", "config.json"];
/// Files of a run that change when its weights do.
const VERSION_FILES: [&str; 3] = ["manifest.json", "checkpoints/latest", "checkpoints/best"];

/// The table.
pub(in crate::serve) struct Catalogue {
    /// The directories that are searched again and again.
    directories: Vec<PathBuf>,
    settings: Settings,
    entries: Mutex<BTreeMap<String, Entry>>,
}

/// A run or a model.
struct Entry {
    path: PathBuf,
    is_run: bool,
    /// Whether it was found in a directory; what was given by its path stays when it is deleted.
    is_found: bool,
    /// The thread of its model, once it was asked, and the times of [`VERSION_FILES`] before.
    worker: Option<(Worker, Version)>,
}

type Version = [Option<SystemTime>; VERSION_FILES.len()];

/// A line of the table.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Item {
    pub(in crate::serve) name: String,
    pub(in crate::serve) path: PathBuf,
    pub(in crate::serve) is_run: bool,
}

impl Catalogue {
    /// The table of `paths`: runs, models, and directories that hold them.
    ///
    /// # Errors
    /// If a path is none of these.
    pub(in crate::serve) fn new(paths: &[PathBuf], settings: Settings) -> Result<Self> {
        let mut directories = Vec::new();
        let mut entries = BTreeMap::new();
        for path in paths {
            match Found::at(path) {
                Some(found) => insert(&mut entries, path.clone(), found, false),
                None if path.is_dir() && !is_checkpoint(path) => directories.push(path.clone()),
                None => {
                    HubCache::of_environment()
                        .locate(path)
                        .with_context(|| "expected runs, models, or a directory of them")?;
                    insert(&mut entries, path.clone(), Found::Model, false);
                }
            }
        }
        let catalogue = Self { directories, settings, entries: Mutex::new(entries) };
        catalogue.scan();
        if catalogue.directories.is_empty() && catalogue.entries().is_empty() {
            bail!("there is nothing to serve");
        }
        Ok(catalogue)
    }

    /// Searches the directories again: adds what is new and removes what is gone.
    pub(in crate::serve) fn scan(&self) {
        let mut found = Vec::new();
        for directory in &self.directories {
            search(directory, DEPTH, &mut found);
        }
        let mut entries = self.entries();
        entries.retain(|_, entry| {
            !entry.is_found || found.iter().any(|(path, _)| *path == entry.path)
        });
        for (path, kind) in found {
            let is_known = entries.values().any(|entry| entry.path == path);
            if !is_known && entries.len() < MAX_ENTRIES {
                insert(&mut entries, path, kind, true);
            }
        }
    }

    /// All runs and models, by name.
    pub(in crate::serve) fn items(&self) -> Vec<Item> {
        let entries = self.entries();
        entries.iter().map(|(name, entry)| entry.item(name)).collect()
    }

    /// The run or model called `name`; the directories are searched again if there is none.
    pub(in crate::serve) fn item(&self, name: &str) -> Result<Item, Fault> {
        let find = || self.entries().get(name).map(|entry| entry.item(name));
        let found = find().or_else(|| {
            self.scan();
            find()
        });
        found.ok_or_else(|| {
            Fault::missing(format!("there is no run and no model called `{name}`; `/` lists all"))
        })
    }

    /// The run called `name`.
    pub(in crate::serve) fn run(&self, name: &str) -> Result<Item, Fault> {
        let item = self.item(name)?;
        if item.is_run {
            return Ok(item);
        }
        Err(Fault::missing(format!("`{name}` is a model, not a run: `/play` lets you try it")))
    }

    /// The way to the model called `name`. Its thread is started when it is first asked, and again when a run has a
    /// new checkpoint.
    pub(in crate::serve) fn worker(&self, name: &str) -> Result<Worker, Fault> {
        let path = self.item(name)?.path;
        let version = version(&path);
        let mut entries = self.entries();
        let entry = entries.get_mut(name).ok_or_else(|| Fault::missing("the run was deleted"))?;
        match &entry.worker {
            Some((worker, before)) if !worker.has_ended() && *before == version => {
                Ok(worker.clone())
            }
            _ => {
                let worker = Worker::start(path, self.settings.clone())?;
                entry.worker = Some((worker.clone(), version));
                Ok(worker)
            }
        }
    }

    /// The name of the only model, which requests without a name are for.
    pub(in crate::serve) fn only(&self) -> Result<String, Fault> {
        let entries = self.entries();
        if let (Some(name), 1) = (entries.keys().next(), entries.len()) {
            return Ok(name.clone());
        }
        let n = entries.len();
        Err(Fault::bad(format!("there are {n} models: name one, as in `/models/NAME`")))
    }

    /// The number of models in memory.
    pub(in crate::serve) fn n_loaded(&self) -> usize {
        let is_loaded =
            |entry: &&Entry| entry.worker.as_ref().is_some_and(|(worker, _)| !worker.has_ended());
        self.entries().values().filter(is_loaded).count()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        // Each change of the table is complete before anything can panic.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn item(&self, name: &str) -> Item {
        Item { name: name.to_owned(), path: self.path.clone(), is_run: self.is_run }
    }
}

/// What a folder is.
#[derive(Clone, Copy)]
enum Found {
    Run,
    Model,
}

impl Found {
    fn at(path: &Path) -> Option<Self> {
        if RunDirectory::open(path).is_ok_and(|run| run.path() == path) {
            return Some(Self::Run);
        }
        MODEL_FILES.iter().any(|file| path.join(file).is_file()).then_some(Self::Model)
    }
}

/// Whether a path is within a run.
fn is_checkpoint(path: &Path) -> bool {
    RunDirectory::open(path).is_ok()
}

/// Collects the runs and models below a directory, in the order of their names. Unreadable folders are left out.
fn search(directory: &Path, depth: usize, found: &mut Vec<(PathBuf, Found)>) {
    let Ok(children) = fs::read_dir(directory) else { return };
    let folders = children.flatten().filter(|child| child.file_type().is_ok_and(|it| it.is_dir()));
    let mut paths: Vec<PathBuf> = folders.map(|folder| folder.path()).collect();
    paths.sort();
    for path in paths.into_iter().take(MAX_ENTRIES) {
        match Found::at(&path) {
            Some(kind) => found.push((path, kind)),
            None if depth > 1 => search(&path, depth - 1, found),
            None => {}
        }
    }
}

/// Adds an entry under the last part of its path, with a number if that is taken.
fn insert(entries: &mut BTreeMap<String, Entry>, path: PathBuf, found: Found, is_found: bool) {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
    let base = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = (1..).map(|n| if n == 1 { base.clone() } else { format!("{base}({n})") });
    let mut free = names.filter(|name| !entries.contains_key(name));
    let name = free.next().expect("invariant: there are more numbers than entries");
    let is_run = matches!(found, Found::Run);
    entries.insert(name, Entry { path, is_run, is_found, worker: None });
}

/// When the files that tell the weights of a run apart were written; all `None` for a folder.
fn version(path: &Path) -> Version {
    VERSION_FILES.map(|file| fs::metadata(path.join(file)).ok()?.modified().ok())
}
