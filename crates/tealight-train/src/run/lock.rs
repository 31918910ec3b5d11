//! One writer: who trains a run holds the lock of its directory.
//!
//! The lock is the system's, on the file `.lock`, and goes with the process however that ends. What
//! the file says, the holder's pid, is for messages; after a crash it says it still and means nothing.
//! Where a file system has no locks, the pid is all there is: a living process of that number counts
//! as the holder.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process;

use crate::error::{Error, Result};

const LOCK: &str = ".lock";

/// The right to write into a directory, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Locks a directory.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has done so.
    pub fn of(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let file = File::options().create(true).read(true).write(true).truncate(false).open(&path);
        let mut file = file.map_err(Error::io("create", &path))?;
        let locked = |pid| Error::Locked { path: directory.to_owned(), pid };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(pid_in(&mut file))),
            Err(TryLockError::Error(_)) => {
                if let Some(pid) = pid_in(&mut file).filter(|pid| is_alive(*pid)) {
                    return Err(locked(Some(pid)));
                }
            }
        }
        let mut lock = Self { file };
        lock.say(&format!("{}\n", process::id())).map_err(Error::io("write", &path))?;
        Ok(lock)
    }

    fn say(&mut self, text: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // For tidiness: the lock itself goes with the file.
        let _ = self.say("");
    }
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether there is another process of this number; unknown, and then no, where there is no `/proc`.
fn is_alive(pid: u32) -> bool {
    pid != process::id() && Path::new("/proc").join(pid.to_string()).exists()
}

// Elsewhere the holder of a lock alone can read the file.
#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_with_the_pid_of_the_first_until_that_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::of(directory.path()).unwrap();
        let message = Lock::of(directory.path()).unwrap_err().to_string();
        let expected = format!("is in use by process {}; two", process::id());
        assert!(message.contains(&expected), "{message}");
        drop(first);
        Lock::of(directory.path()).unwrap();
    }

    #[test]
    fn what_a_crash_has_left_locks_nobody_out() {
        let directory = tempfile::tempdir().unwrap();
        for left in ["1\n", "4294967295\n", "", "no number"] {
            std::fs::write(directory.path().join(LOCK), left).unwrap();
            let lock = Lock::of(directory.path()).unwrap();
            let text = std::fs::read_to_string(directory.path().join(LOCK)).unwrap();
            assert_eq!(text, format!("{}\n", process::id()));
            drop(lock);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_process_that_lives_is_told_from_this_one_and_from_none() {
        assert!(is_alive(std::os::unix::process::parent_id()));
        assert!(!is_alive(process::id()) && !is_alive(u32::MAX));
    }
}
