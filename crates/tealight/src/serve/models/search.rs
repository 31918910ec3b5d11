//! What lies in directories: runs, models, and whether a run has new weights. All of it reads a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tealight_train::run::RunDirectory;

/// The most runs and models of all directories together.
pub(super) const MAX_ENTRIES: usize = 2000;
/// How many folders deep a directory is searched.
const DEPTH: usize = 3;
/// The files of a folder with a model.
const MODEL_FILES: [&str; 2] = ["tealight.json", "config.json"];
/// Files of a run that change when its weights do.
const VERSION_FILES: [&str; 3] = ["manifest.json", "checkpoints/latest", "checkpoints/best"];

/// What a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Run,
    Model,
}

impl Kind {
    pub(super) fn at(path: &Path) -> Option<Self> {
        if RunDirectory::open(path).is_ok_and(|run| run.path() == path) {
            return Some(Self::Run);
        }
        MODEL_FILES.iter().any(|file| path.join(file).exists()).then_some(Self::Model)
    }
}

/// A run or a model that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    /// The last part of its path.
    pub(super) name: String,
}

impl Found {
    pub(super) fn new(path: PathBuf, kind: Kind) -> Self {
        let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
        let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { path, kind, name }
    }
}

/// Whether a path is within a run.
pub(super) fn is_checkpoint(path: &Path) -> bool {
    RunDirectory::open(path).is_ok()
}

/// Whether the file at a path is in the folder of a model, which it stands for.
pub(super) fn is_in_model(path: &Path) -> bool {
    path.parent().and_then(Kind::at).is_some()
}

/// The runs and models below directories, in the order of their names. Unreadable folders are left out.
pub(super) fn search(directories: &[PathBuf]) -> Vec<Found> {
    let mut found = Vec::new();
    for directory in directories {
        search_below(directory, DEPTH, &mut found);
    }
    found
}

fn search_below(directory: &Path, depth: usize, found: &mut Vec<Found>) {
    let Ok(children) = fs::read_dir(directory) else { return };
    let folders = children.flatten().filter(|child| child.file_type().is_ok_and(|it| it.is_dir()));
    let mut paths: Vec<PathBuf> = folders.map(|folder| folder.path()).collect();
    paths.sort();
    for path in paths.into_iter().take(MAX_ENTRIES) {
        match Kind::at(&path) {
            Some(kind) => found.push(Found::new(path, kind)),
            None if depth > 1 => search_below(&path, depth - 1, found),
            None => {}
        }
    }
}

/// When the files that tell the weights of a run apart were written; all `None` for a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version([Option<SystemTime>; VERSION_FILES.len()]);

impl Version {
    pub(super) fn read(path: &Path) -> Self {
        Self(VERSION_FILES.map(|file| fs::metadata(path.join(file)).ok()?.modified().ok()))
    }
}
