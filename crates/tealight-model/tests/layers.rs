//! Stacks whose layers differ: `[[model.layers]]` and `model.first_norm`.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{DType, Result, Tensor};
use common::normal;
use differences::checked_gradients;
use tealight_model::attention::{AttentionConfig, local};
use tealight_model::config::{LayerConfig, NormPlacement};
use tealight_model::models::causal_lm::{CausalLm, CausalLmSpec};
use tealight_model::position::{PositionConfig, rotary};
use tealight_model::{Activations, BuildResult, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const SEQ_LEN: usize = 9;
const SPEC: CausalLmSpec = CausalLmSpec { vocab_size: 11, seq_len: SEQ_LEN, packed: false };

fn layer(kind: &str) -> LayerConfig {
    LayerConfig { attention: Some(attention(kind)), ..Default::default() }
}

fn unrotated(kind: &str) -> LayerConfig {
    LayerConfig { position: Some(position("none")), ..layer(kind) }
}

fn attention(kind: &str) -> AttentionConfig {
    AttentionConfig::default_of(kind).expect("a kind")
}

fn position(kind: &str) -> PositionConfig {
    PositionConfig::default_of(kind).expect("a kind")
}

fn window(window: usize) -> LayerConfig {
    let local = local::Config { window, ..local::Config::default() };
    LayerConfig { attention: Some(AttentionConfig::Local(local)), ..Default::default() }
}

fn config(layers: Vec<LayerConfig>) -> ModelConfig {
    ModelConfig {
        d_model: 24,
        n_layers: 4,
        n_heads: 3,
        causal: true,
        position: position("rotary"),
        layers,
        ..ModelConfig::default()
    }
}

fn build(config: &ModelConfig) -> BuildResult<(ParamStore, CausalLm)> {
    let store = ParamStore::new(5, DType::F64, device());
    let model = CausalLm::build(config, &SPEC, &store.trainable())?;
    Ok((store, model))
}

fn built(config: &ModelConfig) -> Result<(ParamStore, CausalLm)> {
    build(config).map_err(candle_core::Error::wrap)
}

fn message(config: &ModelConfig) -> String {
    build(config).map(|_| ()).expect_err("refused").to_string()
}

/// `(2, SEQ_LEN)`
fn ids() -> Result<Tensor> {
    Tensor::from_vec((0..18_u32).map(|i| i * 7 % 11).collect(), (2, SEQ_LEN), device())
}

fn logits(config: &ModelConfig) -> Result<Vec<f64>> {
    let (_store, model) = built(config)?;
    model.forward(&ids()?, &Mask::none(), Mode::Eval)?.flatten_all()?.to_vec1()
}

#[test]
fn each_layer_has_the_parameters_of_its_kind_and_the_entries_repeat() -> Result<()> {
    let (store, _) =
        built(&config(vec![LayerConfig::default(), layer("retention"), unrotated("rwkv")]))?;
    let has = |layer: usize, name: &str| {
        store.iter().any(|(found, _)| found.contains(&format!("layer.{layer}.attention.{name}")))
    };
    assert!((0..4).all(|i| has(i, "receptance") == (i == 2)), "rwkv");
    assert!((0..4).all(|i| has(i, "gate") == (i == 1)), "retention");
    // The first layer of its kind passes on the values that the later ones take a share of.
    let (store, _) = built(&config(vec![LayerConfig::default(), unrotated("rwkv7")]))?;
    let has = |layer: usize, name: &str| {
        store.iter().any(|(found, _)| found.contains(&format!("layer.{layer}.attention.{name}")))
    };
    assert!((0..4).all(|i| has(i, "share") == (i == 3)), "rwkv7");
    Ok(())
}

#[test]
fn gradients_are_right_through_a_stack_of_several_kinds() -> Result<()> {
    let own = LayerConfig {
        position: Some(PositionConfig::Rotary(rotary::Config { base: 7., ..Default::default() })),
        ..window(3)
    };
    for layers in [vec![own, unrotated("linear")], vec![window(3), unrotated("rwkv7")]] {
        let config = ModelConfig { first_norm: false, ..config(layers) };
        let (store, model) = built(&config)?;
        let loss = || weighted(&model, Mode::Eval);
        let gradients = checked_gradients("layers", &store, 1, loss)?;
        for fault in gradients.audit()? {
            // The bias of the keys shifts all scores of a row alike, so its gradient is zero.
            assert!(fault.name.ends_with("key.bias"), "{fault}");
        }
    }
    Ok(())
}

/// A random linear function of the logits.
fn weighted(model: &CausalLm, mode: Mode) -> Result<Tensor> {
    let y = model.forward(&ids()?, &Mask::none(), mode)?;
    (&y * normal(3, y.dims(), DType::F64)?)?.sum_all()
}

#[test]
fn recomputed_layers_find_what_the_first_one_of_their_kind_passed_on() -> Result<()> {
    let (store, model) = built(&config(vec![window(3), unrotated("rwkv7")]))?;
    let all = |activations| {
        let mode = Mode::Train { stream: Stream::new(17, Purpose::Dropout), activations };
        let gradients = checked_gradients("passed on", &store, 0, || weighted(&model, mode))?;
        let gradients = store.iter().map(|(name, _)| gradients.get(&name).expect("one").clone());
        gradients.map(|x| x.flatten_all()?.to_vec1::<f64>()).collect::<Result<Vec<_>>>()
    };
    let (kept, recomputed) = (all(Activations::Kept)?, all(Activations::Recomputed)?);
    for (a, b) in kept.iter().flatten().zip(recomputed.iter().flatten()) {
        assert!((a - b).abs() < 1e-12 * a.abs().max(1.), "{a} and {b}");
    }
    Ok(())
}

#[test]
fn entries_without_settings_change_nothing() -> Result<()> {
    let plain = logits(&config(Vec::new()))?;
    let same = LayerConfig {
        attention: Some(attention("softmax")),
        position: Some(position("rotary")),
        ..Default::default()
    };
    assert_eq!(plain, logits(&config(vec![LayerConfig::default(), same]))?);
    assert_ne!(plain, logits(&config(vec![LayerConfig::default(), window(2)]))?);
    let base = PositionConfig::Rotary(rotary::Config { base: 3., ..Default::default() });
    for position in [base, position("none")] {
        let other = LayerConfig { position: Some(position), ..Default::default() };
        assert_ne!(plain, logits(&config(vec![LayerConfig::default(), other]))?);
    }
    Ok(())
}

#[test]
fn the_norms_of_a_layer_may_stand_elsewhere() -> Result<()> {
    let of = |placement| LayerConfig { norm_placement: placement, ..Default::default() };
    let with =
        |layers| logits(&ModelConfig { norm_placement: NormPlacement::Output, ..config(layers) });
    let pre = logits(&config(Vec::new()))?;
    assert_eq!(pre, with(vec![of(Some(NormPlacement::Pre))])?);
    let output = with(Vec::new())?;
    assert_eq!(output, with(vec![of(None), of(Some(NormPlacement::Output))])?);
    let both = with(vec![of(None), of(Some(NormPlacement::Pre))])?;
    assert!(both != pre && both != output && pre != output);
    Ok(())
}

/// Layer 0 is as wide as the sequence, the others read themselves alone.
#[test]
fn decoding_uses_the_layer_s_own_window_and_positions() -> Result<()> {
    let unrotated_window = LayerConfig { position: Some(position("none")), ..window(2) };
    for layers in [
        vec![LayerConfig::default(), window(3)],
        vec![unrotated_window, LayerConfig::default()],
        vec![LayerConfig::default(), unrotated("rwkv7")],
    ] {
        let (_store, model) = built(&config(layers))?;
        let ids = ids()?;
        let whole = model.forward(&ids, &Mask::none(), Mode::Eval)?;
        let mut decoding = model.decoding()?;
        for at in 0..SEQ_LEN {
            let id = ids.narrow(1, at, 1)?.contiguous()?;
            let hidden = decoding.step(&tealight_model::embedding::Input::tokens(&id))?;
            let step = model.logits(&hidden)?.flatten_all()?.to_vec1::<f64>()?;
            let expected = whole.narrow(1, at, 1)?.flatten_all()?.to_vec1::<f64>()?;
            assert!(step.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-11), "{at}");
        }
    }
    Ok(())
}

