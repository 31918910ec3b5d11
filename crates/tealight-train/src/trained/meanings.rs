//! The settings that give the parameters of a model their meaning: a run that starts from the model has the same, or names
//! those that it changes (`init_from.allow`). With 8 heads of 32 channels, say, the same matrices that were trained as
//! 4 heads of 64 compute something else.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tealight_model::ModelSpec;

use super::TrainedModel;
use crate::config::{Difference, RunConfig, flat, is_in};
use crate::error::{Error, Result};

/// Settings of `[model]` that give no parameter another meaning. Another `max_seq_len` has another table of positions,
/// whose shape is checked.
const FREE: [&str; 4] =
    ["model.dropout", "model.stochastic_depth", "model.init", "model.max_seq_len"];
/// Settings of `[task]` that give the parameters of a classifier their meaning.
const OF_CLASSIFIERS: [&str; 5] =
    ["task.objective", "task.read_out", "task.colour", "task.mean", "task.deviation"];
/// Settings that decide shapes of most parameters.
const OF_SHAPES: [&str; 4] =
    ["model.d_model", "model.head_dim", "model.feed_forward.d_ff", "model.attention.n_kv_heads"];
/// The end of the key of a kind.
const KIND: &str = ".kind";

impl TrainedModel {
    /// Checks that the settings of a run that starts from this model give its parameters the meaning that they have
    /// here.
    ///
    /// # Errors
    /// Names the settings that differ, with both values.
    pub fn check_settings(&self, config: &RunConfig) -> Result<()> {
        let Some(init_from) = &config.init_from else { return Ok(()) };
        let with_meaning = |mut settings: BTreeMap<String, Value>| {
            settings.retain(|key, _| self.gives_meaning(key));
            settings
        };
        let base = with_meaning(flat(&self.settings_for(Some(config.task.kind()))?));
        let mut own = with_meaning(config.settings());
        // Settings of the task that the model does not know.
        own.retain(|key, _| is_in(key, "model") || base.contains_key(key));
        let is_known = |entry: &&String| base.keys().chain(own.keys()).any(|key| is_in(key, entry));
        if let Some(unknown) = init_from.allow.iter().find(|entry| !is_known(entry)) {
            let message = format!(
                "`init_from.allow` has `{unknown}`, which is no setting that gives the parameters of `{}` their meaning",
                self.origin.display()
            );
            return Err(Error::config(["init_from.allow"], message));
        }
        let differences = without_settings_of_other_kinds(Difference::all(base, own));
        let refused =
            differences.into_iter().filter(|Difference { key, .. }| !init_from.allows(key));
        refuse(&self.origin, &refused.collect::<Vec<_>>())
    }

    /// Whether the parameters of this model mean something else with another value of the setting `key`.
    fn gives_meaning(&self, key: &str) -> bool {
        let is_of = |tables: &[&str]| tables.iter().any(|table| is_in(key, table));
        let is_classifier = matches!(
            self.spec,
            Some(
                ModelSpec::TextClassifier(_) | ModelSpec::Tagger(_) | ModelSpec::ImageClassifier(_)
            )
        );
        // A head that is not among the parameters has no meaning yet.
        if is_of(&["model.classifier"]) {
            return is_classifier;
        }
        if is_of(&["model.lm_head"]) {
            return matches!(self.spec, Some(ModelSpec::MaskedLm(_)));
        }
        is_of(&["model"]) && !is_of(&FREE) || is_classifier && is_of(&OF_CLASSIFIERS)
    }
}

/// Where the kind of a part differs, only the kind: the settings of two kinds are no pairs.
fn without_settings_of_other_kinds(mut differences: Vec<Difference>) -> Vec<Difference> {
    let tables = differences.iter().filter_map(|other| other.key.strip_suffix(KIND));
    let tables: Vec<String> = tables.map(str::to_owned).collect();
    let is_setting = |key: &str| tables.iter().any(|table| is_in(key, table));
    differences.retain(|other| other.key.strip_suffix(KIND).is_some() || !is_setting(&other.key));
    differences
}

/// The error that these settings are not those of the model from `origin`, if there are any.
fn refuse(origin: &Path, differences: &[Difference]) -> Result<()> {
    let Some(first) = differences.first() else { return Ok(()) };
    let shown: Vec<_> = differences.iter().map(Difference::describe_difference).collect();
    let path = origin.display();
    let of_shapes = differences.iter().find(|other| OF_SHAPES.contains(&&*other.key));
    let insist = of_shapes.map_or_else(
        || {
            let keys = differences.iter().map(|other| format!("\"{}\"", other.key));
            let keys = keys.collect::<Vec<_>>().join(", ");
            format!("`init_from = {{ path = \"{path}\", allow = [{keys}] }}` insists on them")
        },
        |other| format!("with another `{}` its parameters would not fit", other.key),
    );
    let message = format!(
        "the parameters of `{path}` would mean something else: {}. Without these settings the run has those of the \
         model; {insist}",
        shown.join("; "),
    );
    Err(Error::config([&*first.key, "init_from"], message))
}
