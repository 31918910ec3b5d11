//! The settings of one run that are not defaults, or those in which several runs differ.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use serde_json::Value;
use tealight_train::config::RunConfig;

use super::read::RunData;

/// The settings of one run that differ from the defaults.
pub(super) fn of_one(run: &RunData) -> Markup {
    let settings = run.config.settings();
    let defaults = defaults(&run.config);
    html! {
        div.scroll { table {
            caption { "Settings that differ from the defaults" }
            thead { tr { th scope="col" { "setting" } th scope="col" { "value" } th scope="col" { "default" } } }
            tbody { @for (key, value) in settings.iter().filter(|(key, value)| defaults.get(*key) != Some(*value)) { tr {
                th scope="row" { code { (key) } }
                td { code { (value.to_string()) } }
                td { code { (shown(defaults.get(key))) } }
            } } }
        } }
    }
}

/// The default of each setting: of a choice that of the task, of its settings those of the chosen kind.
fn defaults(config: &RunConfig) -> BTreeMap<String, Value> {
    let of = |defaults: Option<RunConfig>| defaults.map(|of| of.settings()).unwrap_or_default();
    let is_kind = |key: &str| key.rsplit('.').next() == Some("kind");
    let mut defaults = of(config.with_defaults());
    defaults.retain(|key, _| !is_kind(key));
    let of_task = of(config.of_same_task()).into_iter();
    defaults.extend(of_task.filter(|(key, _)| is_kind(key)));
    defaults
}

/// The settings in which the runs differ.
pub(super) fn of_several(runs: &[RunData]) -> Markup {
    let settings: Vec<BTreeMap<String, Value>> =
        runs.iter().map(|run| run.config.settings()).collect();
    let keys: BTreeSet<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    let differs =
        |key: &&&String| settings.iter().any(|of| of.get(**key) != settings[0].get(**key));
    let keys: Vec<&String> = keys.iter().filter(differs).copied().collect();
    if keys.is_empty() {
        return html! { p { "All settings of the runs are the same." } };
    }
    html! {
        div.scroll { table {
            caption { "Settings in which the runs differ" }
            thead { tr { th scope="col" { "setting" } @for run in runs { th scope="col" { (run.name) } } } }
            tbody { @for key in keys { tr {
                th scope="row" { code { (key) } }
                @for of in &settings { td { code { (shown(of.get(key))) } } }
            } } }
        } }
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "–".to_owned(), ToString::to_string)
}
