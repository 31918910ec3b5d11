//! The checkpoints of a run: `step-000500/` and so on, and which of them are the latest and best.
//!
//! A checkpoint is written under another name and renamed, so what has its name is complete. A
//! crash leaves at most a hidden `.….tmp`, which is not read and is removed by the next write. What a
//! disk has damaged since is noticed when it is read, put aside as `damaged-step-000500`, and passed
//! over.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use candle_core::Device;

use super::checkpoint::{self, Checkpoint};
use super::{CHECKPOINTS, RunDirectory};
use crate::config::Select;
use crate::error::{Error, Result};
use crate::storage::files;

const LATEST: &str = "latest";
const BEST: &str = "best";
const REPLACED: &str = ".old.tmp";

/// Which checkpoint of a run is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// The one that was written last.
    #[default]
    Latest,
    /// The one with the best evaluation.
    Best,
    /// The one after so many updates.
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
    /// The checkpoint that a path into a run names: a step's directory, a file in it, `latest` or
    /// `best`.
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
                Err(Error::config([], message))
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

/// What a run goes on from.
#[derive(Clone, Debug)]
pub struct Newest {
    /// The newest checkpoint that is whole; `None` if there is no checkpoint at all.
    pub checkpoint: Option<Checkpoint>,
    /// Those that are newer and damaged.
    pub passed_over: Vec<PassedOver>,
}

/// A damaged checkpoint.
#[derive(Clone, Debug)]
pub struct PassedOver {
    /// After how many updates it was saved.
    pub step: u64,
    /// What is wrong with it.
    pub damage: String,
    /// Where it is now.
    pub kept: PathBuf,
}

/// The directory `checkpoints` of a run; it need not exist yet.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    directory: PathBuf,
}

