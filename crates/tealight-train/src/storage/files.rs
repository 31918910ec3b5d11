//! Crash-safe files: written under a temporary name, synced to the disk, then renamed.
//!
//! A directory may come from a stranger. Therefore only regular files are read, up to a size, and nothing is written
//! through a link.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::disk;
use crate::error::{Error, Result};

/// The most bytes of a file that is read as a whole, such as the metrics of some million steps.
const MAX_FILE: u64 = 1 << 30;
/// The most bytes of a file in JSON that describes a run or a model.
const MAX_JSON: u64 = 1 << 26;
/// The most bytes of a file in JSON of any form: its values may take thirty times as much memory.
const MAX_VALUE: u64 = 1 << 24;

/// Opens a regular file for reading, also through a link to it.
///
/// # Errors
/// If it cannot be opened, or is anything else: a named pipe waits for a writer, and a device may never end.
pub fn open(path: &Path) -> Result<File> {
    disk::open(path).map_err(Error::io("read", path))
}

/// Reads a whole regular file of at most 1 GiB.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, MAX_FILE)
}

/// Reads a whole regular file of at most `limit` bytes.
///
/// # Errors
/// If it cannot be read, is no regular file, or is larger.
pub fn read_up_to(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let io = || Error::io("read", path);
    let file = open(path)?;
    let size = file.metadata().map_err(io())?.len();
    let mut bytes = Vec::new();
    if size <= limit {
        let expected = usize::try_from(size).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(expected).map_err(io::Error::from).map_err(io())?;
        // One byte more tells a file that has grown since.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(io())?;
    }
    let size = size.max(bytes.len() as u64);
    if size > limit {
        let rule = format!("it has {size} bytes, and at most {limit} are read");
        return Err(Error::unusable(path, &rule));
    }
    Ok(bytes)
}

/// Reads a whole file of at most 1 GiB that the user has named, which may be a pipe.
pub(crate) fn read_named(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        let rule = format!("it has more than {MAX_FILE} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, rule));
    }
    Ok(bytes)
}

/// Reads a whole regular file of at most 1 GiB as UTF-8 text.
///
/// # Errors
/// If it cannot be read, or is not UTF-8; then with the first such line.
pub fn read_text(path: &Path) -> Result<String> {
    to_text(path, read(path)?)
}

/// The `bytes` of the file `path` as text.
///
/// # Errors
/// If they are not UTF-8, with the first such line.
pub fn to_text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.split(|&byte| byte == b'\n').count();
        Error::line(path, line, "this is not UTF-8")
    })
}

/// Writes and syncs a file. Not atomic: a crash may leave half a file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_for(path, path, bytes)
}

/// As [`write()`]; errors name `target`, the file that was asked for.
fn write_for(target: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let created = disk::create(path).map_err(|error| without_folder(error, target));
    let mut file = created.map_err(Error::io("create", target))?;
    disk::write_all(&mut file, bytes, path).map_err(Error::io("write", target))?;
    disk::sync(&file, path).map_err(Error::io("write", target))
}

/// `error`, or that the folder of `target` is missing if that is the cause.
fn without_folder(error: io::Error, target: &Path) -> io::Error {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| error.kind() == ErrorKind::NotFound && !folder.exists()) {
        Some(folder) => {
            let message = format!("the folder `{}` does not exist", folder.display());
            io::Error::new(ErrorKind::NotFound, message)
        }
        None => error,
    }
}

/// Writes or replaces a file atomically: a crash leaves the old file or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_path(path);
    write_for(path, &temporary, bytes)?;
    rename(&temporary, path)
}

/// Creates a directory and its missing parents, and syncs their entries.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parents = parents_of_missing(path);
    disk::create_directories(path).map_err(Error::io("create", path))?;
    parents.into_iter().try_for_each(sync_directory)
}

/// Refuses a link in place of a directory: what is written there would be somewhere else.
pub fn refuse_link(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            Err(Error::io("write", path)(io::Error::other(disk::NO_LINKS)))
        }
        _ => Ok(()),
    }
}

/// The parents of the missing directories along `path`, the outermost first. Creating the missing directories adds an
/// entry to each parent.
fn parents_of_missing(path: &Path) -> Vec<&Path> {
    let mut missing: Vec<&Path> = path
        .ancestors()
        .take_while(|above| !above.as_os_str().is_empty() && !above.is_dir())
        .collect();
    missing.reverse();
    missing.into_iter().map(|new| new.parent().unwrap_or(Path::new(""))).collect()
}

/// Writes a directory of files (name, content) atomically: under a temporary name, synced, then renamed. A name may
/// include a folder, as `onnx/model.onnx` does.
///
/// # Errors
/// If `path` exists and is not an empty directory.
pub fn write_directory(path: &Path, files: &[(String, Vec<u8>)]) -> Result<()> {
    let is_taken = match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    if is_taken || path.file_name().is_none() {
        let rule = "it must not exist, or be an empty folder";
        return Err(Error::io("create", path)(io::Error::new(ErrorKind::AlreadyExists, rule)));
    }
    let temporary = temporary_path(path);
    remove_if_exists(&temporary)?;
    create_directory(&temporary)?;
    for (name, bytes) in files {
        let file = temporary.join(name);
        if let Some(folder) = file.parent().filter(|folder| *folder != temporary) {
            create_directory(folder)?;
            write(&file, bytes)?;
            sync_directory(folder)?;
        } else {
            write(&file, bytes)?;
        }
    }
    sync_directory(&temporary)?;
    rename(&temporary, path)
}

