//! Qwen3 (Yang et al. 2025): `Qwen3ForCausalLM`, Llama with normalised queries and keys. All layers have the
//! same attention: a window of some layers only is refused.

use serde_json::{Map, Value};

use super::HfResult;
use super::class::Class;
use super::decoder::{self, FamilyKeys};
use super::keys::Keys;
use super::rules::Rules;
use super::sizes::Sizes;
use crate::config::ModelConfig;

pub(super) const CLASS: Class = decoder::class("Qwen3ForCausalLM", read, write);

const QWEN3: FamilyKeys = FamilyKeys {
    vocab_size: 151_936,
    d_ff: 22_016,
    n_kv_heads: Some(32),
    head_dim: Some(128),
    max_positions: 32_768,
    qk_norm: true,
    ids: [None, None],
};

/// The attention of a layer, by its name in `layer_types`.
const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, Sizes)> {
    let why = "`model.bias` concerns all linear maps, also those of the feed-forward networks";
    keys.require("attention_bias", false, why)?;
    let (config, sizes) = decoder::read(keys, &QWEN3)?;
    let window = window(keys, config.n_layers)?;
    Ok((decoder::with_window(config, window), sizes))
}

/// The window of all layers, if they have one.
fn window(keys: &mut Keys, n_layers: usize) -> HfResult<Option<usize>> {
    let is_used = keys.flag("use_sliding_window", false)?;
    let default = keys.is_absent("sliding_window").then_some(4096);
    let window = keys.optional_size("sliding_window")?.or(default).filter(|_| is_used);
    let first = keys.size("max_window_layers", 28)?;
    let Some(kinds) = keys.words("layer_types")? else {
        return match window {
            Some(window) if first == 0 => Ok(Some(window)),
            Some(_) if first < n_layers => {
                let why = "all layers have the same attention";
                Err(keys.unsupported("max_window_layers", &first.to_string(), why))
            }
            _ => Ok(None),
        };
    };
    let are_all = |kind: &str| kinds.iter().all(|one| one == kind);
    match window {
        _ if kinds.len() == n_layers && are_all(FULL) => Ok(None),
        Some(window) if kinds.len() == n_layers && are_all(SLIDING) => Ok(Some(window)),
        _ => {
            let why = format!(
                "it must be \"{FULL}\" for all {n_layers} layers or, under `use_sliding_window`, \
                 \"{SLIDING}\" for all"
            );
            Err(keys.unsupported("layer_types", &format!("{kinds:?}"), &why))
        }
    }
}

fn write(config: &ModelConfig, sizes: &Sizes, rules: &mut Rules) -> Map<String, Value> {
    let (mut map, window) = decoder::write(&QWEN3, config, sizes, rules);
    rules.switch("model.bias", config.bias, false, "no biases");
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("attention_bias", false.into());
    put("use_sliding_window", window.is_some().into());
    put("sliding_window", window.into());
    let kind = if window.is_some() { SLIDING } else { FULL };
    put("layer_types", vec![kind; config.n_layers].into());
    if window.is_some() {
        put("max_window_layers", 0.into());
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
            ("layer_types", json!([FULL])),
            ("layer_types", json!(3)),
        ];
        assert_refused(&config(), &changes);
        let mut sliding = config();
        sliding["use_sliding_window"] = json!(true);
        assert_refused(&sliding, &[("max_window_layers", json!(1))]);
        assert_refused(&sliding, &[("layer_types", json!([SLIDING, FULL]))]);
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
            let written = express_as(Family::Qwen3, &described.config, &described.sizes)?;
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
        let other = reasons(Family::Qwen3, &attention(true, 1e-6), &described.sizes);
        assert_eq!(other, ["model.attention.qk_norm_epsilon"]);
        let none = reasons(Family::Qwen3, &attention(false, 1e-5), &described.sizes);
        assert_eq!(none, ["model.attention.qk_norm"]);
        Ok(())
    }
}
