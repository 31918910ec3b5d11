//! The checkpoints of a run.

use anyhow::Result;
use maud::{Markup, html};
use tealight_train::run::RunDirectory;
use tealight_train::task::table::thousands;

use super::read::RunData;
use crate::terminal::numbers::format_bytes;

/// A checkpoint on the disk.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) step: u64,
    bytes: u64,
    /// `latest`, `best`.
    marks: Vec<&'static str>,
}

impl Checkpoint {
    /// The checkpoints of a run, in ascending order of steps.
    pub(super) fn of(run: &RunDirectory) -> Result<Vec<Self>> {
        let checkpoints = run.checkpoints();
        let (latest, best) = (checkpoints.latest()?, checkpoints.best()?);
        let checkpoint = |step: u64| {
            let marks = [("latest", latest), ("best", best)];
            let marks = marks.into_iter().filter(|(_, of)| *of == Some(step)).map(|(name, _)| name);
            let files = std::fs::read_dir(checkpoints.path(step)).into_iter().flatten().flatten();
            let bytes = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
            Self { step, bytes, marks: marks.collect() }
        };
        Ok(checkpoints.steps()?.into_iter().map(checkpoint).collect())
    }
}

/// The section of a run.
pub(super) fn of_one(run: &RunData) -> Markup {
    if run.checkpoints.is_empty() {
        return html! { p { "There is none." } };
    }
    html! {
        div.scroll { table {
            thead { tr { th scope="col" { "step" } th scope="col" { "size" } th scope="col" { "" } } }
            tbody { @for one in &run.checkpoints { tr {
                th scope="row" { (thousands(one.step)) }
                td { (format_bytes(one.bytes as f64)) }
                td { (one.marks.join(", ")) }
            } } }
        } }
    }
}
