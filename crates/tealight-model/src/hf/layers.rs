//! Layers of several kinds: `layer_types` in a `config.json`, `[[model.layers]]` here.

use std::fmt::Display;

use super::keys::Keys;
use super::rules::Rules;
use super::{HfError, HfResult};
use crate::attention::AttentionConfig;
use crate::config::{LayerConfig, ModelConfig, NormPlacement};
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
    let kind = |i| if i == 0 { Kind::Full } else { Kind::Sliding };
    let listed = read_indices(keys, n_layers, &TYPES)?;
    Ok(listed.map(|listed| listed.into_iter().map(kind).collect()))
}

/// As [`read_types`]: for each layer, the index of its kind among `types`.
pub(super) fn read_indices(
    keys: &mut Keys,
    n_layers: usize,
    types: &[&str],
) -> HfResult<Option<Vec<usize>>> {
    let Some(names) = keys.words("layer_types")? else { return Ok(None) };
    if names.len() != n_layers {
        let message = format!(
            "`layer_types` has {} entries, but `num_hidden_layers` = {n_layers}",
            names.len()
        );
        return Err(HfError::Config(message));
    }
    let index = |name: String| {
        types.iter().position(|known| *known == name).ok_or_else(|| {
            let known = types.join(", ");
            HfError::Config(format!("`layer_types` contains \"{name}\", expected one of {known}"))
        })
    };
    names.into_iter().map(index).collect::<HfResult<_>>().map(Some)
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
    let entry = |&kind: &Kind| match kind {
        Kind::Full => LayerConfig::default(),
        Kind::Sliding => sliding.clone(),
    };
    period(kinds).iter().map(entry).collect()
}

/// The shortest pattern that repeats to `kinds`.
pub(super) fn period<T: PartialEq>(kinds: &[T]) -> &[T] {
    let n_layers = kinds.len();
    let repeats = |n: &usize| kinds.iter().enumerate().all(|(i, kind)| *kind == kinds[i % n]);
    &kinds[..(1..n_layers).find(repeats).unwrap_or(n_layers)]
}

/// A layer of a model: its attention and its positions with the tables of the TOML that they stand in, and where its norms
/// stand with the key that says so.
pub(super) struct Layer<'a> {
    pub(super) kind: Kind,
    pub(super) attention: (String, &'a AttentionConfig),
    pub(super) position: (String, &'a PositionConfig),
    pub(super) norm_placement: (String, NormPlacement),
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
        let own_placement = entry.map(|entry| entry.norm_placement.is_some());
        let attention = config.attention_of(i);
        let kind = match attention {
            AttentionConfig::Local(_) => Kind::Sliding,
            _ => Kind::Full,
        };
        Layer {
            kind,
            attention: (table("attention", own_attention), attention),
            position: (table("position", own_position), config.position_of(i)),
            norm_placement: (table("norm_placement", own_placement), config.norm_placement_of(i)),
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
