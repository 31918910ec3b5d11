//! How to do a run again: command, configuration, versions, fingerprints of the data.

use maud::{Markup, html};
use tealight_train::run::Manifest;

use super::read::RunData;
use crate::terminal::escape::{shell_path, shell_quoted};

/// The section of a run.
pub(super) fn of_one(run: &RunData) -> Markup {
    let Manifest {
        started,
        tealight_version,
        candle_version,
        commit,
        device,
        threads,
        instructions,
        ..
    } = &run.manifest;
    let resolved = shell_path(&run.directory.path().join("resolved.toml"));
    let name = format!("{}-again", run.name);
    html! {
        p { "The same run again, from its resolved configuration:" }
        pre { code { "tealight train " (resolved) " --name " (shell_quoted(&name)) } }
        dl.facts {
            div { dt { "started" } dd { (started.replace('T', " ").replace('Z', " UTC")) } }
            div { dt { "tealight" } dd { (tealight_version) @if let Some(commit) = commit { " (" (commit) ")" } } }
            div { dt { "candle" } dd { (candle_version) } }
            div { dt { "device" } dd { (device) } }
            div { dt { "threads" } dd { (threads) } }
            @if let Some(instructions) = instructions { div { dt { "instructions" } dd { (instructions.to_string()) } } }
            @for (name, size) in &run.manifest.sizes { div { dt { (name) } dd { (size) } } }
        }
        @if run.manifest.data.is_empty() {
            p { "The data are drawn; the seed " (run.config.seed) " decides them." }
        } @else {
            div.scroll { table {
                caption { "Files of the data" }
                thead { tr { th scope="col" { "setting" } th scope="col" { "file" } th scope="col" { "fingerprint" } } }
                tbody { @for file in &run.manifest.data { tr {
                    th scope="row" { code { (file.key) } }
                    td { (file.path.display().to_string()) }
                    td { code { (file.fingerprint) } }
                } } }
            } }
        }
        details { summary { "resolved.toml" } pre { code { (run.resolved) } } }
    }
}
