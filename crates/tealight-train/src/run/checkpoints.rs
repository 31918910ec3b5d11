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
use super::{CHECKPOINTS, RunDirectory, files};
use crate::error::{Error, Result};

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
        files::remove_if_there(&replaced)?;
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
        for name in self.names()?.iter().filter(|name| files::is_aside(name)) {
            files::remove_if_there(&self.directory.join(name))?;
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
mod tests {
    use std::io::ErrorKind;

    use super::super::checkpoint::tests::example;
    use super::super::disk::fault::{Fault, at};
    use super::*;

    fn saved(steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
        let directory = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(directory.path().join("checkpoints"));
        for &step in steps {
            checkpoints.save(&example(step)).unwrap();
        }
        (directory, checkpoints)
    }

    fn step(checkpoints: &Checkpoints, selection: Selection) -> u64 {
        checkpoints.load(selection, &Device::Cpu).unwrap().state.step
    }

    #[test]
    fn latest_best_and_a_step_are_found() {
        let (_directory, checkpoints) = saved(&[500, 1_000, 1_500]);
        checkpoints.mark_best(1_000).unwrap();
        assert_eq!(step(&checkpoints, Selection::Latest), 1_500);
        assert_eq!(step(&checkpoints, Selection::Best), 1_000);
        assert_eq!(step(&checkpoints, Selection::Step(500)), 500);
        assert_eq!(step_of(&checkpoints.path(500)), Some(500));
        assert_eq!(step_of(&checkpoints.path(500).join("state.json")), Some(500));
        assert_eq!(step_of(&checkpoints.directory), None);
        assert_eq!(checkpoints.steps().unwrap(), [500, 1_000, 1_500]);
        let text = fs::read_to_string(checkpoints.directory.join("best")).unwrap();
        assert_eq!(text, "step-001000\n");
    }

    #[test]
    fn a_run_that_is_called_like_a_step_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("step-000002");
        let checkpoints = Checkpoints::new(run.join("checkpoints"));
        checkpoints.save(&example(5)).unwrap();
        fs::write(run.join("resolved.toml"), "").unwrap();
        for path in [&run, &run.join("resolved.toml"), &run.join("checkpoints")] {
            assert_eq!(step_of(path), None);
        }
        assert_eq!(step_of(&checkpoints.path(5)), Some(5));
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let (_directory, checkpoints) = saved(&[5, 7]);
        let message = |selection| checkpoints.find(selection).unwrap_err().to_string();
        let rule = "has no checkpoint `step-000006`; there are: step-000005, step-000007";
        assert!(message(Selection::Step(6)).ends_with(rule));
        assert!(message(Selection::Best).contains("no checkpoint `best`"));
        assert!(checkpoints.mark_best(6).unwrap_err().to_string().ends_with(rule));
        let (_directory, none) = saved(&[]);
        let message = none.find(Selection::Latest).unwrap_err().to_string();
        assert!(message.ends_with("has no checkpoint `latest`; there are: none"));
    }

    #[test]
    fn selections_are_read_as_they_are_written() {
        for selection in [Selection::Latest, Selection::Best, Selection::Step(500)] {
            assert_eq!(selection.to_string().parse::<Selection>().unwrap(), selection);
        }
        assert_eq!("500".parse::<Selection>().unwrap(), Selection::Step(500));
        assert!("newest".parse::<Selection>().unwrap_err().to_string().contains("`newest`"));
    }

    #[test]
    fn pruning_keeps_the_last_ones_and_the_best() {
        let (_directory, checkpoints) = saved(&[2, 3, 5, 7, 11]);
        checkpoints.mark_best(3).unwrap();
        assert_eq!(checkpoints.prune(2).unwrap(), [2, 5]);
        assert_eq!(checkpoints.steps().unwrap(), [3, 7, 11]);
        assert_eq!(checkpoints.prune(0).unwrap(), [7]);
        assert_eq!(checkpoints.steps().unwrap(), [3, 11]);
        assert_eq!(checkpoints.prune(1).unwrap(), [0_u64; 0]);
    }

    #[test]
    fn a_run_that_went_back_prunes_its_past_and_not_its_abandoned_future() {
        let (_directory, checkpoints) = saved(&[2, 3, 5, 7, 4]);
        assert_eq!(step(&checkpoints, Selection::Latest), 4);
        assert_eq!(checkpoints.prune(1).unwrap(), [2, 3]);
        assert_eq!(checkpoints.steps().unwrap(), [4, 5, 7]);
    }

    #[test]
    fn a_checkpoint_of_the_same_step_is_replaced() {
        let (_directory, checkpoints) = saved(&[5]);
        let mut again = example(5);
        again.state.seed = 19;
        again.ema = None;
        checkpoints.save(&again).unwrap();
        let loaded = checkpoints.load(Selection::Step(5), &Device::Cpu).unwrap();
        assert_eq!((loaded.state.seed, loaded.ema.is_none()), (19, true));
        assert_eq!(checkpoints.names().unwrap().len(), 2);
    }

    /// The process died while it wrote step 9, after step 7 had been removed by hand.
    #[test]
    fn leftovers_of_a_crash_are_ignored_then_removed() {
        let (_directory, checkpoints) = saved(&[3, 5, 7]);
        fs::remove_dir_all(checkpoints.path(7)).unwrap();
        let leftovers = [".step-000009.new.tmp", ".step-000002.tmp", ".latest.tmp"];
        let leftovers = leftovers.map(|name| checkpoints.directory.join(name));
        fs::create_dir(&leftovers[0]).unwrap();
        fs::write(leftovers[0].join("model.safetensors"), "half a mod").unwrap();
        fs::create_dir(&leftovers[1]).unwrap();
        fs::write(&leftovers[2], "step-0").unwrap();

        assert_eq!(step(&checkpoints, Selection::Latest), 5);
        assert_eq!(checkpoints.steps().unwrap(), [3, 5]);
        checkpoints.save(&example(9)).unwrap();
        assert_eq!(step(&checkpoints, Selection::Latest), 9);
        assert!(leftovers.iter().all(|path| !path.exists()));
    }

    #[test]
    fn pointers_that_were_cut_off_or_dangle_do_not_mislead() {
        let (_directory, checkpoints) = saved(&[3, 5]);
        checkpoints.mark_best(3).unwrap();
        for name in [LATEST, BEST] {
            fs::write(checkpoints.directory.join(name), "step-0000").unwrap();
        }
        assert_eq!(step(&checkpoints, Selection::Latest), 5);
        assert_eq!(checkpoints.best().unwrap(), None);
        fs::write(checkpoints.directory.join(BEST), "step-000004\n").unwrap();
        assert!(checkpoints.find(Selection::Best).is_err());
    }

    /// A run in miniature: it saves 3, 5 and 7, marks 5 as the best, keeps two.
    fn run(checkpoints: &Checkpoints) -> Result<u64> {
        let mut saved = 0;
        for step in [3, 5, 7] {
            checkpoints.save(&example(step))?;
            saved = step;
            if step == 5 {
                checkpoints.mark_best(5)?;
            }
            checkpoints.prune(2)?;
        }
        Ok(saved)
    }

    fn newest(checkpoints: &Checkpoints) -> Option<u64> {
        let Newest { checkpoint, passed_over } = checkpoints.load_newest(&Device::Cpu).unwrap();
        assert!(passed_over.is_empty(), "{passed_over:?}");
        checkpoint.map(|checkpoint| checkpoint.state.step)
    }

    #[test]
    fn a_process_may_die_at_any_call_and_the_last_checkpoint_is_there() {
        let mut reached = Vec::new();
        for n in 0.. {
            let (_directory, checkpoints) = saved(&[]);
            let (result, met) = at(n, Fault::Death, || run(&checkpoints));
            assert_eq!(result.is_err(), met);
            let before = newest(&checkpoints);
            // What comes after the crash is what would have come without it.
            assert_eq!(run(&checkpoints).unwrap(), 7);
            assert_eq!(checkpoints.steps().unwrap(), [5, 7]);
            assert_eq!(checkpoints.best().unwrap(), Some(5));
            let leftover =
                checkpoints.names().unwrap().into_iter().find(|name| name.starts_with('.'));
            assert_eq!(leftover, None);
            reached.push(before);
            if !met {
                break;
            }
        }
        assert!(reached.len() > 60, "{} calls", reached.len());
        assert!(reached.is_sorted(), "a later death lost more: {reached:?}");
        assert_eq!((reached[0], reached.last().unwrap()), (None, &Some(7)));
    }

    #[test]
    fn a_process_may_die_while_a_checkpoint_is_replaced() {
        for n in 0.. {
            let (_directory, checkpoints) = saved(&[5]);
            let (_, met) = at(n, Fault::Death, || checkpoints.save(&example(5)));
            assert_eq!(newest(&checkpoints), Some(5), "death at call {n}");
            checkpoints.save(&example(7)).unwrap();
            assert_eq!(checkpoints.steps().unwrap(), [5, 7]);
            if !met {
                break;
            }
        }
    }

    #[test]
    fn a_call_may_fail_as_on_a_full_disk_and_what_was_saved_stays() {
        for kind in [ErrorKind::StorageFull, ErrorKind::PermissionDenied] {
            for n in 0.. {
                let (_directory, checkpoints) = saved(&[3]);
                let (result, met) = at(n, Fault::Failure(kind), || run(&checkpoints));
                assert_eq!(result.is_err(), met, "failure of call {n}");
                if let Err(error) = result {
                    let Error::Io { source, .. } = &error else { panic!("{error}") };
                    assert_eq!(source.kind(), kind);
                }
                assert!(newest(&checkpoints) >= Some(3), "failure of call {n}");
                assert_eq!(run(&checkpoints).unwrap(), 7);
                if !met {
                    break;
                }
            }
        }
    }

    #[test]
    fn what_is_damaged_is_passed_over_and_kept() {
        let (_directory, checkpoints) = saved(&[2, 3, 5, 7]);
        fs::remove_file(checkpoints.path(7).join("optimizer.safetensors")).unwrap();
        let model = checkpoints.path(5).join("model.safetensors");
        let mut bytes = fs::read(&model).unwrap();
        *bytes.last_mut().unwrap() ^= 4;
        fs::write(&model, &bytes).unwrap();
        let Newest { checkpoint, passed_over } = checkpoints.load_newest(&Device::Cpu).unwrap();
        assert_eq!(checkpoint.unwrap().state.step, 3);
        let [last, first] = &passed_over[..] else { panic!("{passed_over:?}") };
        assert!(last.damage.ends_with("there is no `optimizer.safetensors`"), "{}", last.damage);
        assert!(first.damage.contains("model.safetensors` is damaged"), "{}", first.damage);
        assert_eq!(fs::read(first.kept.join("model.safetensors")).unwrap(), bytes);
        assert_eq!(checkpoints.damaged().unwrap(), [first.kept.clone(), last.kept.clone()]);
        assert_eq!((checkpoints.steps().unwrap(), newest(&checkpoints)), (vec![2, 3], Some(3)));
        // The step is reached again, and damaged again.
        checkpoints.save(&example(5)).unwrap();
        fs::write(checkpoints.path(5).join("SHA256SUMS"), "").unwrap();
        let passed_over = checkpoints.load_newest(&Device::Cpu).unwrap().passed_over;
        assert!(passed_over[0].kept.ends_with("damaged-step-000005-2"), "{passed_over:?}");
    }

    #[test]
    fn a_checkpoint_without_one_of_its_files_is_damaged_whichever_it_is() {
        let (_directory, checkpoints) = saved(&[5]);
        let files = fs::read_dir(checkpoints.path(5)).unwrap();
        let names: Vec<_> = files.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 5);
        for name in names {
            let (_directory, checkpoints) = saved(&[3, 5]);
            fs::remove_file(checkpoints.path(5).join(&name)).unwrap();
            assert!(checkpoints.verify(5).unwrap_err().is_damage(), "{name:?}");
            let Newest { checkpoint, passed_over } = checkpoints.load_newest(&Device::Cpu).unwrap();
            assert_eq!((checkpoint.unwrap().state.step, passed_over.len()), (3, 1), "{name:?}");
        }
    }

    #[test]
    fn where_nothing_is_whole_nothing_is_moved() {
        let (_directory, checkpoints) = saved(&[3, 5]);
        for step in [3, 5] {
            fs::write(checkpoints.path(step).join("model.safetensors"), "").unwrap();
        }
        for _ in 0..2 {
            let message = checkpoints.load_newest(&Device::Cpu).unwrap_err().to_string();
            assert!(message.contains("is whole: ") && message.contains("step-000003/model"));
            assert_eq!(checkpoints.steps().unwrap(), [3, 5]);
        }
        let (_directory, none) = saved(&[]);
        assert_eq!(newest(&none), None);
    }
}
