//! The calls that change what is on the disk: all that `run` and what it keeps go through.
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
    file.write_all(bytes)
}

/// Waits until the disk has the file, or knows what is in the directory.
pub(super) fn sync(file: &File, path: &Path) -> Result<()> {
    fault::point("sync", path)?;
    file.sync_all()
}

/// A new directory, and those above it.
pub(super) fn create_directories(path: &Path) -> Result<()> {
    fault::point("create", path)?;
    fs::create_dir_all(path)
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fault::point("rename", to)?;
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
}

#[cfg(test)]
pub(super) mod fault {
    use std::cell::RefCell;
    use std::io::{Error, ErrorKind, Result};
    use std::path::{Path, PathBuf};

    /// What goes wrong at a call.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(in crate::run) enum Fault {
        /// The process dies: this call does nothing or half of it, and none comes after it.
        Death,
        /// The call fails, as on a full disk; those after it succeed.
        Failure(ErrorKind),
    }

    struct Plan {
        fault: Fault,
        calls_left: usize,
        /// What a rename has changed and no sync has made durable yet.
        unsynced: Option<PathBuf>,
    }

    thread_local! {
        static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
    }

    /// `f`, in which call number `n` (from 0) meets `fault`; and whether `f` came so far.
    pub(in crate::run) fn at<R>(n: usize, fault: Fault, f: impl FnOnce() -> R) -> (R, bool) {
        PLAN.set(Some(Plan { fault, calls_left: n + 1, unsynced: None }));
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
            if call == "rename" {
                plan.unsynced = path.parent().map(Path::to_owned);
            }
            Ok(())
        })
    }
}
