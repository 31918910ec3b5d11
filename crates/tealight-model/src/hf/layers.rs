//! Layers that attend to all positions or to a window: `layer_types` in a `config.json`, `[[model.layers]]` here.

use std::fmt::Display;

use super::keys::Keys;
use super::rules::Rules;
use super::{HfError, HfResult};
use crate::attention::AttentionConfig;
use crate::config::{LayerConfig, ModelConfig};
use crate::position::PositionConfig;

/// The names of the kinds of layers in `layer_types`, and in version 5's `rope_parameters`.
pub(super) const TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// To what a layer attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All positions.
    Full,
    /// A window.
    Sliding,
}

/// The kinds in a `config.json`, one per layer; `None` if it does not list them.
pub(super) fn read_types(keys: &mut Keys, n_layers: usize) -> HfResult<Option<Vec<Kind>>> {
    let Some(names) = keys.words("layer_types")? else { return Ok(None) };
    if names.len() != n_layers {
        let message = format!(
            "`layer_types` has {} entries, but `num_hidden_layers` = {n_layers}",
            names.len()
        );
        return Err(HfError::Config(message));
    }
    let kind = |name: String| match TYPES.iter().position(|known| *known == name) {
        Some(0) => Ok(Kind::Full),
        Some(_) => Ok(Kind::Sliding),
        None => Err(HfError::Config(format!(
            "`layer_types` contains \"{name}\", expected one of {}",
            TYPES.join(", ")
        ))),
    };
    names.into_iter().map(kind).collect::<HfResult<_>>().map(Some)
}

/// Refuses `layer_types` with sliding layers, because `why`.
pub(super) fn refuse_sliding(keys: &Keys, kinds: Option<&[Kind]>, why: &str) -> HfResult<()> {
    match kinds {
        Some(kinds) if kinds.contains(&Kind::Sliding) => {
            Err(keys.unsupported("layer_types", &format!("{:?}", types(kinds)), why))
        }
        _ => Ok(()),
    }
}

/// The value of `layer_types`.
pub(super) fn types(kinds: &[Kind]) -> Vec<&'static str> {
    kinds.iter().map(|&kind| TYPES[kind as usize]).collect()
}

/// The entries of `[[model.layers]]`: the shortest pattern that repeats to these kinds. A full layer is as the
/// model's; a sliding one is `sliding`.
pub(super) fn entries(kinds: &[Kind], sliding: &LayerConfig) -> Vec<LayerConfig> {
    let n_layers = kinds.len();
    let repeats = |n: &usize| kinds.iter().enumerate().all(|(i, kind)| *kind == kinds[i % n]);
    let period = (1..n_layers).find(repeats).unwrap_or(n_layers);
    let entry = |&kind: &Kind| match kind {
        Kind::Full => LayerConfig::default(),
        Kind::Sliding => sliding.clone(),
    };
    kinds[..period].iter().map(entry).collect()
}

/// A layer of a model, with the tables of the TOML that its attention and its positions stand in.
pub(super) struct Layer<'a> {
    pub(super) kind: Kind,
    pub(super) attention: (String, &'a AttentionConfig),
    pub(super) position: (String, &'a PositionConfig),
}

/// The layers of a model up to where they repeat.
pub(super) fn layers(config: &ModelConfig) -> impl Iterator<Item = Layer<'_>> {
    (0..config.layers.len().max(1).min(config.n_layers)).map(|i| {
        let table = |name: &str, is_own: Option<bool>| match is_own {
            Some(true) => format!("model.layers[{i}].{name}"),
            _ => format!("model.{name}"),
        };
        let entry = config.layers.get(i);
        let own_attention = entry.map(|entry| entry.attention.is_some());
        let own_position = entry.map(|entry| entry.position.is_some());
        let attention = config.attention_of(i);
        let kind = match attention {
            AttentionConfig::Local(_) => Kind::Sliding,
            _ => Kind::Full,
        };
        Layer {
            kind,
            attention: (table("attention", own_attention), attention),
            position: (table("position", own_position), config.position_of(i)),
        }
    })
}

/// The kinds of all layers.
pub(super) fn kinds(config: &ModelConfig) -> Vec<Kind> {
    let period: Vec<Kind> = layers(config).map(|layer| layer.kind).collect();
    period.iter().copied().cycle().take(config.n_layers).collect()
}

/// Records a fault of `key` unless `value` is that of the layers before, `first`; `all` completes "requires one …".
pub(super) fn check_same<T: Copy + Display + PartialEq>(
    first: &mut Option<T>,
    key: &str,
    value: T,
    all: &str,
    rules: &mut Rules,
) {
    let first = *first.get_or_insert(value);
    rules.check(value == first, key, &value.to_string(), &format!("one {all}, {first}"));
}
