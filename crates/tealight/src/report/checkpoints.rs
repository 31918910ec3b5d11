//! The checkpoints of a run.

use maud::{Markup, html};
use tealight_train::task::table::thousands;

use super::read::RunData;
use crate::terminal::numbers::format_bytes;

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
