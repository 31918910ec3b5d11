//! The directory of a run: everything that the run writes, and everything that is needed to resume it.
//!
//! ```text
//! runs/<name>/config.toml      the configuration as the user wrote it
//!             resolved.toml    the configuration with overrides and defaults written out
//!             manifest.json    versions, device, start time, sizes of the data
//!             metrics.jsonl    one line per report
//!             checkpoints/     step-000500/, latest, best
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::settings::ConfigSource;
use crate::storage::files;

pub mod checkpoint;
pub mod checkpoints;
pub mod lock;
pub mod manifest;

pub use self::checkpoint::{Checkpoint, CheckpointState, load_weights};
pub use self::checkpoints::{Checkpoints, DamagedCheckpoint, NewestCheckpoint, Selection, step_of};
pub use self::lock::Lock;
pub use self::manifest::Manifest;

const CONFIG: &str = "config.toml";
const RESOLVED: &str = "resolved.toml";
const MANIFEST: &str = "manifest.json";
const METRICS: &str = "metrics.jsonl";

/// The longest name of a run, in bytes. File systems allow 255, and a number may be appended.
const MAX_NAME: usize = 200;

/// The directory of one run.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Creates a new directory: `root/name`, or `root/name-2`, `root/name-3` and so on. The number is one
    /// above the highest of that name, so a deleted run's number is not used again while later runs exist.
    /// Call this after everything else is built: a run that fails before its first step then leaves no
    /// directory.
    pub fn create(root: &Path, name: &str) -> Result<Self> {
        validate(name)?;
        files::create_directory(root)?;
        let highest = run_numbers(root, name)?.pop().unwrap_or(0);
        for number in highest + 1.. {
            let path = numbered_path(root, name, number);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &path)(error)),
                Ok(()) => return Ok(Self { path }),
            }
        }
        unreachable!("invariant: there are more numbers than directories")
    }

    /// Opens the run at `path`, or the run that contains `path`, such as one of its checkpoints.
    pub fn open(path: &Path) -> Result<Self> {
        let Some(missing) = missing_file(path) else { return Ok(Self { path: path.to_owned() }) };
        // An absolute path has the run among its ancestors even if `path` is `step-000500`.
        let absolute = fs::canonicalize(path).map_err(Error::io("open", path))?;
        // A run's files are at most `checkpoints/step-000500/model.safetensors` deep.
        let mut above = absolute.ancestors().skip(1).take(3);
        match above.find(|directory| missing_file(directory).is_none()) {
            Some(directory) => Ok(Self { path: directory.to_owned() }),
            None => Err(Error::NotARun { path: path.to_owned(), missing }),
        }
    }

    /// The newest run that was created with `create(root, name)` and still exists.
    pub fn last(root: &Path, name: &str) -> Result<Option<Self>> {
        Ok(Self::all(root, name)?.into_iter().next())
    }

    /// The runs that were created with `create(root, name)` and still exist, the newest first. `name-2` is also the
    /// first run that was created with that name, so the manifest decides. The runs whose manifest names none, as
    /// older ones, or cannot be read come last.
    ///
    /// # Errors
    /// If the name is invalid, or `root` cannot be read.
    pub fn all(root: &Path, name: &str) -> Result<Vec<Self>> {
        validate(name)?;
        let (mut named, mut unnamed) = (Vec::new(), Vec::new());
        for number in run_numbers(root, name)?.into_iter().rev() {
            let run = Self { path: numbered_path(root, name, number) };
            if missing_file(&run.path).is_some() {
                continue;
            }
            match run.manifest().map(|manifest| manifest.name) {
                Ok(Some(recorded)) if recorded == name => named.push(run),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => unnamed.push(run),
            }
        }
        named.extend(unnamed);
        Ok(named)
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last part of the path.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Writes the configuration as the user wrote it and as resolved, and the manifest.
    pub fn write_start(&self, config: &str, resolved: &str, manifest: &Manifest) -> Result<()> {
        files::replace(&self.path.join(CONFIG), config.as_bytes())?;
        files::replace(&self.path.join(RESOLVED), resolved.as_bytes())?;
        // The manifest is written last: a directory without it does not count as a run.
        let path = self.manifest_path();
        files::replace(&path, &files::to_json(&path, manifest)?)?;
        files::sync_directory(self.path.parent().unwrap_or(Path::new("")))
    }

    /// The path of the configuration with overrides and defaults written out.
    pub fn resolved_path(&self) -> PathBuf {
        self.path.join(RESOLVED)
    }

    /// The configuration with overrides and defaults written out, with further `overrides`.
    ///
    /// # Errors
    /// If it cannot be read, is no regular file, or is no configuration.
    pub fn resolved(&self, overrides: &[String]) -> Result<ConfigSource> {
        let path = self.resolved_path();
        let bytes = files::read_up_to(&path, ConfigSource::MAX_BYTES)?;
        Ok(ConfigSource::from_bytes(&path, &bytes, overrides)?)
    }

    /// The path of the manifest.
    pub fn manifest_path(&self) -> PathBuf {
        self.path.join(MANIFEST)
    }

    /// The manifest.
    pub fn manifest(&self) -> Result<Manifest> {
        files::read_json(&self.manifest_path(), manifest::FORMAT_VERSION)
    }

    /// The path of `metrics.jsonl`.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    /// Replaces the resolved configuration. The caller checks that the changed settings may change.
    pub fn keep_resolved(&self, resolved: &str) -> Result<()> {
        let path = self.resolved_path();
        if files::read_text(&path)? == resolved {
            return Ok(());
        }
        files::replace(&path, resolved.as_bytes())
    }

    /// The run's checkpoints.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.path.join(checkpoints::DIRECTORY))
    }
}

