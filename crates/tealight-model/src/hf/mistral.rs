//! Mistral (Jiang et al. 2023): `MistralForCausalLM`, Llama with attention to the last `sliding_window`
//! positions.
//!
//! A configuration with `layer_types` is Ministral's: the automatic classes of `transformers` load it as that.

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

pub(super) const CLASS: Class = decoder::class("MistralForCausalLM", read, write);

pub(super) const MISTRAL: FamilyDefaults = FamilyDefaults {
    vocab_size: 32_000,
    d_ff: 14_336,
    n_kv_heads: Some(8),
    head_dim: None,
    max_positions: 131_072,
    qk_norm: false,
    layers_differ: false,
    ids: [Some(1), Some(2)],
};

/// The window of a `config.json` without the key.
const WINDOW: usize = 4096;

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let window = read_window(keys)?;
    let (config, spec, ids) = decoder::read(keys, &MISTRAL)?;
    let kind = if window.is_some() { Kind::Sliding } else { Kind::Full };
    let kinds = vec![kind; config.n_layers];
    let listed = layers::read_types(keys, config.n_layers)?;
    if let Some(others) = listed.filter(|listed| *listed != kinds) {
        let why = "transformers loads such a model as Ministral: set `model_type` to \"ministral\"";
        return Err(keys.unsupported("layer_types", &format!("{:?}", layers::types(&others)), why));
    }
    Ok((decoder::with_windows(config, &kinds, window.unwrap_or_default()), spec, ids))
}

/// `sliding_window`; `null` means none.
pub(super) fn read_window(keys: &mut Keys) -> HfResult<Option<usize>> {
    let default = keys.is_absent("sliding_window").then_some(WINDOW);
    Ok(keys.optional_size("sliding_window")?.or(default))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    let (mut map, window) = decoder::write(&MISTRAL, (config, spec, ids), rules);
    rules.require_off("model.bias", config.bias, "no biases");
    map.insert("sliding_window".to_owned(), window.into());
    map
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Family, describe, express_as};
    use super::*;
    use crate::attention::AttentionConfig;

    #[test]
    fn a_window_may_be_given_absent_or_null() -> HfResult<()> {
        for (window, expected) in
            [(Some(json!(7)), Some(7)), (None, Some(WINDOW)), (Some(json!(null)), None)]
        {
            let mut config = json!({ "model_type": "mistral", "num_hidden_layers": 2 });
            if let Some(window) = window {
                config["sliding_window"] = window;
            }
            let described = describe(&config.to_string())?;
            let actual = match &described.config.attention {
                AttentionConfig::Local(local) => Some((local.window, local.n_kv_heads)),
                AttentionConfig::Softmax(softmax) => {
                    assert_eq!(softmax.n_kv_heads, Some(8));
                    None
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(actual, expected.map(|window| (window, Some(8))));
            let written = express_as(
                Family::Mistral,
                &described.config,
                &described.spec,
                &described.ids,
                None,
            )?;
            assert_eq!(written.config["sliding_window"], json!(expected));
            assert_eq!(
                describe(&Value::from(written.config).to_string())?.config,
                described.config
            );
        }
        Ok(())
    }
}
