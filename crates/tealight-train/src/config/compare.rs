//! Compares two configurations: may a run continue with the other one?

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::RunConfig;
use crate::settings::{ConfigSource, to_resolved_toml};

/// Settings that may change when a run is resumed: they decide what is written, or what happens after a bad
/// step, and change no update of a run that went well.
const EXEMPT: [&str; 9] = [
    "log.",
    "checkpoint.",
    "training.bad_step.",
    "training.loss_spike.",
    "training.test_data",
    "distributed.overlap",
    "distributed.bucket_mb",
    "distributed.shard_optimizer",
    "distributed.transport",
];
const WRITTEN: &str = "invariant: what was read from text can be written as text";

/// A setting that differs between two configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The dotted path, as in `model.attention.n_landmarks`.
    pub key: String,
    before: Option<Value>,
    now: Option<Value>,
}

impl RunConfig {
    /// Checks that a run with these settings may continue with `other`: only `[log]`, `[checkpoint]`,
    /// `training.bad_step`, `training.loss_spike`, `training.test_data`, the settings of `[distributed]` that change no number, and those
    /// that the model has no use for may differ. The error lists the other differences, sorted by key.
    pub fn same_run(&self, other: &Self) -> Result<(), Vec<Difference>> {
        let unused = self.task.settings().unused_model_settings();
        let is_exempt = |key: &str| EXEMPT.iter().chain(unused).any(|start| key.starts_with(start));
        let mut differences = self.differences(other);
        differences.retain(|Difference { key, .. }| !is_exempt(key));
        if differences.is_empty() { Ok(()) } else { Err(differences) }
    }

    /// All settings by dotted key, in alphabetical order; an array is one setting, and what is absent is left out.
    pub fn settings(&self) -> BTreeMap<String, Value> {
        settings(self)
    }

    /// A configuration of the same task, with all else at its defaults; `None` if a setting has no default.
    pub fn of_same_task(&self) -> Option<Self> {
        read(&json!({ "task": { "kind": self.task.kind() } }))
    }

    /// A configuration of the same kinds of parts, with all else at its defaults; `None` if a setting has no default.
    pub fn with_defaults(&self) -> Option<Self> {
        read(&kinds(serde_json::to_value(self).ok()?)?)
    }

    /// All settings of `other` that are not as here, sorted by key.
    pub(crate) fn differences(&self, other: &Self) -> Vec<Difference> {
        Difference::all(settings(self), settings(other))
    }
}

impl Difference {
    /// All settings, by dotted key, that are not the same in both, sorted by key.
    pub(crate) fn all(
        mut before: BTreeMap<String, Value>,
        mut now: BTreeMap<String, Value>,
    ) -> Vec<Self> {
        let keys: BTreeSet<String> = before.keys().chain(now.keys()).cloned().collect();
        keys.into_iter()
            .map(|key| Self { before: before.remove(&key), now: now.remove(&key), key })
            .filter(|Self { before, now, .. }| before != now)
            .collect()
    }

    /// `` `training.steps` = 7, not 6 ``
    pub(crate) fn describe_difference(&self) -> String {
        format!(
            "`{}` = {}, not {}",
            self.key,
            shown(self.now.as_ref()),
            shown(self.before.as_ref())
        )
    }
}

/// The configuration with these settings, read as a file is, because that code is part of the program anyway.
fn read(settings: &Value) -> Option<RunConfig> {
    let text = to_resolved_toml(settings).ok()?;
    ConfigSource::parse(Path::new("<kinds>"), &text, &[]).ok()?.deserialize().ok()
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), ToString::to_string)
}