/// `root/name` for number 1, then `root/name-2`, `root/name-3` and so on.
pub fn numbered_path(root: &Path, name: &str, number: u64) -> PathBuf {
    if number == 1 { root.join(name) } else { root.join(format!("{name}-{number}")) }
}

/// The numbers of the runs of this name in `root`, in ascending order.
pub fn run_numbers(root: &Path, name: &str) -> Result<Vec<u64>> {
    let entries = entry_names(root)?;
    let mut numbers: Vec<_> = entries.iter().filter_map(|entry| run_number(entry, name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The names of the entries of a directory; none if it does not exist.
fn entry_names(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("read", directory))?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().map_err(Error::io("read", directory))
}

/// The number in a directory's name that [`numbered_path`] wrote.
fn run_number(entry: &str, name: &str) -> Option<u64> {
    let rest = entry.strip_prefix(name)?;
    if rest.is_empty() {
        return Some(1);
    }
    let digits = rest.strip_prefix('-')?;
    // 32 bits, so that the next number always fits 64 bits. Longer numbers were not written here.
    let number: u32 = digits.parse().ok()?;
    (number >= 2 && number.to_string() == digits).then_some(number.into())
}

/// The first file that every run has and `directory` lacks.
fn missing_file(directory: &Path) -> Option<&'static str> {
    [MANIFEST, RESOLVED].into_iter().find(|name| !directory.join(name).exists())
}

/// Checks that a name is a single path component and not hidden.
fn validate(name: &str) -> Result<()> {
    let mut parts = Path::new(name).components();
    let is_one_part = matches!(parts.next(), Some(Component::Normal(part)) if part == name);
    let is_plain = !name.starts_with('.') && !name.contains(char::is_control);
    if is_one_part && parts.next().is_none() && is_plain && name.len() <= MAX_NAME {
        return Ok(());
    }
    let message = format!(
        "the name of a run, `{}`, must be that of a visible directory: no `/`, no dot in front, at \
         most {MAX_NAME} bytes; `--name` sets another name",
        name.escape_debug()
    );
    Err(Error::input(message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use candle_core::Device;

    use super::*;
    use crate::observer::jsonl;

    fn started(root: &Path, name: &str) -> RunDirectory {
        started_as(root, name, None)
    }

    /// A run whose manifest has this name.
    fn started_as(root: &Path, name: &str, recorded: Option<&str>) -> RunDirectory {
        let run = RunDirectory::create(root, name).unwrap();
        let manifest = Manifest::new(&Device::Cpu, BTreeMap::new(), 5);
        let manifest = Manifest { name: recorded.map(str::to_owned), ..manifest };
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
        // None of these is a number that `create` writes.
        for other in ["tiny-07", "tiny-1", "tiny-x", "tiny-99999999999999999999", "tiny2"] {
            fs::create_dir(root.path().join(other)).unwrap();
        }
        assert_eq!(RunDirectory::create(root.path(), "tiny").unwrap().name(), "tiny-4");
        fs::remove_dir_all(root.path().join("tiny-4")).unwrap();
        assert_eq!(started(root.path(), "tiny").name(), "tiny-4");
    }

    #[test]
    fn a_run_of_another_name_is_not_taken_for_a_numbered_one() {
        let root = tempfile::tempdir().unwrap();
        let names = |name: &str| -> Vec<String> {
            let runs = RunDirectory::all(root.path(), name).unwrap();
            runs.iter().map(RunDirectory::name).collect()
        };
        started_as(root.path(), "a", Some("a"));
        started_as(root.path(), "a-2", Some("a-2"));
        assert_eq!(names("a"), ["a"]);
        assert_eq!(names("a-2"), ["a-2"]);
        assert_eq!(started_as(root.path(), "a", Some("a")).name(), "a-3");
        assert_eq!(names("a"), ["a-3", "a"]);
        // Older manifests have no name: such a run is the last choice.
        assert_eq!(started(root.path(), "a").name(), "a-4");
        assert_eq!(names("a"), ["a-3", "a", "a-4"]);
        assert_eq!(RunDirectory::last(root.path(), "a").unwrap().unwrap().name(), "a-3");
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
        assert_eq!(fs::read_to_string(run.path().join(CONFIG)).unwrap(), "seed = 17 # mine\n");
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
        jsonl::cut_after(&run.metrics_path(), 5, 0).unwrap();
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
