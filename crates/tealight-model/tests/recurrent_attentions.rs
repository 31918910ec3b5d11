//! Refused configurations and costs of the kinds of attention that are also recurrent networks.

use candle_core::{DType, Result};
use tealight_model::attention::support::Support;
use tealight_model::attention::{AttentionConfig, performer};
use tealight_model::embedding::InputSpec;
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::position::{PositionConfig, alibi, rotary};
use tealight_model::{BuildError, ModelConfig, ParamStore};
use tealight_ops::testing::device;

fn config(kind: &str) -> ModelConfig {
    let attention = AttentionConfig::default_of(kind).expect("a kind");
    ModelConfig { d_model: 30, n_heads: 3, causal: true, attention, ..ModelConfig::default() }
}

/// The keys that the error names.
fn refused(config: &ModelConfig) -> Vec<String> {
    let store = ParamStore::new(17, DType::F32, device());
    let input = InputSpec::Tokens { vocab_size: 5, n_token_types: 0, pad_id: None };
    let spec = ForecasterSpec { input, seq_len: 7, n_classes: 5, read_out: ReadOut::Mean };
    match Forecaster::build(config, &spec, &store.trainable()) {
        Err(BuildError::Config(fault)) => fault.keys,
        Err(BuildError::Candle(error)) => panic!("a tensor operation failed: {error}"),
        Ok(_) => panic!("{config:?} was built"),
    }
}

#[test]
fn positions_that_act_on_scores_are_refused_by_key() {
    for kind in ["linear", "performer", "rwkv"] {
        for position in [
            PositionConfig::Alibi(alibi::Config {}),
            PositionConfig::Rotary(rotary::Config::default()),
        ] {
            let config = ModelConfig { position, ..config(kind) };
            assert_eq!(refused(&config), ["model.position.kind", "model.attention.kind"]);
        }
    }
}

#[test]
fn recurrent_kinds_are_refused_unless_causal() {
    let on_the_rule = [
        "gated_deltanet",
        "deltanet",
        "mamba2",
        "kda",
        "gla",
        "hgrn2",
        "gdn2",
        "lightning",
        "rwkv7",
    ];
    for kind in ["rwkv", "retention"].into_iter().chain(on_the_rule) {
        let config = ModelConfig { causal: false, ..config(kind) };
        assert_eq!(refused(&config), ["model.attention.kind", "model.causal"]);
    }
}

#[test]
fn settings_of_recurrences_out_of_range_are_refused_by_key() {
    for (settings, key) in [
        ("kind = 'gated_deltanet'\nexpand_k = 0.33", "expand_k"),
        ("kind = 'gated_deltanet'\nn_householder = 0", "n_householder"),
        ("kind = 'gated_deltanet'\nn_key_heads = 2", "n_key_heads"),
        ("kind = 'deltanet'\nexpand_v = -1.0", "expand_v"),
        ("kind = 'kda'\nrank = 0", "rank"),
        ("kind = 'kda'\nlower_bound = 0.5", "lower_bound"),
        ("kind = 'gla'\nexpand_k = nan", "expand_k"),
        ("kind = 'mamba2'\nd_state = 0", "d_state"),
        ("kind = 'linear'\nfeature_dim = 16", "feature_dim"),
        ("kind = 'linear'\nfeature_map = 'taylor'\nfeature_dim = 0", "feature_dim"),
        ("kind = 'mamba2'\nn_groups = 4", "n_groups"),
        ("kind = 'rwkv7'\ndecay_rank = 0", "decay_rank"),
    ] {
        let attention: AttentionConfig = toml::from_str(settings).expect(settings);
        let config = ModelConfig { attention, ..config("deltanet") };
        assert_eq!(refused(&config), [format!("model.attention.{key}")], "{settings}");
    }
}

#[test]
fn counts_out_of_range_are_refused_by_key() {
    for n_random_features in [0, 65_537] {
        let features =
            performer::Config { n_random_features, orthogonal: true, ..Default::default() };
        let attention = AttentionConfig::Performer(features);
        let config = ModelConfig { attention, ..config("performer") };
        assert_eq!(refused(&config), ["model.attention.n_random_features"]);
    }
}

#[test]
fn time_and_memory_grow_with_the_sequence_not_with_its_square() -> Result<()> {
    for (kind, bidirectional, cross) in
        [("linear", true, true), ("performer", true, true), ("rwkv", false, false)]
    {
        let support = Support::from_kind(kind)?.expect("a kind");
        assert_eq!((support.time, support.memory), (1, 1), "{kind}");
        assert_eq!((support.bidirectional, support.cross), (bidirectional, cross), "{kind}");
        assert!(support.causal, "{kind}");
    }
    Ok(())
}
