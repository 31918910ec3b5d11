//! What the commands need of a task beside what training does.

use std::path::Path;

use tealight_train::task::Reported;

/// A task whose result a person can read.
pub(crate) trait Presented: Reported {
    /// The result as a table, with a footnote.
    fn table(report: &Self::Report) -> String;

    /// A command to try with the trained run.
    fn next_command(run: &Path) -> String;
}
