//! Tests of OLMo Hybrid's settings and tensors.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};

use super::super::test_support::{assert_refused, changed, reasons};
use super::super::{Family, describe, express_as};
use super::tensors::{PARTS, WHOLE};
use super::*;
use crate::position::learned;

fn config() -> Value {
    json!({
        "model_type": "olmo_hybrid", "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 4,
        "linear_key_head_dim": 5, "linear_value_head_dim": 7, "vocab_size": 11,
    })
}

#[test]
fn settings_with_other_results_are_refused_by_key() {
    let changes = [
        ("attention_bias", json!(true)),
        ("hidden_act", json!("gelu")),
        ("linear_num_value_heads", json!(8)),
    ];
    assert_refused(&config(), &changes);
    let text = changed(&config(), &[("layer_types", json!(vec!["sliding_attention"; 4]))]);
    assert!(describe(&text).expect_err("refused").to_string().contains("`layer_types` "));
}

#[test]
fn what_is_read_is_written_again() -> HfResult<()> {
    let theta = |theta: Value| json!({ "rope_type": "default", "rope_theta": theta });
    for (change, kind) in [
        (("rope_parameters", theta(json!(500.))), "rotary"),
        (("rope_parameters", theta(Value::Null)), "none"),
        (("rope_theta", Value::Null), "none"),
        (("rope_parameters", Value::Null), "rotary"),
        (("linear_allow_neg_eigval", json!(false)), "rotary"),
        (("linear_num_key_heads", json!(2)), "rotary"),
        (("num_key_value_heads", json!(2)), "rotary"),
        (("head_dim", json!(10)), "rotary"),
        (("layer_types", json!([TYPES[0], TYPES[1], TYPES[1], TYPES[0]])), "rotary"),
    ] {
        let described = describe(&changed(&config(), std::slice::from_ref(&change)))?;
        assert_eq!(described.notes, Vec::<String>::new());
        let config = &described.config;
        assert_eq!(config.position.kind(), kind, "{change:?}");
        let written =
            express_as(Family::OlmoHybrid, config, &described.spec, &described.ids, None)?;
        let again = describe(&Value::Object(written.config).to_string())?;
        assert_eq!(again.config, described.config, "{change:?}");
    }
    Ok(())
}

#[test]
fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
    let described = describe(&config().to_string())?;
    let mut config = ModelConfig {
        bias: true,
        position: PositionConfig::Learned(learned::Config::default()),
        attention: AttentionConfig::Softmax(softmax::Config::default()),
        norm_placement: NormPlacement::Pre,
        ..described.config.clone()
    };
    let other = gated_deltanet::Config { n_householder: 2, ..Default::default() };
    config.layers[1].attention = Some(AttentionConfig::GatedDeltaNet(other));
    config.layers[2].attention = AttentionConfig::default_of("kda");
    let expected = [
        "model.bias",
        "model.layers[1].attention.n_householder",
        "model.layers[1].attention",
        "model.layers[2].attention.kind",
        "model.attention.qk_norm",
        "model.attention.qk_norm_over",
        "model.norm_placement",
        "model.position.kind",
    ];
    assert_eq!(reasons(Family::OlmoHybrid, &config, &described), expected);
    let same = ModelConfig { layers: Vec::new(), ..described.config.clone() };
    assert_eq!(reasons(Family::OlmoHybrid, &same, &described), ["model.attention.kind"]);
    Ok(())
}

/// The three forms of files: released, in memory, and as `save_pretrained` of 5.24 cuts the rows of the convolutions.
#[test]
fn convolutions_may_be_one_or_cut_anywhere() -> HfResult<()> {
    let described = describe(&config().to_string())?;
    let rows = [20, 20, 28];
    let whole = Tensor::arange(0f32, 68., &Device::Cpu)?.reshape((68, 1, 1))?;
    let cut = |rows: [usize; 3]| -> HfResult<BTreeMap<String, Tensor>> {
        let name = |part| format!("model.layers.2.linear_attn.{part}.weight");
        let starts = [0, rows[0], rows[0] + rows[1]];
        let parts = PARTS.iter().zip(starts.into_iter().zip(rows));
        parts.map(|(part, (at, n))| Ok((name(part), whole.narrow(0, at, n)?))).collect()
    };
    let name = |part| format!("model.layers.2.linear_attn.{part}.weight");
    let mut one = BTreeMap::from([(name(&WHOLE), whole.clone())]);
    let norm = Tensor::zeros(24, DType::F32, &Device::Cpu)?;
    one.insert("model.layers.3.feedforward_layer_norm.weight".to_owned(), norm);
    let expected = described.rename(cut(rows)?)?;
    assert_eq!(expected.tensors().len(), 3);
    for (tensor, n) in expected.tensors().values().zip([20, 20, 28]) {
        assert_eq!(tensor.dims(), [n, 1]);
    }
    for tensors in [one, cut([23, 23, 22])?] {
        let weights = described.rename(tensors)?;
        assert_eq!(weights.notes(), Vec::<String>::new());
        for (name, tensor) in expected.tensors() {
            let own = weights.tensors()[name].to_vec2::<f32>()?;
            assert_eq!(own, tensor.to_vec2::<f32>()?, "{name}");
        }
    }
    let written = described.express()?.rename(expected.tensors())?;
    assert!(written.keys().eq(cut(rows)?.keys()), "{:?}", written.keys());
    Ok(())
}
