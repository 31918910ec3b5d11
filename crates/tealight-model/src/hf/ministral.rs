//! Ministral (Mistral AI 2024): `MinistralForCausalLM`, [`mistral`] in which some layers attend to the last
//! `sliding_window` positions and others to all.
//!
//! [`mistral`]: super::mistral

use crate::models::spec::ModelSpec;
use serde_json::{Map, Value};

use super::HfResult;
use super::class::{Class, Model};
use super::decoder::{self, FamilyDefaults};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::layers::{self, Kind};
use super::mistral;
use super::rules::Rules;
use crate::config::ModelConfig;

pub(super) const CLASS: Class = decoder::class("MinistralForCausalLM", read, write);

const MINISTRAL: FamilyDefaults = FamilyDefaults { layers_differ: true, ..mistral::MISTRAL };

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let window = mistral::read_window(keys)?;
    let (config, spec, ids) = decoder::read(keys, &MINISTRAL)?;
    let listed = layers::read_types(keys, config.n_layers)?;
    let Some(window) = window else {
        layers::refuse_sliding(keys, listed.as_deref(), "there is no `sliding_window`")?;
        return Ok((config, spec, ids));
    };
    let kinds = listed.unwrap_or_else(|| vec![Kind::Sliding; config.n_layers]);
    Ok((decoder::with_windows(config, &kinds, window), spec, ids))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    let (mut map, window) = decoder::write(&MINISTRAL, (config, spec, ids), rules);
    rules.require_off("model.bias", config.bias, "no biases");
    map.insert("sliding_window".to_owned(), window.into());
    map.insert("layer_types".to_owned(), layers::types(&layers::kinds(config)).into());
    map
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe, express};
    use super::*;

    const FULL: &str = "full_attention";
    const SLIDING: &str = "sliding_attention";

    fn config() -> Value {
        json!({ "model_type": "ministral", "num_hidden_layers": 3, "sliding_window": 7 })
    }

    #[test]
    fn some_layers_may_have_a_window() -> HfResult<()> {
        let change = [("layer_types", json!([FULL, SLIDING, FULL]))];
        let described = describe(&changed(&config(), &change))?;
        assert_eq!(described.config.layers.len(), 2);
        let written = express(&described.config, &described.spec, &described.ids, None)?;
        assert_eq!(written.config["architectures"], json!(["MinistralForCausalLM"]));
        let again = describe(&Value::from(written.config).to_string())?;
        assert_eq!((again.config, again.notes), (described.config.clone(), Vec::new()));
        let others = reasons(Family::Mistral, &described.config, &described);
        assert_eq!(others, ["model.layers"]);
        Ok(())
    }

    #[test]
    fn layers_that_are_alike_are_those_of_mistral() -> HfResult<()> {
        for (types, window) in [(json!(null), json!(7)), (json!([FULL, FULL, FULL]), json!(7))] {
            let changes = [("layer_types", types.clone()), ("sliding_window", window)];
            let config = describe(&changed(&config(), &changes))?.config;
            let sliding = if types.is_null() { json!(7) } else { json!(null) };
            let mistral = [("model_type", json!("mistral")), ("sliding_window", sliding)];
            assert_eq!(config, describe(&changed(&super::tests::config(), &mistral))?.config);
        }
        Ok(())
    }

    #[test]
    fn layers_without_a_window_to_attend_to_are_refused() {
        let types = ("layer_types", json!([FULL, SLIDING, FULL]));
        let mut none = config();
        none["sliding_window"] = json!(null);
        assert_refused(&none, std::slice::from_ref(&types));
        let mut mistral = config();
        mistral["model_type"] = json!("mistral");
        assert_refused(&mistral, &[types]);
    }
}
