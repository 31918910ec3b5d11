//! The lock of a run's directory: only one process at a time writes into it.
//!
//! The operating system locks the file `.lock` and releases it when the process ends, also after a crash.
//! The file contains the process id of the holder, which error messages quote. On a file system without
//! locks the directory counts as locked if a process with that id is running.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process;

use crate::error::{Error, Result};

const LOCK: &str = ".lock";

/// An exclusive lock on a directory, released on drop.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Locks a directory.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process holds the lock.
    pub fn acquire(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let file = File::options().create(true).read(true).write(true).truncate(false).open(&path);
        let mut file = file.map_err(Error::io("create", &path))?;
        let locked = |pid| Error::Locked { path: directory.to_owned(), pid };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(pid_in(&mut file))),
            Err(TryLockError::Error(_)) => {
                if let Some(pid) = pid_in(&mut file).filter(|pid| is_other_process(*pid)) {
                    return Err(locked(Some(pid)));
                }
            }
        }
        let mut lock = Self { file };
        lock.set_text(&format!("{}\n", process::id())).map_err(Error::io("write", &path))?;
        Ok(lock)
    }

    /// Whether a process holds the lock of a directory at this moment.
    pub fn is_held(directory: &Path) -> bool {
        let Ok(mut file) = File::open(directory.join(LOCK)) else { return false };
        // A holder writes its process id, and clears it when it is done. Only if it did not is the file locked, for a
        // moment, so that a process that wants the lock at the same time is hardly ever refused.
        let Some(pid) = pid_in(&mut file) else { return false };
        match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => is_other_process(pid),
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
        // Closing the file releases the lock. Clearing the process id is only tidy, so errors do not matter.
        let _ = self.set_text("");
    }
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
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
            assert_eq!(text, format!("{}\n", process::id()));
            drop(lock);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_process_that_lives_is_told_from_this_one_and_from_none() {
        assert!(is_other_process(std::os::unix::process::parent_id()));
        assert!(!is_other_process(process::id()) && !is_other_process(u32::MAX));
    }
}