/// Renames a file or directory and syncs its parent directory.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    disk::rename(from, to).map_err(Error::io("write", to))?;
    sync_directory(to.parent().unwrap_or(Path::new("")))
}

/// Removes a directory atomically: it is renamed first, so that a crash leaves nothing under its name.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    let temporary = temporary_path(path);
    remove_if_exists(&temporary)?;
    rename(path, &temporary)?;
    remove_if_exists(&temporary)
}

/// Removes a file or directory if it exists.
pub(crate) fn remove_if_exists(path: &Path) -> Result<()> {
    // A link is removed, not its target.
    let is_directory = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_directory { disk::remove_directory(path) } else { disk::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// `a/.name.tmp` for `a/name`: the name under which a file is written before it is complete, and under which a
/// directory is removed.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().expect("invariant: what we write has a name");
    path.with_file_name(format!(".{}.tmp", name.to_string_lossy()))
}

/// Whether a file name has the form of [`temporary_path`].
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp")).is_some()
}

/// Reads JSON of at most 64 MiB with a `format_version` from 1 to `supported`.
///
/// # Errors
/// If the file cannot be read, is not JSON of type `T`, or has another version.
pub fn read_json<T: DeserializeOwned>(path: &Path, supported: u64) -> Result<T> {
    let text = read_up_to(path, MAX_JSON)?;
    let Versioned { format_version: found } =
        serde_json::from_slice(&text).map_err(Error::json(path))?;
    if !(1..=supported).contains(&found) {
        return Err(Error::Version { path: path.to_owned(), found, supported });
    }
    serde_json::from_slice(&text).map_err(Error::json(path))
}

/// Reads JSON of any form, of at most 16 MiB, such as the report of a run.
pub fn read_value(path: &Path) -> Result<Value> {
    serde_json::from_slice(&read_up_to(path, MAX_VALUE)?).map_err(Error::json(path))
}

/// `value` as indented JSON that ends with a line break; `path` is the file's name in errors.
pub fn to_json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(Error::json(path))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The key that is read first: it decides the format of the other keys.
#[derive(Deserialize)]
struct Versioned {
    format_version: u64,
}

/// Flushes the entries of a directory to the disk.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    // Only Unix lets a directory be opened like a file.
    if cfg!(unix) {
        let synced = File::open(path).and_then(|directory| disk::sync(&directory, path));
        synced.map_err(Error::io("write", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_leaves_the_new_file_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("latest");
        for text in ["first", "second"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(read_text(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_in_a_missing_folder_is_named_and_not_its_temporary() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("missing");
        let error = replace(&folder.join("a.toml"), b"text").unwrap_err();
        let path = folder.join("a.toml");
        assert_eq!(error.to_string(), format!("cannot create `{}`", path.display()));
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, format!("the folder `{}` does not exist", folder.display()));
    }

    #[test]
    fn the_line_of_a_text_that_is_not_utf_8_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("latin.txt");
        for (bytes, line) in [(&b"a\n\nb\xff\n"[..], 3), (b"\xff", 1)] {
            fs::write(&path, bytes).unwrap();
            let message = read_text(&path).unwrap_err().to_string();
            let expected = format!("latin.txt`, line {line}: this is not UTF-8");
            assert!(message.ends_with(&expected), "{message}");
        }
    }

    #[test]
    fn a_directory_is_written_whole_and_never_over_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("exported");
        let files = [("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())];
        fs::create_dir(&path).unwrap();
        write_directory(&path, &files).unwrap();
        assert_eq!(read_text(&path.join("b")).unwrap(), "2");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let error = write_directory(&path, &files[..1]).unwrap_err();
        assert!(error.to_string().starts_with("cannot create"), "{error}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "it must not exist, or be an empty folder");
        assert_eq!(read_text(&path.join("b")).unwrap(), "2");
    }

    #[test]
    fn a_directory_with_its_files_is_removed_even_beside_a_leftover() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("step-000005");
        for path in [&path, &temporary_path(&path)] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("state.json"), "{}").unwrap();
        }
        remove_directory(&path).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn json_of_another_version_is_refused_by_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let message = |text: &str| {
            fs::write(&path, text).unwrap();
            read_json::<serde_json::Value>(&path, 2).unwrap_err().to_string()
        };
        assert!(message("{\"format_version\":3}").contains("version 3, and this version reads up"));
        assert!(message("{\"format_version\":0}").contains("version 0"));
        assert!(message("{}").contains("is not the JSON that it should be"));
        fs::write(&path, "{\"format_version\":2}").unwrap();
        read_json::<serde_json::Value>(&path, 2).unwrap();
    }

    #[test]
    fn json_of_any_form_is_short() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        fs::write(&path, "{\"a\": [1]}").unwrap();
        assert_eq!(read_value(&path).unwrap()["a"][0], 1);
        File::options().write(true).open(&path).unwrap().set_len(MAX_VALUE + 1).unwrap();
        let message = read_value(&path).unwrap_err().to_string();
        assert!(
            message.contains("it has 16777217 bytes, and at most 16777216 are read"),
            "{message}"
        );
    }

    #[test]
    fn every_new_name_is_synced_in_the_directory_above_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let (a, b) = (root.join("a"), root.join("a/b"));
        assert_eq!(parents_of_missing(&b.join("c")), [root, &*a, &*b]);
        fs::create_dir(&a).unwrap();
        assert_eq!(parents_of_missing(&b), [&*a]);
        assert!(parents_of_missing(&a).is_empty());
        assert_eq!(
            parents_of_missing(Path::new("nowhere/at")),
            [Path::new(""), Path::new("nowhere")]
        );
    }
}
