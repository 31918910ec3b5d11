//! The poolings of `1_Pooling/config.json`, in the spelling of sentence-transformers 2 and in that of version 6.

use serde_json::{Map, Value, json};
use tealight_model::names::Named;

use crate::inference::embed::Pooling;

/// The older spelling of poolings, in the order in which their vectors are concatenated.
const FLAGS: [(&str, &str); 6] = [
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ("pooling_mode_lasttoken", "lasttoken"),
];

/// The poolings of a `config.json`, whose keys for them are removed.
pub(super) fn poolings(
    config: &mut Map<String, Value>,
) -> std::result::Result<Vec<Pooling>, String> {
    let flags: Vec<_> =
        FLAGS.iter().filter_map(|&(key, mode)| Some((key, mode, config.remove(key)?))).collect();
    let modes: Vec<Value> = match config.remove("pooling_mode") {
        Some(Value::Array(modes)) => modes,
        Some(mode) => vec![mode],
        None if flags.is_empty() => vec![json!("mean")],
        None => {
            if let Some((key, _, value)) = flags.iter().find(|(.., value)| !value.is_boolean()) {
                return Err(format!("`{key}` = {value} is neither true nor false"));
            }
            let chosen = flags.iter().filter(|(.., value)| *value == true);
            chosen.map(|(_, mode, _)| json!(mode)).collect()
        }
    };
    if modes.is_empty() {
        return Err("it names no pooling".to_owned());
    }
    let mut poolings = Vec::new();
    for mode in &modes {
        let pooling = pooling(mode)?;
        if poolings.contains(&pooling) {
            return Err(format!("its pooling {mode} is named twice"));
        }
        poolings.push(pooling);
    }
    Ok(poolings)
}

fn pooling(mode: &Value) -> std::result::Result<Pooling, String> {
    let known = Pooling::ALL.iter().find(|pooling| mode == pooling.name());
    known.copied().ok_or_else(|| {
        let names: Vec<_> = Pooling::ALL.iter().map(|pooling| pooling.name()).collect();
        format!("its pooling {mode} is not supported; these are: {}", names.join(", "))
    })
}

/// A pooling in the older spelling, without the keys that the oldest versions do not know.
pub(crate) fn flags_of(pooling: Pooling) -> impl Iterator<Item = (String, Value)> {
    let flags = FLAGS.into_iter().take(4);
    flags.map(move |(key, mode)| (key.to_owned(), (mode == pooling.name()).into()))
}