impl fmt::Display for Difference {
    /// `` `training.steps` was 6 and is 7 ``
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` was {} and is {}",
            self.key,
            shown(self.before.as_ref()),
            shown(self.now.as_ref())
        )
    }
}

/// All settings, by dotted key.
fn settings(config: &RunConfig) -> BTreeMap<String, Value> {
    let mut settings = flat(config);
    // Left out of the whole if it is the default.
    let distributed = serde_json::to_value(&config.distributed).expect(WRITTEN);
    flatten("distributed", distributed, &mut settings);
    settings
}

/// Settings by dotted key.
pub(crate) fn flat(table: &impl Serialize) -> BTreeMap<String, Value> {
    let mut settings = BTreeMap::new();
    flatten("", serde_json::to_value(table).expect(WRITTEN), &mut settings);
    settings
}

/// Keeps of a table only what says `kind`, at any depth; `None` for a table that says none.
fn kinds(value: Value) -> Option<Value> {
    let Value::Object(table) = value else { return None };
    let kept = table.into_iter().filter_map(|(key, value)| {
        let kept = if key == "kind" { Some(value) } else { kinds(value) };
        Some((key, kept?))
    });
    let kept: serde_json::Map<String, Value> = kept.collect();
    (!kept.is_empty()).then_some(Value::Object(kept))
}

/// Flattens tables into dotted keys. An array is one setting; `null` is left out.
fn flatten(path: &str, value: Value, settings: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                flatten(&path, value, settings);
            }
        }
        Value::Null => {}
        value => {
            settings.insert(path.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::config;

    #[test]
    fn logs_and_checkpoints_may_change_and_nothing_else() {
        let before = config(&[]);
        assert_eq!(before.same_run(&before), Ok(()));
        let kept = ["log.every=3", "checkpoint.every=7", "checkpoint.select=best"];
        assert_eq!(before.same_run(&config(&kept)), Ok(()));
        let kept = ["training.bad_step={kind='skip',max_in_a_row=3}", "training.loss_spike={}"];
        assert_eq!(before.same_run(&config(&kept)), Ok(()));
        let kept = config(&[
            "distributed.shard_optimizer=true",
            "distributed.overlap=false",
            "distributed.transport=nccl",
        ]);
        assert_eq!((before.same_run(&kept), kept.same_run(&before)), (Ok(()), Ok(())));
        let rounded = before.same_run(&config(&["distributed.compress=bf16"])).unwrap_err();
        assert_eq!(rounded.len(), 1);
        assert_eq!(
            rounded[0].describe_difference(),
            "`distributed.compress` = \"bf16\", not \"none\""
        );
        let changes = ["training.steps=6", "seed=3", "training.max_grad_norm=1.5"];
        let differences = before.same_run(&config(&changes)).unwrap_err();
        let shown: Vec<String> = differences.iter().map(ToString::to_string).collect();
        let expected = [
            "`seed` was 0 and is 3",
            "`training.max_grad_norm` was absent and is 1.5",
            "`training.steps` was 1000 and is 6",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_classifier_may_lose_settings_of_an_output_over_the_vocabulary() {
        let tied = ["model.tied_output=true", "model.lm_head={}"];
        let of = |task: &str, more: &[&str]| config(&[&[task], more].concat());
        let classify = "task={kind='classify'}";
        assert_eq!(of(classify, &tied).same_run(&of(classify, &[])), Ok(()));
        assert_eq!(of("seed=0", &tied).same_run(&of("seed=0", &[])).unwrap_err().len(), 4);
        assert!(of(classify, &tied).same_run(&of(classify, &["model.n_layers=3"])).is_err());
    }

    #[test]
    fn another_kind_differs_in_its_kind_and_its_keys() {
        let differences = config(&[]).same_run(&config(&["optimizer.kind=sgd"])).unwrap_err();
        let keys: Vec<&str> = differences.iter().map(|difference| &*difference.key).collect();
        assert!(keys.contains(&"optimizer.kind") && keys.contains(&"optimizer.beta1"), "{keys:?}");
        assert!(differences.iter().any(|d| d.to_string().contains("was \"adamw\" and is \"sgd\"")));
    }

    #[test]
    fn arrays_with_line_breaks_in_strings_are_compared_as_values() {
        let key = "training.gradient_audit_exceptions";
        let other = config(&[&format!("{key}=[\"a\\nb = 1\"]")]);
        let differences = config(&[]).same_run(&other).unwrap_err();
        assert_eq!(differences.len(), 1);
        assert_eq!(differences[0].key, key);
    }
}
