//! The layers of ModernBERT: a window for sliding layers, and a rotary base for each kind of layer.
//!
//! Version 5 of `transformers` lists the kinds (`layer_types`, `rope_parameters`); version 4 has one full layer in
//! every `global_attn_every_n_layers` and the keys `global_rope_theta` and `local_rope_theta`. Both are read,
//! version 5's first, and both are written.

use serde_json::{Map, Value, json};

use super::super::keys::Keys;
use super::super::layers::{self, Kind, Layer, TYPES};
use super::super::rules::Rules;
use super::super::{HfResult, decoder, requirements};
use crate::attention::{AttentionConfig, local};
use crate::config::{LayerConfig, ModelConfig};
use crate::position::rotary::Layout;
use crate::position::{PositionConfig, rotary};

/// The bases of full and of sliding layers where a configuration names none.
const BASES: [f64; 2] = [160_000., 10_000.];
/// The window where a configuration names none, counted as `local_attention` is.
const LOCAL_ATTENTION: usize = 128;
const EVERY: usize = 3;

/// The positions of the model, and the entries of `[[model.layers]]`.
pub(super) fn read(
    keys: &mut Keys,
    n_layers: usize,
) -> HfResult<(PositionConfig, Vec<LayerConfig>)> {
    let [base, local_base] = read_bases(keys)?;
    let window = keys.size("local_attention", LOCAL_ATTENTION)? / 2 + 1;
    let every = keys.size("global_attn_every_n_layers", EVERY)?.max(1);
    let kind = |i: usize| if i.is_multiple_of(every) { Kind::Full } else { Kind::Sliding };
    let listed = layers::read_types(keys, n_layers)?;
    let kinds = listed.unwrap_or_else(|| (0..n_layers).map(kind).collect());
    if kinds.iter().all(|&kind| kind == Kind::Full) {
        return Ok((position(base), Vec::new()));
    }
    let sliding = LayerConfig {
        attention: Some(AttentionConfig::Local(local::Config { window, ..Default::default() })),
        position: (local_base != base).then(|| position(local_base)),
        ..Default::default()
    };
    Ok((position(base), layers::entries(&kinds, &sliding)))
}

/// Requires softmax or local attention, and rotary positions with one base for each of them; their keys.
pub(super) fn write(config: &ModelConfig, rules: &mut Rules) -> Map<String, Value> {
    Shared::check(config, rules).write(&layers::kinds(config), rules)
}

/// The rotary bases of full and of sliding layers.
fn read_bases(keys: &mut Keys) -> HfResult<[f64; 2]> {
    let full = keys.number("global_rope_theta", BASES[0])?;
    let has_no_local = keys.is_null("local_rope_theta");
    let sliding = keys.number("local_rope_theta", if has_no_local { full } else { BASES[1] })?;
    let read = |tables: &mut Keys| -> HfResult<[f64; 2]> {
        let mut read = |kind, base| -> HfResult<f64> {
            let read = tables.table(kind, |table| read_base(table, base))?;
            Ok(read.unwrap_or(base))
        };
        Ok([read(TYPES[0], full)?, read(TYPES[1], sliding)?])
    };
    Ok(keys.table("rope_parameters", read)?.unwrap_or([full, sliding]))
}

/// The rotary base of one kind of layer, in the spelling of version 5.
fn read_base(table: &mut Keys, base: f64) -> HfResult<f64> {
    let rotary = decoder::rotary_table(table, base)?;
    if rotary.scaling.is_none() {
        return Ok(rotary.base);
    }
    let kind = format!("\"{}\"", rotary.scaling.kind());
    Err(table.unsupported(
        "rope_type",
        &kind,
        "version 4 of transformers has no scaling for this class",
    ))
}

fn position(base: f64) -> PositionConfig {
    PositionConfig::Rotary(rotary::Config { base, layout: Layout::Half, ..Default::default() })
}

/// What the layers of a kind share.
#[derive(Default)]
struct Shared {
    /// Of full and of sliding layers.
    bases: [Option<f64>; 2],
    window: Option<usize>,
}

impl Shared {
    fn check(config: &ModelConfig, rules: &mut Rules) -> Self {
        let mut shared = Self::default();
        for Layer { kind, attention, position, .. } in layers::layers(config) {
            match attention.1 {
                AttentionConfig::Local(local) => {
                    shared.check_local(&attention.0, local, config, rules);
                }
                other => requirements::check_softmax_in(&attention.0, other, config, rules),
            }
            shared.check_base(kind, &position.0, position.1, rules);
        }
        shared
    }

    fn check_local(
        &mut self,
        table: &str,
        local: &local::Config,
        config: &ModelConfig,
        rules: &mut Rules,
    ) {
        let local::Config { window, n_kv_heads, qk_norm, sink, output_gate, .. } = *local;
        requirements::check_plain_heads(table, sink, output_gate, rules);
        let heads = n_kv_heads.is_none_or(|n| n == config.n_heads);
        let has = "one head of keys per head of queries";
        rules.check(heads, &format!("{table}.n_kv_heads"), "set", has);
        let has = "queries and keys without a norm";
        rules.require_off(&format!("{table}.qk_norm"), qk_norm, has);
        let key = format!("{table}.window");
        layers::check_same(&mut self.window, &key, window, "window for all layers", rules);
    }

