//! The checkpoints that lie in a run's directory.

use anyhow::Result;
use tealight_train::config::Select;
use tealight_train::run::RunDirectory;

/// A checkpoint on the disk.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) step: u64,
    pub(in crate::report) bytes: u64,
    /// `latest`, `best`.
    pub(in crate::report) marks: Vec<&'static str>,
    /// Whether commands use it if none is named, as the final evaluation does.
    pub(in crate::report) is_in_use: bool,
}

impl Checkpoint {
    /// The checkpoints of a run, in ascending order of steps.
    pub(super) fn read_all(run: &RunDirectory, select: Select) -> Result<Vec<Self>> {
        let checkpoints = run.checkpoints();
        let (latest, best) = (checkpoints.latest()?, checkpoints.best()?);
        let in_use = match select {
            Select::Best => best.or(latest),
            Select::Latest => latest,
        };
        let checkpoint = |step: u64| {
            let marks = [("latest", latest), ("best", best)];
            let marks = marks.into_iter().filter(|(_, of)| *of == Some(step)).map(|(name, _)| name);
            let files = std::fs::read_dir(checkpoints.path(step)).into_iter().flatten().flatten();
            let bytes = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
            Self { step, bytes, marks: marks.collect(), is_in_use: in_use == Some(step) }
        };
        Ok(checkpoints.steps()?.into_iter().map(checkpoint).collect())
    }
}
