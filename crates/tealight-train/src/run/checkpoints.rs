//! The checkpoints of a run: `step-000500/` and so on, and the pointers `latest` and `best`.
//!
//! A checkpoint is written under a temporary name and then renamed, so a directory `step-…` is always
//! complete. A crash leaves at most a hidden `.….tmp`, which is never read and which the next write removes.
//! Damage that happens on the disk later is detected on reading: the checkpoint is renamed to
//! `damaged-step-000500`, and the one before it is used.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use candle_core::Device;

use super::checkpoint::{self, Checkpoint};
use super::lock::{Lock, Owner};
use super::{RunDirectory, entry_names, numbered_path};
use crate::config::Select;
use crate::error::{Error, Result};
use crate::storage::files;

/// The directory of checkpoints in that of a run.
pub(super) const DIRECTORY: &str = "checkpoints";
const LATEST: &str = "latest";
const BEST: &str = "best";
/// The most bytes of `latest` and `best`, which hold the name of a step.
const MAX_POINTER: u64 = 1 << 12;
/// The suffix of a checkpoint that is being replaced.
const REPLACED: &str = ".old.tmp";

/// Selects a checkpoint of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// The one written last.
    #[default]
    Latest,
    /// The one with the best evaluation.
    Best,
    /// The one after this number of updates.
    Step(u64),
}

impl From<Select> for Selection {
    fn from(select: Select) -> Self {
        match select {
            Select::Latest => Self::Latest,
            Select::Best => Self::Best,
        }
    }
}

impl Selection {
    /// The checkpoint that a path inside a run names: the directory of a step, a file in it, `latest` or
    /// `best`. `None` for any other path.
    pub fn named(path: &Path, directory: &RunDirectory) -> Option<Self> {
        if path == directory.path() {
            return None;
        }
        let pointer = || path.file_name()?.to_str()?.parse().ok();
        step_of(path).map(Self::Step).or_else(pointer)
    }
}

impl FromStr for Selection {
    type Err = Error;

    /// `latest`, `best`, `500` or `step-000500`.
    fn from_str(text: &str) -> Result<Self> {
        let digits = text.strip_prefix("step-").unwrap_or(text);
        match (text, digits.parse()) {
            (LATEST, _) => Ok(Self::Latest),
            (BEST, _) => Ok(Self::Best),
            (_, Ok(step)) => Ok(Self::Step(step)),
            _ => {
                let message = format!("`{text}` is not `latest`, `best` or the number of a step");
                Err(Error::input(message))
            }
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str(LATEST),
            Self::Best => f.write_str(BEST),
            Self::Step(step) => f.write_str(&step_name(*step)),
        }
    }
}

/// The checkpoint that a run resumes from.
#[derive(Clone, Debug)]
pub struct NewestCheckpoint {
    /// The newest undamaged checkpoint; `None` if there is no checkpoint at all.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints, all damaged.
    pub damaged: Vec<DamagedCheckpoint>,
}

/// A damaged checkpoint that was renamed.
#[derive(Clone, Debug)]
pub struct DamagedCheckpoint {
    /// Number of updates at which it was saved.
    pub step: u64,
    /// The error of reading it.
    pub damage: String,
    /// Its new path.
    pub moved_to: PathBuf,
}

/// The directory `checkpoints` of a run, which may not exist yet.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    directory: PathBuf,
    /// Who may write them; `None` if that is not checked.
    owner: Option<Owner>,
}

