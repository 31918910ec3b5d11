//! The system calls that open, write, rename and remove files. `files.rs`, the lock of a run and its logs use no others
//! for this.
//!
//! At each of these calls, the process can die or the disk be full. Tests inject such a fault at every one of them
//! ([`fault`]).

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write as _};
use std::path::Path;

/// Creates a file in place of an existing one. A link that stands there is removed, and its target stays as it is.
pub(super) fn create(path: &Path) -> Result<File> {
    fault::point("create", path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => File::options().write(true).create_new(true).open(path),
    }
}

/// Opens a regular file for reading, also through a link to it.
pub(crate) fn open(path: &Path) -> Result<File> {
    fault::point("open", path)?;
    open_regular(File::options().read(true), path, Links::Followed)
}

/// Opens a regular file for appending; creates it if it does not exist. A link is refused.
pub(crate) fn append(path: &Path) -> Result<File> {
    fault::point("open", path)?;
    open_regular(File::options().create(true).append(true), path, Links::Refused)
}

/// Opens a regular file for reading and writing; creates it if it does not exist. A link is refused.
pub(crate) fn edit(path: &Path) -> Result<File> {
    fault::point("open", path)?;
    let mut options = File::options();
    options.create(true).read(true).write(true).truncate(false);
    open_regular(&mut options, path, Links::Refused)
}

/// Why a link in place of a file or a folder is refused.
pub(super) const NO_LINKS: &str = "it is a link, and nothing is written through links";

/// What happens to a link in place of a file.
#[derive(Clone, Copy, PartialEq)]
enum Links {
    Followed,
    Refused,
}

/// Opens a file without waiting, and refuses whatever is no regular file.
fn open_regular(options: &mut OpenOptions, path: &Path, links: Links) -> Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;

        use rustix::fs::OFlags;

        // A named pipe without a writer would wait.
        let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::NOFOLLOW, links == Links::Refused);
        options.custom_flags(flags.bits().cast_signed());
    }
    let is_link = || fs::symlink_metadata(path).is_ok_and(|file| file.is_symlink());
    let opened = options.open(path);
    if links == Links::Refused && is_link() {
        return Err(Error::other(NO_LINKS));
    }
    let file = opened?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(Error::other("it is no regular file")) }
}

/// Appends all of `bytes`.
pub(crate) fn write_all(file: &mut File, bytes: &[u8], path: &Path) -> Result<()> {
    let fault = fault::point("write", path);
    fault::written(path);
    if let Err(error) = fault {
        file.write_all(&bytes[..bytes.len() / 2])?;
        return Err(error);
    }
    file.write_all(bytes)
}

/// Flushes a file, or the entries of a directory, to the disk.
pub(crate) fn sync(file: &File, path: &Path) -> Result<()> {
    fault::point("sync", path)?;
    fault::synced(path);
    file.sync_all()
}

/// Creates a directory and its missing parents.
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

/// Removes a directory and its content, file by file.
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

    #[expect(clippy::unnecessary_wraps, reason = "the version for tests fails")]
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
    use std::collections::BTreeMap;
    use std::fs::{File, metadata};
    use std::io::{Error, ErrorKind, Result};
    use std::path::{Path, PathBuf};

    /// The injected fault.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum Fault {
        /// The process dies: this call does nothing or half of its work, and every later call fails.
        Death,
        /// The power fails: as [`Self::Death`], and what was written and not synced is lost.
        PowerCut,
        /// The call fails, as on a full disk; later calls succeed.
        Failure(ErrorKind),
    }

    struct Plan {
        fault: Fault,
        calls_left: usize,
        /// The directory with a rename that has not been synced yet.
        unsynced: Option<PathBuf>,
        /// Files with content that has not been synced yet, and their sizes without it.
        unsynced_files: BTreeMap<PathBuf, u64>,
    }

    thread_local! {
        static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
    }

    /// Runs `f` with `fault` at its system call number `n`, from 0; also returns whether `f` made that call.
    pub(crate) fn at<R>(n: usize, fault: Fault, f: impl FnOnce() -> R) -> (R, bool) {
        PLAN.set(Some(Plan {
            fault,
            calls_left: n + 1,
            unsynced: None,
            unsynced_files: BTreeMap::new(),
        }));
        let result = f();
        let plan = PLAN.take().unwrap();
        assert!(plan.unsynced.is_none(), "{:?} is not durable", plan.unsynced);
        if plan.fault == Fault::PowerCut && plan.calls_left == 0 {
            for (path, size) in plan.unsynced_files.iter().filter(|(path, _)| path.exists()) {
                File::options().write(true).open(path).unwrap().set_len(*size).unwrap();
            }
        }
        (result, plan.calls_left == 0)
    }

    pub(super) fn point(call: &str, path: &Path) -> Result<()> {
        PLAN.with_borrow_mut(|plan| {
            let Some(plan) = plan else { return Ok(()) };
            // Without the sync, a power cut could undo the rename and keep the later calls.
            let directory = plan.unsynced.take();
            assert!(
                directory.is_none() || call == "sync" && directory.as_deref() == Some(path),
                "{call} {path:?} comes before the sync of {directory:?}"
            );
            match (plan.calls_left, plan.fault) {
                (0, Fault::Death | Fault::PowerCut) => return Err(Error::other("dead")),
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
        with_plan(|plan| {
            let size = metadata(path).map_or(0, |file| file.len());
            plan.unsynced_files.entry(path.to_owned()).or_insert(size);
        });
    }

    pub(super) fn synced(path: &Path) {
        with_plan(|plan| _ = plan.unsynced_files.remove(path));
    }

    /// Checks that the renamed files are synced: otherwise a power cut could leave the name without the
    /// content.
    pub(super) fn renamed(from: &Path, to: &Path) {
        with_plan(|plan| {
            let unsynced = plan.unsynced_files.keys().find(|path| path.starts_with(from));
            assert!(unsynced.is_none(), "{unsynced:?} is renamed before it is synced");
            // Only Unix can sync a directory.
            plan.unsynced = if cfg!(unix) { to.parent().map(Path::to_owned) } else { None };
        });
    }

    fn with_plan(change: impl FnOnce(&mut Plan)) {
        PLAN.with_borrow_mut(|plan| plan.as_mut().map(change));
    }
}
