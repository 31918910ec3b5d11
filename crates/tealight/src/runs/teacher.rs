//! `teacher.json`: the scores of the teacher of a run (`[teacher]`) and of its model before training, for the table that
//! compares both with the trained model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use tealight_train::Session;
use tealight_train::storage::files::{read_json, replace, to_json};
use tealight_train::task::Task;
use tealight_train::task::report::Report;
use tealight_train::task::table::{Table, thousands};
use tealight_train::training::imitation::Scores;

/// The format version that is written, and the newest that can be read.
const FORMAT_VERSION: u64 = 1;
const FILE: &str = "teacher.json";

/// The content of `teacher.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TeacherScores {
    /// The format version of the file.
    format_version: u64,
    /// The path of the teacher.
    model: PathBuf,
    teacher: Scores,
    /// The model before its first step.
    untrained: Scores,
}

impl TeacherScores {
    /// Measures the teacher of a session at step 0, and its model; `None` without a teacher that has scores.
    pub(crate) fn measure<T: Task>(session: &Session<T>) -> Result<Option<Self>> {
        let Some(teacher) = session.scores_of_teacher()? else { return Ok(None) };
        let of_config = session.config.teacher.as_ref().map(|config| config.model.clone());
        Ok(Some(Self {
            format_version: FORMAT_VERSION,
            model: of_config.unwrap_or_default(),
            teacher,
            untrained: session.scores()?,
        }))
    }

    /// Writes the file of a new run.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        Ok(replace(&path, &to_json(&path, self)?)?)
    }

    /// Adds to the report of a run the table of teacher, untrained and trained model; nothing if the run had no teacher.
    pub(crate) fn add_to<T: Task>(
        report: &mut Report,
        session: &Session<T>,
        directory: &Path,
    ) -> tealight_train::Result<()> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Ok(());
        }
        let Self { teacher, untrained, .. } = read_json(&path, FORMAT_VERSION)?;
        let trained = session.scores()?;
        let rows = [("teacher", &teacher), ("untrained", &untrained), ("trained", &trained)];
        let names: BTreeSet<&String> =
            rows.iter().flat_map(|(_, scores)| scores.metrics.keys()).collect();
        let sizes = ["validation", "parameters", "tokens/s"].map(str::to_owned);
        let mut table = Table::new(sizes.into_iter().chain(names.iter().map(|&name| name.clone())));
        for (name, scores) in rows {
            let speed = scores.tokens_per_second.map(|speed| thousands(speed.round() as u64));
            let cells =
                [name.to_owned(), thousands(scores.n_parameters), speed.unwrap_or_default()];
            let metrics = names.iter().map(|&name| scores.metrics.get(name));
            let metrics =
                metrics.map(|value| value.map_or_else(String::new, |value| format!("{value:.4}")));
            table.row(cells.into_iter().chain(metrics));
        }
        let values = rows.map(|(name, scores)| (name.to_owned(), json!(scores)));
        report.add_table("imitation", &table, Map::from_iter(values));
        Ok(())
    }
}
