//! Files of the cache: made once from data, found by a key, and mapped into memory.
//!
//! ```text
//! <cache>/<key>.<ending>        the file, under this name only when it is complete
//! <cache>/<key>.lock            locked by the process that makes it
//! <cache>/.<key>.<process>.<ending>.tmp
//! ```
//!
//! The key is a hash of the content that the file is made from. The cache is `task.cache`, or else
//! `$TEALIGHT_CACHE`, `$XDG_CACHE_HOME/tealight` or `~/.cache/tealight`. It never changes a result and may be
//! deleted at any time.

mod checksum;
mod folder;
mod header;
mod mapped;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::storage::files;

pub(crate) use checksum::{CRC, Crc32};
pub(crate) use folder::folder;
pub use folder::of_environment;
pub(crate) use header::{Fields, HEADER, StoreHeader};
pub(crate) use mapped::Bytes;

/// The file of `key` in `folder`: opened by `open`, or first made by `build`, which gets a temporary path and
/// leaves a synced file there. `open` returns `None` for a file that is missing or damaged.
pub(crate) fn open_or_build<S>(
    folder: &Path,
    (key, ending): (u128, &str),
    open: impl Fn(&Path) -> Result<Option<S>>,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<S> {
    files::create_directory(folder)?;
    let path = folder.join(format!("{key:032x}.{ending}"));
    if let Some(store) = open(&path)? {
        return Ok(store);
    }
    let lock = folder.join(format!("{key:032x}.lock"));
    let lock = File::create(&lock).map_err(Error::io("create", &lock))?;
    // A second process waits here for the first one's result. On a file system without locks, both do the work.
    let is_locked = lock.lock().is_ok();
    if let Some(store) = open(&path)? {
        return Ok(store);
    }
    if is_locked {
        remove_leftovers(&path)?;
    }
    let temporary = TemporaryFile(temporary_path(&path, std::process::id()));
    build(&temporary.0)?;
    files::rename(&temporary.0, &path)?;
    let missing = || Error::io("read", &path)(std::io::ErrorKind::NotFound.into());
    open(&path)?.ok_or_else(missing)
}

/// The store at `path`, if it was made from data with the hash `key`: its header, and all of its bytes. `None` if the
/// file is missing or damaged.
pub(crate) fn open_verified<H: StoreHeader>(path: &Path, key: u128) -> Result<Option<(H, Bytes)>> {
    let Some(mut file) = existing(path)? else { return Ok(None) };
    let header = header::verify(&mut file, key).map_err(Error::io("read", path))?;
    let Some(header) = header else { return Ok(None) };
    let bytes = Bytes::map(&file).map_err(Error::io("map", path))?;
    Ok(Some((header, bytes)))
}

/// Opens a file of the cache; `None` if there is none.
fn existing(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        file => file.map_err(Error::io("open", path)).map(Some),
    }
}

/// Creates a file that is written and read.
pub(crate) fn create(path: &Path) -> Result<File> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(true);
    options.open(path).map_err(Error::io("create", path))
}

/// A file that is removed on drop.
pub(crate) struct TemporaryFile(pub(crate) PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = files::remove_if_exists(&self.0);
    }
}

/// The temporary path of a process: on a file system without locks, another process may write the same file.
fn temporary_path(path: &Path, process: u32) -> PathBuf {
    let ending = path.extension().unwrap_or_default().display();
    files::temporary_path(&path.with_extension(format!("{process}.{ending}")))
}

/// Removes the temporary files of killed processes. The caller must hold the lock of `path`.
fn remove_leftovers(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let prefix = format!(".{}.", path.file_stem().unwrap_or_default().display());
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            files::remove_if_exists(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_write_beside_each_other_and_what_they_leave_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0a.tokens");
        let (one, other) = (temporary_path(&path, 7), temporary_path(&path, 11));
        let of_another_key = temporary_path(&folder.path().join("0b.tokens"), 7);
        assert_ne!(one, other);
        let all = [&path, &one, &one.with_extension("entries"), &other, &of_another_key];
        for path in all {
            fs::write(path, "").unwrap();
        }
        remove_leftovers(&path).unwrap();
        assert_eq!(all.map(|path| path.exists()), [true, false, false, false, true]);
    }
}
