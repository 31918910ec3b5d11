//! The folder of the cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The folder of the cache: as configured, else from the environment. It is not part of a run's
/// description, because its content is a function of the inputs.
///
/// # Errors
/// If nothing names a folder, or if a file is in its place; the error says which setting or variable names it.
pub(crate) fn folder(configured: Option<&Path>) -> Result<PathBuf> {
    let (folder, origin) = select(configured, |name| std::env::var_os(name))?;
    let existing = folder.ancestors().find(|above| above.exists());
    if let Some(file) = existing.filter(|above| !above.is_dir()) {
        let rule = format!("it is no folder, and {origin} puts the cache there");
        return Err(Error::unusable(file, &rule));
    }
    Ok(folder)
}

/// The folder that the environment names, for use without a configuration; `None` if it names none.
pub fn of_environment() -> Option<PathBuf> {
    let (folder, _) = select(None, |name| std::env::var_os(name)).ok()?;
    Some(folder)
}

/// The folder, and the setting or variable that names it.
fn select(
    configured: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(PathBuf, &'static str)> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    configured
        .map(|path| (path.to_owned(), "`task.cache`"))
        .or_else(|| Some((folder("TEALIGHT_CACHE")?, "$TEALIGHT_CACHE")))
        .or_else(|| Some((folder("XDG_CACHE_HOME")?.join("tealight"), "$XDG_CACHE_HOME")))
        .or_else(|| Some((folder("HOME")?.join(".cache/tealight"), "$HOME")))
        .ok_or_else(|| {
            let key = "task.cache";
            let message = format!(
                "what is read once is kept in a folder, and there is none: neither `{key}` nor \
                 $TEALIGHT_CACHE nor $HOME is set"
            );
            Error::config([key], message)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_comes_before_the_environment() {
        let all = [("TEALIGHT_CACHE", "/t"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        let folder = |configured: Option<&str>, set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(other, _)| *other == name).map(|(_, v)| v.into());
            select(configured.map(Path::new), value).map_err(|error| error.to_string())
        };
        let expected = |path: &str, origin| Ok((PathBuf::from(path), origin));
        assert_eq!(folder(Some("/c"), &all), expected("/c", "`task.cache`"));
        assert_eq!(folder(None, &all), expected("/t", "$TEALIGHT_CACHE"));
        assert_eq!(folder(None, &all[1..]), expected("/x/tealight", "$XDG_CACHE_HOME"));
        assert_eq!(folder(None, &all[2..]), expected("/h/.cache/tealight", "$HOME"));
        let unset = [("TEALIGHT_CACHE", ""), ("HOME", "/h")];
        assert_eq!(folder(None, &unset), expected("/h/.cache/tealight", "$HOME"));
        assert!(folder(None, &[]).unwrap_err().contains("neither `task.cache` nor"));
    }

    #[test]
    fn a_file_in_place_of_the_folder_is_named_with_what_puts_it_there() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let expected = format!(
            "`{}`: it is no folder, and `task.cache` puts the cache there",
            file.path().display()
        );
        for path in [file.path().to_owned(), file.path().join("inside")] {
            assert_eq!(folder(Some(&path)).unwrap_err().to_string(), expected);
        }
    }
}
