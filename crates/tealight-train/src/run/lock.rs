//! The lock of a run's directory: only one process at a time writes into it.
//!
//! The operating system locks the file `.lock` and releases it when the process ends, also after a crash. The file says
//! who holds it, which error messages quote:
//!
//! ```text
//! 4711                                    the process
//! node7                                   its host
//! 7c1b0f52-…                              the boot of the host, or nothing
//! 4026531836                              its name space of processes, or nothing
//! 91f3ab02c6e7d815                        a random number
//! ```
//!
//! Some file systems have no locks, or locks that other hosts do not see (NFS with `local_lock`). Without locks, the
//! directory counts as locked while the process that the file names runs, and also if that cannot be seen from here.
//! Where two processes could lock it, the second one has replaced the random number, and the first one notices this
//! before it writes a checkpoint.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{Read, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process;

use crate::error::{Error, Result};
use crate::storage::disk;

const LOCK: &str = ".lock";
/// The most bytes of the file that are read.
const MAX_BYTES: u64 = 1 << 10;

/// An exclusive lock on a directory, released on drop.
#[derive(Debug)]
pub struct Lock {
    file: File,
    owner: Owner,
}

/// The process that holds the lock of a directory.
#[derive(Clone, Debug)]
pub struct Owner {
    directory: PathBuf,
    holder: Holder,
}

/// What the file says of the process that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// Empty in files of versions that wrote the process alone.
    host: String,
    boot: String,
    processes: String,
    nonce: String,
}

impl Lock {
    /// Locks a directory.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process holds the lock. [`Error::PerhapsLocked`] if the file system has no locks, and
    /// the process that took the lock last cannot be seen from here.
    pub fn acquire(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let mut file = disk::edit(&path).map_err(Error::io("create", &path))?;
        let other = Holder::read(&mut file);
        let (pid, host) = Holder::named(other.as_ref());
        let directory = directory.to_owned();
        match (file.try_lock(), other) {
            (Ok(()), _) | (Err(TryLockError::Error(_)), None) => {}
            (Err(TryLockError::WouldBlock), _) => {
                return Err(Error::Locked { path: directory, pid, host });
            }
            (Err(TryLockError::Error(_)), Some(other)) => match other.runs() {
                Some(true) => return Err(Error::Locked { path: directory, pid, host }),
                Some(false) => {}
                None => return Err(Error::PerhapsLocked { path: directory, pid, host }),
            },
        }
        let owner = Owner { directory, holder: Holder::this_process() };
        let mut lock = Self { file, owner };
        let text = lock.owner.holder.text();
        lock.set_text(&text).map_err(Error::io("write", &path))?;
        Ok(lock)
    }

    /// Who holds the lock.
    pub fn owner(&self) -> Owner {
        self.owner.clone()
    }

    /// Whether a process holds the lock of a directory at this moment.
    pub fn is_held(directory: &Path) -> bool {
        let Ok(mut file) = disk::open(&directory.join(LOCK)) else { return false };
        // A holder writes who it is, and clears it when it is done. Only if it did not is the file locked, for a moment,
        // so that a process that wants the lock at the same time is hardly ever refused.
        let Some(holder) = Holder::read(&mut file) else { return false };
        match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => holder.runs() == Some(true),
        }
    }

    fn set_text(&mut self, text: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file releases the lock. Clearing the holder is only tidy, so errors do not matter.
        if self.owner.check().is_ok() {
            let _ = self.set_text("");
        }
    }
}

impl Owner {
    /// Checks that no other process has taken the lock since.
    ///
    /// # Errors
    /// [`Error::Locked`] if one has, or if the file was removed.
    pub(crate) fn check(&self) -> Result<()> {
        // Opened again, because a network file system then asks its server for the content.
        let holder = disk::open(&self.directory.join(LOCK)).ok();
        let holder = holder.and_then(|mut file| Holder::read(&mut file));
        if holder.as_ref() == Some(&self.holder) {
            return Ok(());
        }
        let (pid, host) = Holder::named(holder.as_ref());
        Err(Error::Locked { path: self.directory.clone(), pid, host })
    }
}

