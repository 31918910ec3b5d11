//! The trait of tasks whose reports the binary prints.

use std::path::Path;

use tealight_train::task::Reported;

/// A task whose report is printed as a table.
pub(crate) trait Presented: Reported {
    /// The report as a table with a footnote.
    fn table(report: &Self::Report) -> String;

    /// A command that uses the trained run, suggested after training.
    fn next_command(run: &Path) -> String;
}