impl Checkpoints {
    /// The checkpoints in `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Writes a checkpoint, makes it the latest, and returns its directory. One of the same step
    /// is replaced.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf> {
        files::create_directory(&self.directory)?;
        self.recover()?;
        self.remove_leftovers()?;
        let step = checkpoint.state.step;
        let (path, replaced) = (self.path(step), self.replaced(step));
        let aside = self.directory.join(format!(".{}.new.tmp", step_name(step)));
        files::create_directory(&aside)?;
        checkpoint.write(&aside)?;
        files::sync_directory(&aside)?;
        if path.exists() {
            files::rename(&path, &replaced)?;
        }
        files::rename(&aside, &path)?;
        self.point(LATEST, step)?;
        files::remove_if_exists(&replaced)?;
        Ok(path)
    }

    /// Reads the latest checkpoint, or the newest before it that is whole. What is damaged is moved
    /// aside, but only once something whole has been found.
    ///
    /// # Errors
    /// If there are checkpoints and none of them is whole.
    pub fn load_newest(&self, device: &Device) -> Result<Newest> {
        self.recover()?;
        let latest = self.latest()?;
        let steps = self.steps()?.into_iter().rev().filter(|step| Some(*step) <= latest);
        let mut damaged: Vec<(u64, String)> = Vec::new();
        for step in steps {
            match Checkpoint::load(&self.path(step), device) {
                Ok(checkpoint) => {
                    let passed_over = self.put_aside(damaged)?;
                    return Ok(Newest { checkpoint: Some(checkpoint), passed_over });
                }
                Err(error) if error.is_damage() => damaged.push((step, causes(&error))),
                Err(error) => return Err(error),
            }
        }
        if damaged.is_empty() {
            return Ok(Newest { checkpoint: None, passed_over: Vec::new() });
        }
        let damages = damaged.into_iter().map(|(_, damage)| damage).collect();
        Err(Error::NoWholeCheckpoint { path: self.directory.clone(), damages })
    }

    /// What is damaged keeps its content under another name, and the run may write the step again.
    fn put_aside(&self, damaged: Vec<(u64, String)>) -> Result<Vec<PassedOver>> {
        let put_aside = |(step, damage)| {
            let name = format!("damaged-{}", step_name(step));
            let numbered = (2..).map(|n| format!("{name}-{n}"));
            let mut paths =
                std::iter::once(name.clone()).chain(numbered).map(|name| self.directory.join(name));
            let kept = paths.find(|path| !path.exists());
            let kept = kept.expect("invariant: there are more numbers than directories");
            files::rename(&self.path(step), &kept)?;
            Ok(PassedOver { step, damage, kept })
        };
        damaged.into_iter().map(put_aside).collect()
    }

    /// Puts back what made way for a checkpoint that was never completed, because the process died.
    fn recover(&self) -> Result<()> {
        for name in self.names()? {
            let Some(step) = name.strip_prefix('.').and_then(|name| name.strip_suffix(REPLACED))
            else {
                continue;
            };
            let Some(step) = parse_step(step).filter(|step| !self.path(*step).exists()) else {
                continue;
            };
            files::rename(&self.replaced(step), &self.path(step))?;
        }
        Ok(())
    }

    /// Where a checkpoint goes while another of its step takes its place.
    fn replaced(&self, step: u64) -> PathBuf {
        self.directory.join(format!(".{}{REPLACED}", step_name(step)))
    }

    /// Makes the checkpoint of `step`, which has been saved, the best.
    pub fn mark_best(&self, step: u64) -> Result<()> {
        if !self.contains(step) {
            return Err(self.no_checkpoint(Selection::Step(step)));
        }
        if self.pointer(BEST)? == Some(step) { Ok(()) } else { self.point(BEST, step) }
    }

    /// Whether `step` has a checkpoint, be it damaged: only a complete one is ever given its name.
    pub fn contains(&self, step: u64) -> bool {
        self.path(step).is_dir()
    }

    /// Reads every file of a checkpoint and says what is wrong with the first that is damaged.
    pub fn verify(&self, step: u64) -> Result<()> {
        checkpoint::verify(&self.find(Selection::Step(step))?)
    }

    /// Bytes of a checkpoint.
    pub fn size(&self, step: u64) -> Result<u64> {
        checkpoint::size(&self.find(Selection::Step(step))?)
    }

    /// The directories of damaged checkpoints that were put aside, by name.
    pub fn damaged(&self) -> Result<Vec<PathBuf>> {
        let mut names = self.names()?;
        names.retain(|name| name.starts_with("damaged-step-"));
        names.sort_unstable();
        Ok(names.into_iter().map(|name| self.directory.join(name)).collect())
    }

    /// Removes all but the latest `keep_last` checkpoints (at least one), the best, and the one that
    /// the run would roll back to; returns the steps that are gone. Checkpoints after the latest, which a run that went back to an earlier
    /// one has not reached again, stay.
    pub fn prune(&self, keep_last: usize) -> Result<Vec<u64>> {
        let Some(latest) = self.latest()? else { return Ok(Vec::new()) };
        let roll_back_to = checkpoint::load_state(&self.path(latest))?.guard.roll_back_to;
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
        let names = self.names()?;
        let steps = names.iter().filter_map(|name| parse_step(name));
        let mut steps: Vec<u64> = steps.filter(|step| self.contains(*step)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The step of the latest checkpoint. Where `latest` names none, as after a crash, it is the
    /// highest step.
    pub fn latest(&self) -> Result<Option<u64>> {
        let steps = self.steps()?;
        let named = self.pointer(LATEST)?.filter(|step| steps.contains(step));
        Ok(named.or(steps.last().copied()))
    }

    /// The step of the best checkpoint.
    pub fn best(&self) -> Result<Option<u64>> {
        Ok(self.pointer(BEST)?.filter(|step| self.contains(*step)))
    }

    /// The directory of the checkpoint that is meant.
    pub fn find(&self, selection: Selection) -> Result<PathBuf> {
        let step = match selection {
            Selection::Latest => self.latest()?,
            Selection::Best => self.best()?,
            Selection::Step(step) => Some(step).filter(|step| self.path(*step).is_dir()),
        };
        step.map(|step| self.path(step)).ok_or_else(|| self.no_checkpoint(selection))
    }

    /// Reads the checkpoint that is meant.
    pub fn load(&self, selection: Selection, device: &Device) -> Result<Checkpoint> {
        Checkpoint::load(&self.find(selection)?, device)
    }

    /// Where the checkpoint of `step` is, or would be.
    pub fn path(&self, step: u64) -> PathBuf {
        self.directory.join(step_name(step))
    }

    /// `latest` and `best` are files with a step's name: links do not work everywhere.
    fn point(&self, name: &str, step: u64) -> Result<()> {
        files::replace(&self.directory.join(name), format!("{}\n", step_name(step)).as_bytes())
    }

    fn pointer(&self, name: &str) -> Result<Option<u64>> {
        let path = self.directory.join(name);
        if !path.exists() {
            return Ok(None);
        }
        Ok(parse_step(String::from_utf8_lossy(&files::read(&path)?).trim()))
    }

    fn remove_leftovers(&self) -> Result<()> {
        for name in self.names()?.iter().filter(|name| files::is_temporary(name)) {
            files::remove_if_exists(&self.directory.join(name))?;
        }
        Ok(())
    }

    /// What is in the directory; nothing if it does not exist.
    fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(Error::io("read", &self.directory))?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<std::io::Result<_>>().map_err(Error::io("read", &self.directory))
    }

    fn no_checkpoint(&self, selection: Selection) -> Error {
        let present = self.steps().unwrap_or_default().into_iter().map(step_name).collect();
        Error::NoCheckpoint { path: self.directory.clone(), wanted: selection.to_string(), present }
    }
}

/// An error and what caused it, on one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The step of the checkpoint that `path` is, or is a file of.
pub fn step_of(path: &Path) -> Option<u64> {
    let absolute = fs::canonicalize(path).ok()?;
    absolute.ancestors().take(2).find_map(|part| {
        // A run may be called `step-000500`, too.
        let is_checkpoint = part.parent()?.file_name()? == CHECKPOINTS;
        parse_step(part.file_name()?.to_str()?).filter(|_| is_checkpoint)
    })
}

/// `step-000500`: sorted by name is sorted by step, for runs of less than a million.
fn step_name(step: u64) -> String {
    format!("step-{step:06}")
}

fn parse_step(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests;