impl Holder {
    fn this_process() -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self {
            pid: process::id(),
            host: host(),
            boot: first_line("/proc/sys/kernel/random/boot_id"),
            processes: name_space(),
            nonce: format!("{random:016x}"),
        }
    }

    fn text(&self) -> String {
        let Self { pid, host, boot, processes, nonce } = self;
        format!("{pid}\n{host}\n{boot}\n{processes}\n{nonce}\n")
    }

    fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        Self::read_text(&text)
    }

    fn read_text(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim);
        let pid = lines.next()?.parse().ok()?;
        let [host, boot, processes, nonce] =
            [(); 4].map(|()| lines.next().unwrap_or_default().to_owned());
        Some(Self { pid, host, boot, processes, nonce })
    }

    /// The process and, if it is not this one, the host of a holder, as errors name them.
    fn named(holder: Option<&Self>) -> (Option<u32>, Option<String>) {
        (holder.map(|holder| holder.pid), holder.and_then(Self::far))
    }

    /// Its host, if it is not this one.
    fn far(&self) -> Option<String> {
        let is_far = !self.host.is_empty() && self.host != host();
        is_far.then(|| self.host.escape_debug().to_string())
    }

    /// Whether the process runs and is not this one; `None` if that cannot be seen from here.
    fn runs(&self) -> Option<bool> {
        let here = Self::this_process();
        let is_near = |own: &str, its: &str| its.is_empty() || own == its;
        if self.host.is_empty() || (is_near(&here.host, &self.host) && here.boot == self.boot) {
            return is_near(&here.processes, &self.processes).then(|| is_other_process(self.pid));
        }
        // A host that has booted since runs none of its former processes.
        (here.host == self.host && !self.boot.is_empty()).then_some(false)
    }
}

/// The name of this host, empty if it has none.
fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    name.lines().next().unwrap_or_default().trim().to_owned()
}

/// The name space in which process ids have their meaning, on Linux.
fn name_space() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Whether another process has this id. Always `false` on systems without `/proc`.
fn is_other_process(pid: u32) -> bool {
    pid != process::id() && Path::new("/proc").join(pid.to_string()).exists()
}

// On Windows only the holder of a lock can read the file.
#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_with_the_pid_of_the_first_until_that_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::acquire(directory.path()).unwrap();
        let message = Lock::acquire(directory.path()).unwrap_err().to_string();
        let expected = format!("is in use by process {}; two", process::id());
        assert!(message.contains(&expected), "{message}");
        assert!(Lock::is_held(directory.path()));
        drop(first);
        assert!(!Lock::is_held(directory.path()));
        Lock::acquire(directory.path()).unwrap();
    }

    #[test]
    fn what_a_crash_has_left_locks_nobody_out() {
        let directory = tempfile::tempdir().unwrap();
        for left in ["1\n", "4294967295\n", "", "no number"] {
            std::fs::write(directory.path().join(LOCK), left).unwrap();
            assert!(!Lock::is_held(directory.path()));
            let lock = Lock::acquire(directory.path()).unwrap();
            let text = std::fs::read_to_string(directory.path().join(LOCK)).unwrap();
            assert!(text.starts_with(&format!("{}\n{}\n", process::id(), host())), "{text}");
            drop(lock);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_process_that_lives_is_told_from_this_one_and_from_none() {
        assert!(is_other_process(std::os::unix::process::parent_id()));
        assert!(!is_other_process(process::id()) && !is_other_process(u32::MAX));
    }

    #[test]
    fn the_first_notices_that_another_process_has_taken_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Lock::acquire(directory.path()).unwrap();
        lock.owner().check().unwrap();
        let other = Holder { pid: 17, host: "node7".into(), ..Holder::this_process() };
        std::fs::write(directory.path().join(LOCK), other.text()).unwrap();
        let message = lock.owner().check().unwrap_err().to_string();
        assert!(message.contains("is in use by process 17 on `node7`"), "{message}");
        drop(lock);
        let left = std::fs::read_to_string(directory.path().join(LOCK)).unwrap();
        assert_eq!(left, other.text(), "the lock of the other process stays");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_cannot_be_seen_from_here_is_not_taken_for_ended() {
        let here = Holder { pid: std::os::unix::process::parent_id(), ..Holder::this_process() };
        let runs = |change: fn(&mut Holder)| {
            let mut holder = here.clone();
            change(&mut holder);
            holder.runs()
        };
        assert_eq!(runs(|_| {}), Some(true));
        assert_eq!(runs(|it| it.pid = u32::MAX), Some(false));
        assert_eq!(runs(|it| it.processes = "1".into()), None);
        assert_eq!(runs(|it| it.host = "node7".into()), None);
        assert_eq!(runs(|it| it.boot = "another".into()), Some(false));
        let old = |pid: u32| Holder { pid, ..Holder::read_text(&format!("{pid}\n")).unwrap() };
        assert_eq!(old(here.pid).runs(), Some(true));
        assert_eq!(old(u32::MAX).runs(), Some(false));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_place_of_the_lock_is_refused_and_its_target_stays() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        std::fs::write(&target, "mine").unwrap();
        std::os::unix::fs::symlink(&target, directory.path().join(LOCK)).unwrap();
        let error = Lock::acquire(directory.path()).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "it is a link, and nothing is written through links");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
    }
}