impl Checkpoints {
    /// The checkpoints in `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, owner: None }
    }

    /// The checkpoints of a run that this process has locked: before it writes or removes one, it checks that no other
    /// process has taken the `lock` since.
    #[must_use]
    pub fn owned_by(self, lock: &Lock) -> Self {
        Self { owner: Some(lock.owner()), ..self }
    }

    fn check_owner(&self) -> Result<()> {
        self.owner.as_ref().map_or(Ok(()), Owner::check)
    }

    /// Writes a checkpoint, marks it `latest`, and returns its directory. An existing checkpoint of the same
    /// step is replaced.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf> {
        self.check_owner()?;
        files::refuse_link(&self.directory)?;
        files::create_directory(&self.directory)?;
        self.recover()?;
        for name in entry_names(&self.directory)?.iter().filter(|name| files::is_temporary(name)) {
            files::remove_if_exists(&self.directory.join(name))?;
        }
        let step = checkpoint.state.step;
        let (path, replaced) = (self.path(step), self.replaced(step));
        let temporary = self.directory.join(format!(".{}.new.tmp", step_name(step)));
        files::create_directory(&temporary)?;
        checkpoint.write(&temporary)?;
        files::sync_directory(&temporary)?;
        if path.exists() {
            files::rename(&path, &replaced)?;
        }
        files::rename(&temporary, &path)?;
        self.set_pointer(LATEST, step)?;
        files::remove_if_exists(&replaced)?;
        Ok(path)
    }

    /// Reads the latest checkpoint or, if it is damaged, the newest undamaged one before it. The damaged ones
    /// are renamed, but only after an undamaged one has been read.
    ///
    /// # Errors
    /// If there are checkpoints and all are damaged.
    pub fn load_newest(&self, device: &Device) -> Result<NewestCheckpoint> {
        files::refuse_link(&self.directory)?;
        self.recover()?;
        let latest = self.latest()?;
        let steps = self.steps()?.into_iter().rev().filter(|step| Some(*step) <= latest);
        let mut damaged: Vec<(u64, String)> = Vec::new();
        for step in steps {
            match Checkpoint::load(&self.path(step), device) {
                Err(error) if error.is_damage() => damaged.push((step, with_causes(&error))),
                loaded => {
                    let (checkpoint, damaged) = (Some(loaded?), self.rename_damaged(damaged)?);
                    return Ok(NewestCheckpoint { checkpoint, damaged });
                }
            }
        }
        if damaged.is_empty() {
            return Ok(NewestCheckpoint { checkpoint: None, damaged: Vec::new() });
        }
        let damages = damaged.into_iter().map(|(_, damage)| damage).collect();
        Err(Error::NoWholeCheckpoint { path: self.directory.clone(), damages })
    }

    /// Renames damaged checkpoints, so that their files stay and the run can write the steps again.
    fn rename_damaged(&self, damaged: Vec<(u64, String)>) -> Result<Vec<DamagedCheckpoint>> {
        let rename = |(step, damage)| {
            let name = format!("damaged-{}", step_name(step));
            let mut paths = (1..).map(|number| numbered_path(&self.directory, &name, number));
            let moved_to = paths.find(|path| !path.exists());
            let moved_to = moved_to.expect("invariant: there are more numbers than directories");
            files::rename(&self.path(step), &moved_to)?;
            Ok(DamagedCheckpoint { step, damage, moved_to })
        };
        damaged.into_iter().map(rename).collect()
    }

    /// Renames a checkpoint back whose replacement was never completed because the process died.
    fn recover(&self) -> Result<()> {
        for name in entry_names(&self.directory)? {
            let step = name.strip_prefix('.').and_then(|name| name.strip_suffix(REPLACED));
            if let Some(step) = step.and_then(parse_step)
                && !self.path(step).exists()
            {
                files::rename(&self.replaced(step), &self.path(step))?;
            }
        }
        Ok(())
    }

    /// The temporary path of a checkpoint while a new one of the same step replaces it.
    fn replaced(&self, step: u64) -> PathBuf {
        self.directory.join(format!(".{}{REPLACED}", step_name(step)))
    }

    /// Marks the checkpoint of `step` as `best`.
    ///
    /// # Errors
    /// If there is no checkpoint of `step`.
    pub fn mark_best(&self, step: u64) -> Result<()> {
        files::refuse_link(&self.directory)?;
        if !self.contains(step) {
            return Err(self.no_checkpoint(Selection::Step(step)));
        }
        if self.pointer(BEST)? == Some(step) { Ok(()) } else { self.set_pointer(BEST, step) }
    }

    /// Marks no checkpoint as `best`.
    pub(crate) fn unmark_best(&self) -> Result<()> {
        files::refuse_link(&self.directory)?;
        files::remove_if_exists(&self.directory.join(BEST))
    }

    /// Whether there is a checkpoint of `step`. It is complete, but may be damaged.
    pub fn contains(&self, step: u64) -> bool {
        self.path(step).is_dir()
    }

    /// The directories of damaged checkpoints that [`Self::load_newest`] renamed, sorted by name.
    pub fn damaged(&self) -> Result<Vec<PathBuf>> {
        let mut names = entry_names(&self.directory)?;
        names.retain(|name| name.starts_with("damaged-step-"));
        names.sort_unstable();
        Ok(names.into_iter().map(|name| self.directory.join(name)).collect())
    }

    /// Removes all checkpoints except the latest `keep_last` (at least one), the best, and the one that the
    /// run would roll back to. Returns the removed steps. A run that went back to an earlier checkpoint may
    /// have some after `latest`; they stay.
    pub fn prune(&self, keep_last: usize) -> Result<Vec<u64>> {
        self.check_owner()?;
        files::refuse_link(&self.directory)?;
        let Some(latest) = self.latest()? else { return Ok(Vec::new()) };
        let roll_back_to = checkpoint::load_state(&self.path(latest))?.bad_step.roll_back_to;
        let kept = [self.pointer(BEST)?, roll_back_to];
        let mut removed: Vec<u64> =
            self.steps()?.into_iter().filter(|&step| step <= latest).collect();
        removed.truncate(removed.len().saturating_sub(keep_last.max(1)));
        removed.retain(|&step| !kept.contains(&Some(step)));
        for &step in &removed {
            files::remove_directory(&self.path(step))?;
        }
        Ok(removed)
    }

    /// The steps that have a checkpoint, in ascending order.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let names = entry_names(&self.directory)?;
        let steps = names.iter().filter_map(|name| parse_step(name));
        let mut steps: Vec<u64> = steps.filter(|step| self.contains(*step)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The step of the latest checkpoint: the one that `latest` names or, if that does not exist, as after a
    /// crash, the highest.
    pub fn latest(&self) -> Result<Option<u64>> {
        let steps = self.steps()?;
        let named = self.pointer(LATEST)?.filter(|step| steps.contains(step));
        Ok(named.or(steps.last().copied()))
    }

    /// The step of the best checkpoint.
    pub fn best(&self) -> Result<Option<u64>> {
        Ok(self.pointer(BEST)?.filter(|step| self.contains(*step)))
    }

    /// The directory of the selected checkpoint.
    pub fn find(&self, selection: Selection) -> Result<PathBuf> {
        let step = match selection {
            Selection::Latest => self.latest()?,
            Selection::Best => self.best()?,
            Selection::Step(step) => Some(step).filter(|step| self.contains(*step)),
        };
        step.map(|step| self.path(step)).ok_or_else(|| self.no_checkpoint(selection))
    }

    /// The directory of the checkpoint that was `asked` for or else of the one that the run's settings `select`. Where
    /// there is no best one, the latest takes its place, if nobody has asked for another; a note says so.
    pub fn select(
        &self,
        asked: Option<Selection>,
        select: Select,
    ) -> Result<(PathBuf, Option<String>)> {
        if asked.is_none()
            && select == Select::Best
            && self.best()?.is_none()
            && let Some(step) = self.latest()?
        {
            let note = format!(
                "there is no best checkpoint (`checkpoint.select`), so the latest one, of step {step}, is used"
            );
            return Ok((self.path(step), Some(note)));
        }
        Ok((self.find(asked.unwrap_or(select.into()))?, None))
    }

    /// Reads the selected checkpoint.
    pub fn load(&self, selection: Selection, device: &Device) -> Result<Checkpoint> {
        Checkpoint::load(&self.find(selection)?, device)
    }

    /// The directory of the checkpoint of `step`, which may not exist.
    pub fn path(&self, step: u64) -> PathBuf {
        self.directory.join(step_name(step))
    }

    /// Writes `latest` or `best`: files with the name of a step, because not every file system has links.
    fn set_pointer(&self, name: &str, step: u64) -> Result<()> {
        files::replace(&self.directory.join(name), format!("{}\n", step_name(step)).as_bytes())
    }

    fn pointer(&self, name: &str) -> Result<Option<u64>> {
        let path = self.directory.join(name);
        if !path.exists() {
            return Ok(None);
        }
        Ok(parse_step(String::from_utf8_lossy(&files::read_up_to(&path, MAX_POINTER)?).trim()))
    }

    fn no_checkpoint(&self, selection: Selection) -> Error {
        let present = self.steps().unwrap_or_default().into_iter().map(step_name).collect();
        Error::NoCheckpoint { path: self.directory.clone(), wanted: selection.to_string(), present }
    }
}

/// An error and its causes, on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The step of the checkpoint at `path`, or of the one that contains the file at `path`.
pub fn step_of(path: &Path) -> Option<u64> {
    let absolute = fs::canonicalize(path).ok()?;
    absolute.ancestors().take(2).find_map(|part| {
        // A run may have the name `step-000500`, so the parent is checked, too.
        let is_checkpoint = part.parent()?.file_name()? == DIRECTORY;
        parse_step(part.file_name()?.to_str()?).filter(|_| is_checkpoint)
    })
}

/// `step-000500`. Names sort like steps, up to a million steps.
fn step_name(step: u64) -> String {
    format!("step-{step:06}")
}

fn parse_step(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests;
