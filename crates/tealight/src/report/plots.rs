//! The pictures that the final evaluation of a run has drawn.

use maud::{Markup, html};

use super::read::RunData;

/// The section of a run; `None` if it has no pictures.
pub(super) fn of_one(run: &RunData) -> Option<Markup> {
    (!run.plots.is_empty()).then(|| html! { @for plot in &run.plots { (plot.figure()) } })
}
