//! Llama (Touvron et al. 2023; Llama 3: Grattafiori et al. 2024): `LlamaForCausalLM`.

use crate::models::spec::ModelSpec;
use serde_json::{Map, Value};

use super::HfResult;
use super::class::{Class, Model};
use super::decoder::{self, FamilyDefaults};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::rules::Rules;
use crate::config::ModelConfig;

pub(super) const CLASS: Class = decoder::class("LlamaForCausalLM", read, write);

const LLAMA: FamilyDefaults = FamilyDefaults {
    vocab_size: 32_000,
    d_ff: 11_008,
    n_kv_heads: None,
    head_dim: None,
    max_positions: 2048,
    qk_norm: false,
    layers_differ: false,
    ids: [Some(1), Some(2)],
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    // Products in parts, with the same sums.
    keys.ignore("pretraining_tp");
    let bias = keys.flag("attention_bias", false)?;
    if bias != keys.flag("mlp_bias", false)? {
        let why = "`model.bias` is one setting, so `mlp_bias` must be the same";
        return Err(keys.unsupported("attention_bias", &bias.to_string(), why));
    }
    let (config, spec, ids) = decoder::read(keys, &LLAMA)?;
    Ok((ModelConfig { bias, ..config }, spec, ids))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    let (mut map, window) = decoder::write(&LLAMA, (config, spec, ids), rules);
    if window.is_some() {
        rules.wrong_kind("model.attention.kind", "local", "softmax");
    }
    let whole = config.n_heads > 0 && config.d_model.is_multiple_of(config.n_heads);
    let has = "a multiple of `model.n_heads`";
    rules.check(whole, "model.d_model", &config.d_model.to_string(), has);
    for key in ["attention_bias", "mlp_bias"] {
        map.insert(key.to_owned(), config.bias.into());
    }
    map
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe, express_as};
    use super::*;
    use crate::attention::AttentionConfig;
    use crate::config::NormPlacement;
    use crate::position::rotary::Layout;
    use crate::position::scaling::Scaling;
    use crate::position::{PositionConfig, rotary};

    fn config() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 30, "num_attention_heads": 5,
            "num_hidden_layers": 2, "intermediate_size": 7,
        })
    }

    fn rotary(config: &ModelConfig) -> rotary::Config {
        match &config.position {
            PositionConfig::Rotary(rotary) => rotary.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn settings_with_other_results_are_refused_by_key() {
        let changes = [
            ("attention_bias", json!(true)),
            ("hidden_act", json!("mish")),
            ("num_key_value_heads", json!("few")),
            ("rope_scaling", json!(3)),
            ("rope_theta", json!("far")),
        ];
        assert_refused(&config(), &changes);
        let only_mlp = describe(&changed(&config(), &[("mlp_bias", json!(true))]));
        assert!(only_mlp.expect_err("refused").to_string().contains("`mlp_bias` must be the same"));
    }

    #[test]
    fn a_scaling_without_its_formula_is_refused_by_its_name() {
        let table = |kind: &str| json!({ "rope_type": kind, "factor": 4.0, "rope_theta": 1e4 });
        for key in ["rope_parameters", "rope_scaling"] {
            for kind in ["dynamic", "yarn", "longrope"] {
                let error = describe(&changed(&config(), &[(key, table(kind))]));
                let error = error.expect_err("refused").to_string();
                let expected = format!("`{key}.rope_type` = \"{kind}\" is not supported");
                assert!(error.contains(&expected), "{error}");
            }
            let of = |value: Value| describe(&changed(&config(), &[(key, value)]));
            let error = of(json!({ "type": "linear" })).expect_err("no factor").to_string();
            assert!(error.contains(&format!("`{key}.factor` is missing")), "{error}");
            let half = json!({ "rope_type": "default", "partial_rotary_factor": 0.5 });
            let error = of(half).expect_err("half of the features").to_string();
            assert!(error.contains(&format!("`{key}.partial_rotary_factor` = 0.5")), "{error}");
        }
    }

    #[test]
    fn both_spellings_of_the_positions_are_read_and_written() -> HfResult<()> {
        let llama3 = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        });
        for (table, kind) in [
            (json!({ "rope_type": "default" }), "none"),
            (json!({ "type": "linear", "factor": 2.0 }), "linear"),
            (llama3, "llama3"),
        ] {
            let old = [("rope_theta", json!(500.0)), ("rope_scaling", table.clone())];
            let mut table = table;
            table["rope_theta"] = json!(500.0);
            let new = [("rope_parameters", table)];
            let [old, new] = [&old[..], &new].map(|change| describe(&changed(&config(), change)));
            let (old, new) = (old?, new?);
            assert_eq!((&old.config, &old.notes), (&new.config, &new.notes), "{kind}");
            let rotary = rotary(&old.config);
            assert_eq!(
                (rotary.base, rotary.layout, rotary.scaling.kind()),
                (500., Layout::Half, kind)
            );

            let written = express_as(Family::Llama, &old.config, &old.spec, &old.ids, None)?.config;
            for missing in ["rope_parameters", "rope_theta", "rope_scaling"] {
                let mut one = written.clone();
                one.shift_remove(missing).expect("both spellings");
                if missing != "rope_parameters" {
                    one.shift_remove("rope_theta");
                    one.shift_remove("rope_scaling");
                }
                assert_eq!(describe(&Value::from(one).to_string())?.config, old.config, "{kind}");
            }
        }
        Ok(())
    }

    #[test]
    fn biases_are_in_all_maps_or_in_none() -> HfResult<()> {
        for bias in [true, false] {
            let change = [("attention_bias", json!(bias)), ("mlp_bias", json!(bias))];
            let described = describe(&changed(&config(), &change))?;
            assert_eq!(described.config.bias, bias);
            let written = express_as(
                Family::Llama,
                &described.config,
                &described.spec,
                &described.ids,
                None,
            )?;
            assert_eq!(written.config["attention_bias"], bias);
            assert_eq!(written.config["mlp_bias"], bias);
        }
        Ok(())
    }

    #[test]
    fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let config = ModelConfig {
            norm_placement: NormPlacement::Post,
            position: PositionConfig::None,
            norm: crate::layers::norm::NormConfig::None,
            attention: AttentionConfig::default_of("local").expect("a kind"),
            n_heads: 4,
            ..described.config.clone()
        };
        let expected = [
            "model.norm_placement",
            "model.norm.kind",
            "model.position.kind",
            "model.attention.kind",
            "model.d_model",
        ];
        assert_eq!(reasons(Family::Llama, &config, &described), expected);
        let scaling = Scaling::default_of("linear").expect("a kind");
        let rotary =
            rotary::Config { layout: Layout::Interleaved, scaling, ..rotary(&described.config) };
        let config = ModelConfig { position: PositionConfig::Rotary(rotary), ..described.config };
        express_as(Family::Llama, &config, &described.spec, &described.ids, None)?;
        Ok(())
    }
}
