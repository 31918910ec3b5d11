//! A run's directory: everything that a run produced, and enough to reproduce or resume it.
//!
//! ```text
//! runs/<name>/config.toml      as given            resolved.toml   defaults written out
//!             manifest.json    versions, device, start time, sizes from data
//!             metrics.jsonl    one line per report
//!             checkpoints/     step-000500/, latest, best
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::observer::jsonl;
use crate::storage::files;

pub mod checkpoint;
pub mod checkpoints;
pub mod lock;
pub mod manifest;

pub use self::checkpoint::{Checkpoint, State, load_weights};
pub use self::checkpoints::{Checkpoints, Newest, PassedOver, Selection, step_of};
pub use self::lock::Lock;
pub use self::manifest::Manifest;

const CONFIG: &str = "config.toml";
const RESOLVED: &str = "resolved.toml";
const MANIFEST: &str = "manifest.json";
const METRICS: &str = "metrics.jsonl";
const CHECKPOINTS: &str = "checkpoints";

/// Bytes of a name; file systems take 255, and a number may follow.
const MAX_NAME: usize = 200;

/// The directory of one run.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Makes a new directory: `root/name`, or `root/name-2`, `root/name-3` and so on after the highest
    /// number of that name, so that a number never means an earlier run. Ask for it when everything else is built, so that what fails before the
    /// first step leaves no directory.
    pub fn create(root: &Path, name: &str) -> Result<Self> {
        validate(name)?;
        files::create_directory(root)?;
        let highest = numbers(root, name)?.pop().unwrap_or(0);
        for number in highest + 1.. {
            let path = numbered(root, name, number);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &path)(error)),
                Ok(()) => return Ok(Self { path }),
            }
        }
        unreachable!("invariant: there are more numbers than directories")
    }

    /// Opens the run at `path`, or the run that `path` is inside of, such as one of its checkpoints.
    pub fn open(path: &Path) -> Result<Self> {
        let Some(missing) = missing(path) else { return Ok(Self { path: path.to_owned() }) };
        // Absolute, so that the run is found above `step-000500`, too.
        let absolute = fs::canonicalize(path).map_err(Error::io("open", path))?;
        // A run's files are at most `checkpoints/step-000500/model.safetensors` deep.
        let mut above = absolute.ancestors().skip(1).take(3);
        match above.find(|directory| self::missing(directory).is_none()) {
            Some(directory) => Ok(Self { path: directory.to_owned() }),
            None => Err(Error::NotARun { path: path.to_owned(), missing }),
        }
    }

    /// The last run that was made with `create(root, name)` and is still there, if there is any.
    pub fn last(root: &Path, name: &str) -> Result<Option<Self>> {
        validate(name)?;
        let paths = numbers(root, name)?.into_iter().map(|number| numbered(root, name, number));
        Ok(paths.rev().find(|path| missing(path).is_none()).map(|path| Self { path }))
    }

    /// Where the run is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last part of the path.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Writes what a run starts from: its configuration as given and resolved, and its manifest.
    pub fn write_start(&self, config: &str, resolved: &str, manifest: &Manifest) -> Result<()> {
        files::replace(&self.path.join(CONFIG), config.as_bytes())?;
        files::replace(&self.path.join(RESOLVED), resolved.as_bytes())?;
        // Last, because it makes the directory a run.
        let path = self.path.join(MANIFEST);
        files::replace(&path, &files::to_json(&path, manifest)?)?;
        files::sync_directory(self.path.parent().unwrap_or(Path::new("")))
    }

    /// Keeps a file of the task's in the run.
    pub fn keep(&self, name: &str, bytes: &[u8]) -> Result<()> {
        files::replace(&self.path.join(name), bytes)
    }

    /// The configuration as given.
    pub fn config(&self) -> Result<String> {
        files::read_text(&self.path.join(CONFIG))
    }

    /// Where the configuration is with defaults and overrides written out.
    pub fn resolved_path(&self) -> PathBuf {
        self.path.join(RESOLVED)
    }

    /// What made the run.
    pub fn manifest(&self) -> Result<Manifest> {
        files::read_json(&self.path.join(MANIFEST), manifest::FORMAT_VERSION)
    }

    /// Where the reports are written.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    /// Forgets the reports after `step`, and of going back more often than `n_roll_backs`: the run resumes
    /// there and will make them again.
    pub fn cut_metrics_after(&self, step: u64, n_roll_backs: u64) -> Result<()> {
        jsonl::cut_after(&self.metrics_path(), step, n_roll_backs)
    }

    /// Keeps other settings than the run began with, where they may change.
    pub fn keep_resolved(&self, resolved: &str) -> Result<()> {
        let path = self.resolved_path();
        if files::read_text(&path)? == resolved {
            return Ok(());
        }
        files::replace(&path, resolved.as_bytes())
    }

    /// Keeps other processes from writing into the run, as long as the lock lives.
    ///
    /// # Errors
    /// If another process has locked it.
    pub fn lock(&self) -> Result<Lock> {
        Lock::of(&self.path)
    }

    /// The run's checkpoints.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.path.join(CHECKPOINTS))
    }
}

/// `root/name` for 1, `root/name-2`, `root/name-3` and so on.
fn numbered(root: &Path, name: &str, number: u64) -> PathBuf {
    if number == 1 { root.join(name) } else { root.join(format!("{name}-{number}")) }
}

/// The numbers of a name that `root` holds, in ascending order; none if there is no `root`.
fn numbers(root: &Path, name: &str) -> Result<Vec<u64>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("read", root))?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", root))?.file_name();
        numbers.extend(entry.to_str().and_then(|entry| number_of(entry, name)));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The number of a directory's name as [`numbered`] writes it.