#[test]
fn without_the_first_norm_only_its_parameters_are_missing() -> Result<()> {
    let names = |config: &ModelConfig| -> Result<Vec<String>> {
        Ok(built(config)?.0.iter().map(|(name, _)| name).collect())
    };
    let with = config(Vec::new());
    let without = names(&ModelConfig { first_norm: false, ..with.clone() })?;
    let mut expected = names(&with)?;
    expected.retain(|name| !name.starts_with("layer.0.attention_residual.norm"));
    assert_eq!(without, expected);
    assert_ne!(logits(&with)?, logits(&ModelConfig { first_norm: false, ..with })?);
    Ok(())
}

#[test]
fn the_estimate_counts_the_parameters_of_every_layer() -> Result<()> {
    for layers in [
        vec![],
        vec![LayerConfig::default(), unrotated("aft_full"), unrotated("rwkv")],
        vec![LayerConfig::default(), unrotated("rwkv7")],
    ] {
        let config = config(layers);
        let (store, _) = built(&config)?;
        let of_attention = |name: &str| name.contains(".attention.");
        let n: usize =
            store.iter().filter(|(name, _)| of_attention(name)).map(|(_, v)| v.elem_count()).sum();
        let stack = tealight_model::stack::StackSpec::single(&config, SEQ_LEN);
        let cost = tealight_model::cost::attention_cost(&config, &stack, [SEQ_LEN, 0]);
        assert_eq!(cost.parameters, n as f64);
    }
    Ok(())
}

#[test]
fn entries_that_cannot_be_are_refused_by_their_keys() {
    let too_many = config(vec![LayerConfig::default(); 5]);
    assert!(message(&too_many).contains("`model.layers` has 5 entries, but `model.n_layers` = 4"));
    let learned = LayerConfig { position: Some(position("learned")), ..Default::default() };
    let refused = message(&config(vec![LayerConfig::default(), learned]));
    assert!(refused.contains("`model.layers[1].position.kind` = \"learned\""), "{refused}");
    let rotated = LayerConfig { position: Some(position("rotary")), ..Default::default() };
    let refused = message(&ModelConfig { position: position("alibi"), ..config(vec![rotated]) });
    assert!(refused.contains("`model.position.kind` = \"alibi\""), "{refused}");
    let refused = message(&config(vec![window(0)]));
    assert!(refused.contains("`model.layers[0].attention.window`"), "{refused}");
    let refused = message(&config(vec![layer("softmax"), layer("nystrom")]));
    assert!(
        refused.contains("`model.layers[1].attention.kind` = \"nystrom\" cannot be causal"),
        "{refused}"
    );
    let post = ModelConfig {
        first_norm: false,
        norm_placement: NormPlacement::Post,
        ..config(Vec::new())
    };
    assert!(message(&post).contains("`model.first_norm` = false"));
    let own = LayerConfig { norm_placement: Some(NormPlacement::Output), ..Default::default() };
    let refused = message(&ModelConfig { first_norm: false, ..config(vec![own]) });
    assert!(refused.contains("`model.norm_placement` = \"output\""), "{refused}");
}
