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
            thead { tr { @for heading in ["step", "size", "", "in use"] { th scope="col" { (heading) } } } }
            tbody { @for one in &run.checkpoints { tr.own[one.is_in_use] {
                th scope="row" { (thousands(one.step)) }
                td { (format_bytes(one.bytes as f64)) }
                td { (one.marks.join(", ")) }
                td { @if one.is_in_use { "✓ evaluated, and opened by commands" } }
            } } }
        } }
    }
}
