//! The folder of the cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The folder of the cache: as configured, else from the environment. It is not part of a run's
/// description, because its content is a function of the inputs.
pub(crate) fn folder(configured: Option<&Path>) -> Result<PathBuf> {
    select(configured, |name| std::env::var_os(name))
}

/// The folder where no configuration names one; `None` if the environment names none either.
pub fn of_environment() -> Option<PathBuf> {
    folder(None).ok()
}

fn select(
    configured: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    configured
        .map(Path::to_owned)
        .or_else(|| folder("TEALIGHT_CACHE"))
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("tealight")))
        .or_else(|| Some(folder("HOME")?.join(".cache/tealight")))
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
        assert_eq!(folder(Some("/c"), &all).unwrap(), Path::new("/c"));
        assert_eq!(folder(None, &all).unwrap(), Path::new("/t"));
        assert_eq!(folder(None, &all[1..]).unwrap(), Path::new("/x/tealight"));
        assert_eq!(folder(None, &all[2..]).unwrap(), Path::new("/h/.cache/tealight"));
        let unset = [("TEALIGHT_CACHE", ""), ("HOME", "/h")];
        assert_eq!(folder(None, &unset).unwrap(), Path::new("/h/.cache/tealight"));
        assert!(folder(None, &[]).unwrap_err().contains("neither `task.cache` nor"));
    }
}
