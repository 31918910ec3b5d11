//! Expands paths, patterns and folders to files in a fixed order.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use glob::Pattern;

use super::kind::FileKind;
use crate::error::{Error, Result};

/// The files of `paths` that are not in `seen` (canonical paths), in the order of `paths`, sorted within a
/// folder or pattern. `key` is the setting with the paths, for errors.
pub(crate) fn expand(
    key: &str,
    paths: &[PathBuf],
    seen: &mut BTreeSet<PathBuf>,
) -> Result<Vec<(PathBuf, FileKind)>> {
    let mut files = Vec::new();
    for path in paths {
        for file in expand_one(key, path)? {
            let Some(kind) = FileKind::from_path(&file) else {
                let rule = format!("has an unknown extension: expected {EXTENSIONS}");
                return Err(Error::config([key], format!("`{}` {rule}", file.display())));
            };
            if seen.insert(file.canonicalize().map_err(Error::io("find", &file))?) {
                files.push((file, kind));
            }
        }
    }
    Ok(files)
}

fn expand_one(key: &str, path: &Path) -> Result<Vec<PathBuf>> {
    let shown = path.display();
    let (mut files, nothing) = if path.is_dir() {
        (folder(path)?, format!("`{shown}` has no file with the extension {EXTENSIONS}"))
    } else if path.exists() {
        return Ok(vec![path.to_owned()]);
    } else if is_pattern(path) {
        (pattern(key, path)?, format!("no file matches `{shown}`"))
    } else {
        // The system's reason: missing, or no permission.
        let reason = fs::metadata(path).err().map_or(String::new(), |error| format!(": {error}"));
        return Err(Error::config([key], format!("`{shown}` cannot be read{reason}")));
    };
    if files.is_empty() {
        return Err(Error::config([key], nothing));
    }
    files.sort_unstable();
    Ok(files)
}

fn pattern(key: &str, path: &Path) -> Result<Vec<PathBuf>> {
    let text = path.to_string_lossy();
    let matches = glob::glob(&text).map_err(|error| {
        Error::config([key], format!("`{text}` is not a pattern: {}", error.msg))
    })?;
    let mut files = Vec::new();
    for found in matches {
        let found = found.map_err(|error| {
            let message = format!("`{}` cannot be read: {}", error.path().display(), error.error());
            Error::config([key], message)
        })?;
        if found.is_file() {
            files.push(found);
        }
    }
    Ok(files)
}

/// All files below a folder that a corpus can read; others are ignored.
fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
            let entry = entry.map_err(Error::io("list", &folder))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(Error::io("read", &path))?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if kind.is_dir() {
                folders.push(path); // Links to folders are not followed: they may form cycles.
            } else if path.is_file() && FileKind::from_path(&path).is_some() {
                files.push(path);
            }
        }
    }
    Ok(files)
}

const EXTENSIONS: &str = ".txt or .jsonl, also with .gz or .zst";

/// Whether a path has wildcards.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '['])
}

/// The absolute path or pattern. Wildcards in the name of the current directory are escaped.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(Error::io("find", path))?;
    if !path.is_relative() || !is_pattern(path) || path.exists() {
        return Ok(absolute);
    }
    let here = std::env::current_dir().map_err(Error::io("find", path))?;
    Ok(PathBuf::from(Pattern::escape(&here.to_string_lossy())).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "c.md", ".hidden.txt", "inner/d.jsonl.gz", "inner/e.txt.zst"]
        {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        directory
    }

    fn names(directory: &Path, paths: &[&str]) -> Result<Vec<String>, String> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| directory.join(path)).collect();
        let root = format!("{}/", directory.display());
        let name = |path: PathBuf| path.display().to_string().replace(&root, "");
        expand("task.corpus.paths", &paths, &mut BTreeSet::new())
            .map(|files| files.into_iter().map(|(path, _)| name(path)).collect())
            .map_err(|error| error.to_string().replace(&root, ""))
    }

    #[test]
    fn folders_patterns_and_files_are_expanded_in_order_and_once() {
        let directory = tree();
        let names = |paths| names(directory.path(), paths).unwrap();
        assert_eq!(names(&[""]), ["a.txt", "b.txt", "inner/d.jsonl.gz", "inner/e.txt.zst"]);
        assert_eq!(names(&["b.txt", "*.txt"]), ["b.txt", ".hidden.txt", "a.txt"]);
        assert_eq!(names(&["**/*.zst", "inner"]), ["inner/e.txt.zst", "inner/d.jsonl.gz"]);
    }

    #[test]
    fn a_name_with_characters_of_patterns_is_a_name_first() {
        let directory = tree();
        fs::write(directory.path().join("[x].txt"), "text").unwrap();
        assert_eq!(names(directory.path(), &["[x].txt"]).unwrap(), ["[x].txt"]);
    }

    #[test]
    fn what_means_no_file_is_refused_by_name() {
        let directory = tree();
        let message = |path| names(directory.path(), &[path]).unwrap_err();
        assert!(message("z.txt").starts_with("`z.txt` cannot be read: No such file"));
        assert_eq!(message("z*.txt"), "no file matches `z*.txt`");
        assert!(message("a[.txt").contains("is not a pattern"));
        assert!(message("c.md").starts_with("`c.md` has an unknown extension: expected .txt or"));
        assert!(message("*").contains("`c.md` has an unknown extension"));
        fs::create_dir(directory.path().join("empty")).unwrap();
        assert!(message("empty").starts_with("`empty` has no file with the extension .txt"));
    }
}
