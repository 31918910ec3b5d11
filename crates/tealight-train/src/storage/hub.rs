//! The local cache of Hugging Face (<https://huggingface.co/docs/huggingface_hub/guides/manage-cache>): names of
//! models to folders. Nothing is downloaded.
//!
//! ```text
//! models--org--name/refs/main              the name of a snapshot
//! models--org--name/snapshots/<commit>/    config.json, model.safetensors, … (links)
//! ```

use std::ffi::OsString;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use super::disk;
use crate::error::{Error, Result};

/// The longest name of a model, as on the hub.
const MAX_NAME: usize = 96;
/// The longest name of a snapshot.
const MAX_COMMIT: u64 = 64;

/// A cache of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    /// `None` if the environment names no folder.
    root: Option<PathBuf>,
}

impl HubCache {
    /// The cache in this folder.
    pub fn at(root: &Path) -> Self {
        Self { root: Some(root.to_owned()) }
    }

    /// The cache that the environment names: `$HF_HUB_CACHE`, `$HF_HOME/hub`, `$XDG_CACHE_HOME/huggingface/hub`, else
    /// `$HOME/.cache/huggingface/hub`.
    pub fn of_environment() -> Self {
        Self::select(|name| std::env::var_os(name))
    }

    fn select(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let folder = |name: &str, below: &str| {
            let folder = PathBuf::from(variable(name).filter(|value| !value.is_empty())?);
            Some(if below.is_empty() { folder } else { folder.join(below) })
        };
        let root = folder("HF_HUB_CACHE", "")
            .or_else(|| folder("HF_HOME", "hub"))
            .or_else(|| folder("XDG_CACHE_HOME", "huggingface/hub"))
            .or_else(|| folder("HOME", ".cache/huggingface/hub"));
        Self { root }
    }

    /// The folder of the cache; `None` if the environment names none.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// `path` if it exists, else the folder of the model of this name in the cache.
    ///
    /// # Errors
    /// If neither is there. For a name, the message is the command that downloads it.
    pub fn locate(&self, path: &Path) -> Result<PathBuf> {
        if path.exists() {
            return Ok(path.to_owned());
        }
        match name(path) {
            None => Err(Error::io("open", path)(ErrorKind::NotFound.into())),
            Some(name) => self.snapshot(name).ok_or_else(|| Error::NotDownloaded {
                name: name.to_owned(),
                cache: self.root.clone(),
            }),
        }
    }

    /// The folder of the snapshot that `refs/main` of a model names.
    fn snapshot(&self, name: &str) -> Option<PathBuf> {
        let model = self.root.as_ref()?.join(format!("models--{}", name.replace('/', "--")));
        let mut commit = String::new();
        let main = disk::open(&model.join("refs/main")).ok()?;
        main.take(MAX_COMMIT).read_to_string(&mut commit).ok()?;
        let commit = commit.trim();
        let is_name = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let snapshot = model.join("snapshots").join(commit);
        (is_name && snapshot.is_dir()).then_some(snapshot)
    }
}

/// The name of a model that `path` can be: `name` or `organisation/name`.
fn name(path: &Path) -> Option<&str> {
    let name = path.to_str().filter(|name| name.len() <= MAX_NAME)?;
    let is_part = |part: &str| {
        let is_known = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        !part.is_empty()
            && part.bytes().all(is_known)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && !part.contains("--")
            && !part.contains("..")
    };
    (name.split('/').count() <= 2 && name.split('/').all(is_part)).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn cached(root: &Path, model: &str, commit: &str) -> PathBuf {
        let model = root.join(model);
        let snapshot = model.join("snapshots").join("0123abcd");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(model.join("refs")).unwrap();
        fs::write(model.join("refs/main"), commit).unwrap();
        snapshot
    }

    #[test]
    fn a_name_is_the_snapshot_of_its_main_branch() {
        let directory = tempfile::tempdir().unwrap();
        let cache = HubCache::at(directory.path());
        let bert = cached(directory.path(), "models--bert-base-uncased", "0123abcd");
        let nystrom =
            cached(directory.path(), "models--uw-madison--nystromformer-512", "0123abcd\n");
        assert_eq!(cache.locate(Path::new("bert-base-uncased")).unwrap(), bert);
        assert_eq!(cache.locate(Path::new("uw-madison/nystromformer-512")).unwrap(), nystrom);
        assert_eq!(cache.locate(directory.path()).unwrap(), directory.path(), "a path comes first");
    }

    #[test]
    fn what_is_not_there_is_downloaded_by_a_command() {
        let directory = tempfile::tempdir().unwrap();
        let cache = HubCache::at(directory.path());
        for commit in ["", "another", "../..", "0123abcd/../0123abcd"] {
            cached(directory.path(), "models--org--name", commit);
            let error = cache.locate(Path::new("org/name")).unwrap_err().to_string();
            assert!(error.starts_with("cannot open `org/name`"), "{error}");
            assert!(error.ends_with("`hf download org/name`"), "{error}");
            assert!(error.contains(&directory.path().display().to_string()), "{error}");
        }
        let nowhere = HubCache { root: None }.locate(Path::new("name")).unwrap_err().to_string();
        assert!(nowhere.ends_with("`hf download name`"), "{nowhere}");
    }

    #[test]
    fn a_path_is_no_name() {
        let cache = HubCache::at(Path::new("/nowhere"));
        let long = "n".repeat(97);
        for path in [
            "./name", "../name", "/a/name", "a/b/c", "a//b", "a/", "", "a b", "a--b", "a/.b", &long,
        ] {
            let error = cache.locate(Path::new(path)).unwrap_err().to_string();
            assert_eq!(error, format!("cannot open `{path}`"));
        }
    }

    #[test]
    fn the_folder_is_that_of_hugging_face() {
        let all =
            [("HF_HUB_CACHE", "/c"), ("HF_HOME", "/f"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        let root = |set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(other, _)| *other == name).map(|(_, v)| v.into());
            HubCache::select(value).root
        };
        for (i, expected) in
            ["/c", "/f/hub", "/x/huggingface/hub", "/h/.cache/huggingface/hub"].iter().enumerate()
        {
            assert_eq!(root(&all[i..]), Some(PathBuf::from(expected)));
        }
        assert_eq!(root(&[("HF_HOME", ""), ("HOME", "/h")]), root(&all[3..]));
        assert_eq!(root(&[]), None);
    }
}
