//! What the tests of the families have in common.

use serde_json::Value;

use super::{Family, HfError, Sizes, describe, express_as};
use crate::config::ModelConfig;

/// The text of a `config.json` with `changes`.
pub(super) fn changed(config: &Value, changes: &[(&str, Value)]) -> String {
    let mut config = config.clone();
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    config.to_string()
}

/// Each of the `changes` alone is refused, by its key.
pub(super) fn assert_refused(config: &Value, changes: &[(&str, Value)]) {
    for change in changes {
        let text = changed(config, std::slice::from_ref(change));
        let error = describe(&text).expect_err("refused").to_string();
        assert!(error.contains(&format!("`{}` = ", change.0)), "{error}");
    }
}

/// The first key of every reason why `config` is no model of `family`.
pub(super) fn reasons(family: Family, config: &ModelConfig, sizes: &Sizes) -> Vec<String> {
    match express_as(family, config, sizes) {
        Err(HfError::Inexpressible { faults, .. }) => {
            faults.into_iter().map(|fault| fault.keys[0].clone()).collect()
        }
        other => panic!("{other:?}"),
    }
}