fn number_of(entry: &str, name: &str) -> Option<u64> {
    let rest = entry.strip_prefix(name)?;
    if rest.is_empty() {
        return Some(1);
    }
    let digits = rest.strip_prefix('-')?;
    // 32 bits, so that there is always a next number; longer digits are not ours.
    let number: u32 = digits.parse().ok()?;
    (number >= 2 && number.to_string() == digits).then_some(number.into())
}

/// The first of the files that every run has and `directory` lacks.
fn missing(directory: &Path) -> Option<&'static str> {
    [MANIFEST, RESOLVED].into_iter().find(|name| !directory.join(name).is_file())
}

/// A name is one part of a path, and not hidden.
fn validate(name: &str) -> Result<()> {
    let mut parts = Path::new(name).components();
    let is_one_part = matches!(parts.next(), Some(Component::Normal(part)) if part == name);
    let is_plain = !name.starts_with('.') && !name.contains(char::is_control);
    if is_one_part && parts.next().is_none() && is_plain && name.len() <= MAX_NAME {
        return Ok(());
    }
    let message = format!(
        "the name of a run, `{}`, must be that of a visible directory: no `/`, no dot in front, at \
         most {MAX_NAME} bytes; `--name` gives another",
        name.escape_debug()
    );
    Err(Error::config([], message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use candle_core::Device;

    use super::*;

    fn started(root: &Path, name: &str) -> RunDirectory {
        let run = RunDirectory::create(root, name).unwrap();
        let manifest = Manifest::new(&Device::Cpu, BTreeMap::new(), 5);
        run.write_start("seed = 17 # mine\n", "seed = 17\n", &manifest).unwrap();
        run
    }

    #[test]
    fn a_second_run_of_a_name_is_numbered() {
        let root = tempfile::tempdir().unwrap();
        let runs = root.path().join("runs");
        let names = [(); 3].map(|()| RunDirectory::create(&runs, "weather").unwrap().name());
        assert_eq!(names, ["weather", "weather-2", "weather-3"]);
    }

    #[test]
    fn the_last_run_of_a_name_is_found_and_half_made_ones_are_not() {
        let root = tempfile::tempdir().unwrap();
        assert!(RunDirectory::last(root.path(), "a").unwrap().is_none());
        started(root.path(), "a");
        let second = started(root.path(), "a");
        RunDirectory::create(root.path(), "a").unwrap();
        let last = RunDirectory::last(root.path(), "a").unwrap().unwrap();
        assert_eq!(last.path(), second.path());
    }

    #[test]
    fn runs_that_were_deleted_leave_gaps_that_nothing_depends_on() {
        let root = tempfile::tempdir().unwrap();
        let runs = [(); 3].map(|()| started(root.path(), "tiny"));
        for deleted in [1, 0] {
            fs::remove_dir_all(runs[deleted].path()).unwrap();
            let last = RunDirectory::last(root.path(), "tiny").unwrap().unwrap();
            assert_eq!(last.name(), "tiny-3");
        }
        // None of these is a number of ours.
        for other in ["tiny-07", "tiny-1", "tiny-x", "tiny-99999999999999999999", "tiny2"] {
            fs::create_dir(root.path().join(other)).unwrap();
        }
        assert_eq!(RunDirectory::create(root.path(), "tiny").unwrap().name(), "tiny-4");
        fs::remove_dir_all(root.path().join("tiny-4")).unwrap();
        assert_eq!(started(root.path(), "tiny").name(), "tiny-4");
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "a/b", "/a", ".hidden", "a/"] {
            let message = RunDirectory::create(root.path(), name).unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")), "{message}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_run_starts_from_is_read_back() {
        let root = tempfile::tempdir().unwrap();
        let run = started(root.path(), "a");
        let run = RunDirectory::open(run.path()).unwrap();
        assert_eq!(run.config().unwrap(), "seed = 17 # mine\n");
        assert_eq!(fs::read_to_string(run.resolved_path()).unwrap(), "seed = 17\n");
        assert_eq!(run.manifest().unwrap().n_parameters, 5);
    }

    #[test]
    fn a_run_is_found_from_inside() {
        let root = tempfile::tempdir().unwrap();
        let run = started(root.path(), "a");
        let path = run.checkpoints().save(&checkpoint::tests::example(500)).unwrap();
        for inside in [&path, &path.join("model.safetensors"), &run.path().join("checkpoints")] {
            let found = RunDirectory::open(inside).unwrap();
            assert_eq!(found.path(), fs::canonicalize(run.path()).unwrap());
        }
    }

    #[test]
    fn what_is_not_a_run_is_refused_with_what_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let message = |path: &Path| RunDirectory::open(path).unwrap_err().to_string();
        let path = root.path().join("a");
        assert_eq!(message(&path), format!("cannot open `{}`", path.display()));
        RunDirectory::create(root.path(), "a").unwrap();
        assert!(message(&path).ends_with("is not a run: there is no `manifest.json`"));
        fs::remove_file(started(root.path(), "b").path().join(RESOLVED)).unwrap();
        assert!(message(&root.path().join("b")).ends_with("there is no `resolved.toml`"));
    }

    #[test]
    fn reports_after_the_checkpoint_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let run = started(root.path(), "a");
        fs::write(run.metrics_path(), "{\"step\":5}\n{\"step\":7}\n").unwrap();
        run.cut_metrics_after(5, 0).unwrap();
        assert_eq!(fs::read_to_string(run.metrics_path()).unwrap(), "{\"step\":5}\n");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_in_the_place_of_the_runs_is_an_error_and_not_no_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let message = RunDirectory::last(file.path(), "a").unwrap_err().to_string();
        assert!(message.contains("cannot read"), "{message}");
    }
}
