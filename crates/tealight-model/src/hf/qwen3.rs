//! Qwen3 (Yang et al. 2025): `Qwen3ForCausalLM`, Llama with normalised queries and keys. Under
//! `use_sliding_window` the layers in `layer_types`, or those from `max_window_layers` on, attend to the last
//! `sliding_window` positions.

use crate::models::spec::ModelSpec;
use serde_json::{Map, Value};

use super::HfResult;
use super::class::{Class, Model};
use super::decoder::{self, FamilyDefaults};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::layers::{self, Kind};
use super::rules::Rules;
use crate::config::ModelConfig;

pub(super) const CLASS: Class = decoder::class("Qwen3ForCausalLM", read, write);

const QWEN3: FamilyDefaults = FamilyDefaults {
    vocab_size: 151_936,
    d_ff: 22_016,
    n_kv_heads: Some(32),
    head_dim: Some(128),
    max_positions: 32_768,
    qk_norm: true,
    layers_differ: true,
    ids: [None, None],
};

/// The window of a `config.json` without the key.
const WINDOW: usize = 4096;
/// The first layer with a window in a `config.json` without the key.
const FIRST: usize = 28;

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let why = "`model.bias` concerns all linear maps, also those of the feed-forward networks";
    keys.require("attention_bias", false, why)?;
    let (config, spec, ids) = decoder::read(keys, &QWEN3)?;
    let is_used = keys.flag("use_sliding_window", false)?;
    let default = keys.is_absent("sliding_window").then_some(WINDOW);
    let window = keys.optional_size("sliding_window")?.or(default).filter(|_| is_used);
    let first = keys.size("max_window_layers", FIRST)?;
    let listed = layers::read_types(keys, config.n_layers)?;
    let Some(window) = window else {
        let no_window =
            "a layer has a window only under `use_sliding_window` with a `sliding_window`";
        layers::refuse_sliding(keys, listed.as_deref(), no_window)?;
        return Ok((config, spec, ids));
    };
    let kind = |i: usize| if i < first { Kind::Full } else { Kind::Sliding };
    let kinds = listed.unwrap_or_else(|| (0..config.n_layers).map(kind).collect());
    Ok((decoder::with_windows(config, &kinds, window), spec, ids))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    let (mut map, window) = decoder::write(&QWEN3, (config, spec, ids), rules);
    rules.require_off("model.bias", config.bias, "no biases");
    let kinds = layers::kinds(config);
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("attention_bias", false.into());
    put("use_sliding_window", window.is_some().into());
    put("sliding_window", window.into());
    put("layer_types", layers::types(&kinds).into());
    // Versions that know no `layer_types` read this.
    let first = kinds.iter().take_while(|&&kind| kind == Kind::Full).count();
    if window.is_some() && kinds[first..].iter().all(|&kind| kind == Kind::Sliding) {
        put("max_window_layers", first.into());
    }
    map
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe, express_as};
    use super::*;
    use crate::attention::{AttentionConfig, local, softmax};
    use crate::config::{LayerConfig, NormPlacement};
    use crate::position::PositionConfig;

    const FULL: &str = "full_attention";
    const SLIDING: &str = "sliding_attention";

    fn config() -> Value {
        json!({
            "model_type": "qwen3", "hidden_size": 24, "num_attention_heads": 3,
            "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
        })
    }

    #[test]
    fn settings_with_other_results_are_refused_by_key() {
        let changes = [
            ("attention_bias", json!(true)),
            ("layer_types", json!([FULL, SLIDING])),
            ("layer_types", json!([SLIDING, SLIDING])),
            ("layer_types", json!(3)),
        ];
        assert_refused(&config(), &changes);
        for types in [json!([FULL]), json!([FULL, "chunked_attention"])] {
            let error = describe(&changed(&config(), &[("layer_types", types)]));
            assert!(error.expect_err("refused").to_string().contains("`layer_types` "));
        }
    }

    #[test]
    fn some_layers_may_have_a_window() -> HfResult<()> {
        let slides = [("use_sliding_window", json!(true)), ("sliding_window", json!(5))];
        for (n_layers, change, expected) in [
            (3, ("max_window_layers", json!(1)), &[false, true, true][..]),
            (4, ("layer_types", json!([SLIDING, FULL, SLIDING, FULL])), &[true, false]),
            (3, ("layer_types", json!([SLIDING, SLIDING, FULL])), &[true, true, false]),
        ] {
            let changes = [&slides[..], &[("num_hidden_layers", json!(n_layers)), change]].concat();
            let described = describe(&changed(&config(), &changes))?;
            let config = &described.config;
            let windows: Vec<_> = (0..config.layers.len())
                .map(|i| match config.attention_of(i) {
                    AttentionConfig::Local(local) => {
                        assert_eq!((local.window, local.qk_norm_epsilon), (5, 1e-5));
                        true
                    }
                    _ => false,
                })
                .collect();
            assert_eq!(windows, expected);
            let written =
                express_as(Family::Qwen3, config, &described.spec, &described.ids, None)?.config;
            let again = describe(&Value::from(written.clone()).to_string())?;
            assert_eq!((&again.config, again.notes), (config, Vec::new()));
            let first = written.get("max_window_layers");
            let is_tail = !expected[0] && expected[1];
            assert_eq!(first.cloned(), is_tail.then(|| json!(1)));
        }
        Ok(())
    }

    #[test]
    fn layers_share_window_heads_and_positions() -> HfResult<()> {
        let attention =
            |kind: AttentionConfig| LayerConfig { attention: Some(kind), ..Default::default() };
        let local = |window, n_kv_heads| {
            let norms =
                local::Config { qk_norm: true, qk_norm_epsilon: 1e-5, ..Default::default() };
            AttentionConfig::Local(local::Config { window, n_kv_heads, ..norms })
        };
        let described = describe(&config().to_string())?;
        let own = LayerConfig {
            position: Some(PositionConfig::None),
            norm_placement: Some(NormPlacement::Output),
            ..Default::default()
        };
        let config = ModelConfig {
            n_layers: 5,
            layers: vec![
                LayerConfig::default(),
                attention(local(5, Some(32))),
                attention(local(6, Some(1))),
                attention(AttentionConfig::default_of("linear").expect("a kind")),
                own,
            ],
            ..described.config.clone()
        };
        let expected = [
            "model.layers[4].norm_placement",
            "model.layers[2].attention.window",
            "model.layers[2].attention.n_kv_heads",
            "model.layers[3].attention.kind",
            "model.layers[4].position",
        ];
        assert_eq!(reasons(Family::Qwen3, &config, &described), expected);
        Ok(())
    }

    #[test]
    fn all_layers_may_have_a_window() -> HfResult<()> {
        let norms = (true, 1e-5);
        let slides = ("use_sliding_window", json!(true));
        let size = ("sliding_window", json!(5));
        let types = ("layer_types", json!([SLIDING, SLIDING]));
        for (changes, expected) in [
            (vec![], None),
            (vec![size.clone()], None),
            (vec![slides.clone()], None),
            (vec![slides.clone(), ("max_window_layers", json!(0))], Some(4096)),
            (vec![slides.clone(), size.clone(), ("max_window_layers", json!(0))], Some(5)),
            (vec![slides, size, types], Some(5)),
        ] {
            let described = describe(&changed(&config(), &changes))?;
            let (window, actual) = match &described.config.attention {
                AttentionConfig::Local(local::Config {
                    window, qk_norm, qk_norm_epsilon, ..
                }) => (Some(*window), (*qk_norm, *qk_norm_epsilon)),
                AttentionConfig::Softmax(softmax::Config { qk_norm, qk_norm_epsilon, .. }) => {
                    (None, (*qk_norm, *qk_norm_epsilon))
                }
                other => panic!("{other:?}"),
            };
            assert_eq!((window, actual), (expected, norms), "{changes:?}");
            assert_eq!(described.config.head_dim, Some(128));
            let written = express_as(
                Family::Qwen3,
                &described.config,
                &described.spec,
                &described.ids,
                None,
            )?;
            let again = describe(&Value::from(written.config).to_string())?;
            assert_eq!((again.config, again.notes), (described.config, Vec::new()));
        }
        Ok(())
    }

    #[test]
    fn one_epsilon_is_required_of_all_norms() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let attention = |qk_norm, qk_norm_epsilon| {
            let attention = softmax::Config { qk_norm, qk_norm_epsilon, ..Default::default() };
            let attention = AttentionConfig::Softmax(attention);
            ModelConfig { attention, ..described.config.clone() }
        };
        let other = reasons(Family::Qwen3, &attention(true, 1e-6), &described);
        assert_eq!(other, ["model.attention.qk_norm_epsilon"]);
        let none = reasons(Family::Qwen3, &attention(false, 1e-5), &described);
        assert_eq!(none, ["model.attention.qk_norm"]);
        Ok(())
    }
}
