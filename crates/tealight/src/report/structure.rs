//! Which parts a page has, beyond what a live page is told change by change.

use super::read::RunData;

/// A text that becomes another one when a new page of the run has other parts: charts, samples, results, checkpoints.
pub(super) fn structure(run: &RunData) -> String {
    let n_series = run.log.series.len();
    let checkpoint = run.checkpoints.last().map_or(0, |checkpoint| checkpoint.step);
    let (samples, has_report) = (run.sample_bytes, run.report.is_some());
    format!("{n_series}/{samples}/{has_report}/{checkpoint}/{}", run.state.word())
}
