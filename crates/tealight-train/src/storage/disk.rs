//! The calls that write, rename and remove files: all that `files.rs`, and so checkpoints, go through.
//!
//! Each is a point at which a process can die or a disk be full. Tests let that happen at every one
//! of them ([`fault`]).

use std::fs::{self, File};
use std::io::{Result, Write as _};
use std::path::Path;

/// A new file, or an old one without its content.
pub(super) fn create(path: &Path) -> Result<File> {
    fault::point("create", path)?;
    File::create(path)
}

/// All of `bytes`, at the end of what has been written.
pub(super) fn write_all(file: &mut File, bytes: &[u8], path: &Path) -> Result<()> {
    if let Err(error) = fault::point("write", path) {
        file.write_all(&bytes[..bytes.len() / 2])?;
        return Err(error);
    }
    fault::written(path);
    file.write_all(bytes)
}

/// Waits until the disk has the file, or knows what is in the directory.
pub(super) fn sync(file: &File, path: &Path) -> Result<()> {
    fault::point("sync", path)?;
    fault::synced(path);
    file.sync_all()
}

/// A new directory, and those above it.
pub(super) fn create_directories(path: &Path) -> Result<()> {
    fault::point("create", path)?;
    fs::create_dir_all(path)
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fault::point("rename", to)?;
    fault::renamed(from, to);
    fs::rename(from, to)
}

pub(super) fn remove_file(path: &Path) -> Result<()> {
    fault::point("remove", path)?;
    fs::remove_file(path)
}

/// A directory with all that is in it: file by file.
pub(super) fn remove_directory(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let is_directory = entry.file_type()?.is_dir();
        if is_directory { remove_directory(&entry.path()) } else { remove_file(&entry.path()) }?;
    }
    fault::point("remove", path)?;
    fs::remove_dir(path)
}

#[cfg(not(test))]
mod fault {
    use std::io::Result;
    use std::path::Path;

    #[expect(clippy::unnecessary_wraps, reason = "in tests it fails")]
    pub(super) fn point(_: &str, _: &Path) -> Result<()> {
        Ok(())
    }

    pub(super) fn written(_: &Path) {}
    pub(super) fn synced(_: &Path) {}
    pub(super) fn renamed(_: &Path, _: &Path) {}
}

#[cfg(test)]
pub(crate) mod fault {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::io::{Error, ErrorKind, Result};
    use std::path::{Path, PathBuf};

    /// What goes wrong at a call.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum Fault {
        /// The process dies: this call does nothing or half of it, and none comes after it.
        Death,
        /// The call fails, as on a full disk; those after it succeed.
        Failure(ErrorKind),
    }

    struct Plan {
        fault: Fault,
        calls_left: usize,
        /// The directory that a rename has changed and no sync has made durable yet.
        unsynced: Option<PathBuf>,
        /// Files that were written and not synced.
        unsynced_files: BTreeSet<PathBuf>,
    }

    thread_local! {
        static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
    }

    /// `f`, in which call number `n` (from 0) meets `fault`; and whether `f` came so far.
    pub(crate) fn at<R>(n: usize, fault: Fault, f: impl FnOnce() -> R) -> (R, bool) {
        PLAN.set(Some(Plan {
            fault,
            calls_left: n + 1,
            unsynced: None,
            unsynced_files: BTreeSet::new(),
        }));
        let result = f();
        let plan = PLAN.take().unwrap();
        assert!(plan.unsynced.is_none(), "{:?} is not durable", plan.unsynced);
        (result, plan.calls_left == 0)
    }

    pub(super) fn point(call: &str, path: &Path) -> Result<()> {
        PLAN.with_borrow_mut(|plan| {
            let Some(plan) = plan else { return Ok(()) };
            // Else a power cut could undo the rename and keep what came after it.
            let directory = plan.unsynced.take();
            assert!(
                directory.is_none() || call == "sync" && directory.as_deref() == Some(path),
                "{call} {path:?} comes before the sync of {directory:?}"
            );
            match (plan.calls_left, plan.fault) {
                (0, Fault::Death) => return Err(Error::other("dead")),
                (0, Fault::Failure(_)) => {}
                (1, fault) => {
                    plan.calls_left = 0;
                    let kind =
                        if let Fault::Failure(kind) = fault { kind } else { ErrorKind::Other };
                    return Err(Error::new(kind, format!("{call} {}", path.display())));
                }
                _ => plan.calls_left -= 1,
            }
            Ok(())
        })
    }

    pub(super) fn written(path: &Path) {
        with_plan(|plan| _ = plan.unsynced_files.insert(path.to_owned()));
    }

    pub(super) fn synced(path: &Path) {
        with_plan(|plan| _ = plan.unsynced_files.remove(path));
    }

    /// What gets its name must be on the disk, or a power cut may leave the name without the content.
    pub(super) fn renamed(from: &Path, to: &Path) {
        with_plan(|plan| {
            let loose = plan.unsynced_files.iter().find(|path| path.starts_with(from));
            assert!(loose.is_none(), "{loose:?} is renamed before it is synced");
            // Elsewhere than on Unix a directory cannot be synced.
            plan.unsynced = if cfg!(unix) { to.parent().map(Path::to_owned) } else { None };
        });
    }

    fn with_plan(change: impl FnOnce(&mut Plan)) {
        PLAN.with_borrow_mut(|plan| plan.as_mut().map(change));
    }
}
