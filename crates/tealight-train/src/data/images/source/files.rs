//! The settings of class folders, in a directory or in an archive.

use std::path::PathBuf;

use super::{PATH, fault};
use crate::checks::{given, share, share_or_none};
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::settings::settings;

/// The key of the pictures that are held out.
pub(super) const VALIDATION_PATH: &str = "task.data.validation_path";
const VALIDATION: &str = "task.data.validation";
pub(super) const TEST: &str = "task.data.test";

settings! {
    /// `[task.data] kind = "folders"` and `kind = "archive"`
    pub struct Config {
        /// The folder, or the archive. It has a folder for each class, or `train/` and one of `test/`, `val/` and
        /// `validation/` with a folder for each class.
        pub path: PathBuf = PathBuf::new(),
        /// Another one, with the pictures that are held out.
        pub validation_path: Option<PathBuf> = None,
        /// Which folder is held out, where there are several beside `train/`.
        pub held_out: Option<String> = None,
        /// The share of each class that is held out, where no folder is; .1 when absent.
        pub validation: Option<f64> = None,
        /// The share of each class that is held out for a test, of the pictures that are not held out otherwise: the report of
        /// the run has the scores on them.
        pub test: f64 = 0.,
        /// Leave out files that are no pictures, and tell how many, instead of ending with an error.
        pub skip_broken: bool = false,
    }
}

/// A folder or archive of class folders.
#[derive(Clone, Debug)]
pub(super) struct Root {
    /// The setting with its path.
    pub(super) key: &'static str,
    pub(super) path: PathBuf,
    /// `None` if the folders in it decide.
    pub(super) split: Option<Split>,
}

impl Root {
    /// The beginning of the names of its pictures, so that names of two roots differ.
    pub(super) fn prefix(&self) -> &'static str {
        match self.split {
            None => "",
            Some(Split::Train) => "train/",
            Some(Split::Validation) => "validation/",
        }
    }

    /// The root of the picture `name`, and its name there.
    pub(super) fn find<'a, 'n>(
        roots: impl IntoIterator<Item = &'a Self>,
        name: &'n str,
    ) -> Option<(&'a Self, &'n str)> {
        roots.into_iter().find_map(|root| Some((root, name.strip_prefix(root.prefix())?)))
    }
}

impl Config {
    pub(super) fn validate(&self, what: &str) -> Result<()> {
        given(PATH, &self.path, what)?;
        self.validation.map_or(Ok(()), |validation| share(VALIDATION, validation))?;
        share_or_none(TEST, self.test)?;
        let Some(other) = &self.validation_path else { return Ok(()) };
        let refused = |key: &str| {
            let message = format!(
                "`{key}` chooses from `{PATH}` what is held out, and `{VALIDATION_PATH}` gives it: set one of them"
            );
            Err(Error::config([key, VALIDATION_PATH], message))
        };
        if self.validation.is_some() {
            return refused(VALIDATION);
        }
        if self.held_out.is_some() {
            return refused("task.data.held_out");
        }
        if same_file(&self.path, other) {
            let message = format!("`{VALIDATION_PATH}` is `{PATH}`: it must be another");
            return Err(Error::config([VALIDATION_PATH, PATH], message));
        }
        Ok(())
    }

    pub(super) fn absolute_paths(&mut self) -> Result<()> {
        let paths = [Some(&mut self.path), self.validation_path.as_mut()];
        paths.into_iter().flatten().try_for_each(absolute)
    }

    /// The folders or archives.
    pub(super) fn roots(&self) -> Result<Vec<Root>> {
        let split = self.validation_path.as_ref().map(|_| Split::Train);
        let train = Root { key: PATH, path: self.path.clone(), split };
        let held_out = self.validation_path.clone().map(|path| Root {
            key: VALIDATION_PATH,
            path,
            split: Some(Split::Validation),
        });
        let roots: Vec<Root> = [train].into_iter().chain(held_out).collect();
        for Root { key, path, .. } in &roots {
            let metadata = std::fs::metadata(path);
            metadata.map_err(|error| fault(key, path, &format!("cannot be read: {error}")))?;
        }
        Ok(roots)
    }
}

fn same_file(path: &std::path::Path, other: &std::path::Path) -> bool {
    matches!((path.canonicalize(), other.canonicalize()), (Ok(path), Ok(other)) if path == other)
}

/// Makes a path absolute. An empty path stays empty: it is reported as missing.
pub(super) fn absolute(path: &mut PathBuf) -> Result<()> {
    if !path.as_os_str().is_empty() {
        *path = std::path::absolute(&*path).map_err(Error::io("find", path))?;
    }
    Ok(())
}