    fn check_base(
        &mut self,
        kind: Kind,
        table: &str,
        position: &PositionConfig,
        rules: &mut Rules,
    ) {
        let key = |name: &str| format!("{table}.{name}");
        let PositionConfig::Rotary(rotary) = position else {
            return rules.wrong_kind(&key("kind"), position.kind(), "rotary");
        };
        let half = rotary.layout == Layout::Half;
        rules.check(half, &key("layout"), "\"interleaved\"", "\"half\"");
        let unscaled = rotary.scaling.is_none();
        let scaling = format!("\"{}\"", rotary.scaling.kind());
        rules.check(unscaled, &key("scaling.kind"), &scaling, "\"none\"");
        let first = &mut self.bases[kind as usize];
        layers::check_same(
            first,
            &key("base"),
            rotary.base,
            "base for all layers of a kind",
            rules,
        );
    }

    /// The keys of layers of these `kinds`.
    fn write(&self, kinds: &[Kind], rules: &mut Rules) -> Map<String, Value> {
        let [full, sliding] = self.bases;
        let one = full.or(sliding);
        let [full, sliding] = [full, sliding].map(|base| base.or(one).unwrap_or(BASES[0]));
        let suits = |every: &usize| {
            let is_full =
                |(i, &kind): (usize, &Kind)| (kind == Kind::Full) == i.is_multiple_of(*every);
            kinds.iter().enumerate().all(is_full)
        };
        // A short stack suits several periods; the usual one comes first.
        let every = std::iter::once(EVERY).chain(1..=kinds.len()).find(suits);
        if every.is_none() {
            rules.note("transformers 4 cannot load it: the pattern of its layers is not one full layer in every n");
        }
        let theta = |base: f64| json!({ "rope_type": "default", "rope_theta": base });
        let map = json!({
            "layer_types": layers::types(kinds),
            "global_attn_every_n_layers": every.unwrap_or(1),
            "local_attention": self.window.map_or(LOCAL_ATTENTION, |window| 2 * (window.max(1) - 1)),
            "rope_parameters": { TYPES[0]: theta(full), TYPES[1]: theta(sliding) },
            "global_rope_theta": full,
            "local_rope_theta": sliding,
        });
        map.as_object().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::test_support::changed;
    use super::super::super::{Family, describe, express_as};
    use super::super::tests::config;
    use super::*;

    /// Of layers 0, 1, …: whether each is full.
    fn full(config: &ModelConfig) -> Vec<bool> {
        let is_full = |i| matches!(config.attention_of(i), AttentionConfig::Softmax(_));
        (0..config.n_layers).map(is_full).collect()
    }

    #[test]
    fn layers_repeat_with_the_shortest_period() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        assert_eq!(described.config.layers.len(), 3);
        assert_eq!(full(&described.config), [true, false, false, true, false, false, true]);
        let all = describe(&changed(&config(), &[("global_attn_every_n_layers", json!(1))]))?;
        assert_eq!(all.config.layers, []);

        let mut types = vec!["sliding_attention"; 7];
        types[5] = "full_attention";
        let listed = describe(&changed(&config(), &[("layer_types", json!(types))]))?;
        assert_eq!(listed.config.layers.len(), 6);
        assert_eq!(full(&listed.config), [false, false, false, false, false, true, false]);
        let written =
            express_as(Family::ModernBert, &listed.config, &listed.spec, &listed.ids, None)?;
        assert!(written.notes[0].contains("transformers 4 cannot load it"), "{:?}", written.notes);
        assert_eq!(describe(&Value::Object(written.config).to_string())?.config, listed.config);
        Ok(())
    }

    #[test]
    fn bases_are_those_of_either_version() -> HfResult<()> {
        let bases = |changes: &[(&str, Value)]| -> HfResult<[f64; 2]> {
            let config = describe(&changed(&config(), changes))?.config;
            Ok([0, 1].map(|i| match config.position_of(i) {
                PositionConfig::Rotary(rotary) => rotary.base,
                other => panic!("{other:?}"),
            }))
        };
        let theta = |theta: f64| json!({ "rope_type": "default", "rope_theta": theta });
        let both = json!({ "full_attention": theta(7.), "sliding_attention": theta(5.) });
        assert_eq!(bases(&[])?, BASES);
        assert_eq!(bases(&[("global_rope_theta", json!(7.0))])?, [7., BASES[1]]);
        assert_eq!(bases(&[("local_rope_theta", json!(null))])?, [BASES[0]; 2]);
        assert_eq!(
            bases(&[("rope_parameters", both), ("local_rope_theta", json!(3.0))])?,
            [7., 5.]
        );
        Ok(())
    }
}
