//! Whole models: masks, refused configurations, initial values, costs, and evaluation models that share
//! parameters.

mod common;

use std::collections::BTreeMap;

use candle_core::{DType, Result, Tensor};
use common::{normal, values};
use tealight_model::attention::AttentionConfig;
use tealight_model::block::{BlockInput, NormPlacement};
use tealight_model::cost::Estimate;
use tealight_model::embedding::{self, Input, InputSpec};
use tealight_model::feed_forward::{FeedForwardConfig, MlpConfig};
use tealight_model::init::{FanIn, InitConfig, Normal};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::norm::{LayerNormConfig, NormConfig, RmsNormConfig};
use tealight_model::position::{
    AttentionNeeds, PositionConfig, learned, relative, rotary, scalar, sinusoidal,
};
use tealight_model::stack::StackSpec;
use tealight_model::transformer::Transformer;
use tealight_model::{
    AttentionInput, AttentionSpec, Bias, BuildError, Initializer, LayerPlace, Mask, Memory, Mode,
    ModelConfig, ParamStore, Reads,
};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const BATCH: usize = 2;
const SEQ_LEN: usize = 7;
const N_CLASSES: usize = 5;
/// The number of positions of each example that are not padding.
const LENGTHS: [usize; BATCH] = [7, 4];
/// Rounding error of sums of a few products in f32.
const ERROR: f64 = 1e-5;

fn config() -> ModelConfig {
    ModelConfig { d_model: 33, n_heads: 3, ..ModelConfig::default() }
}

fn spec(read_out: ReadOut) -> ForecasterSpec {
    let input = InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None };
    ForecasterSpec { input, seq_len: SEQ_LEN, n_classes: N_CLASSES, read_out }
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F32, device())
}

fn build(
    store: &ParamStore,
    config: &ModelConfig,
    read_out: ReadOut,
) -> std::result::Result<Forecaster, BuildError> {
    Forecaster::build(config, &spec(read_out), &store.trainable())
}

fn built(store: &ParamStore, config: &ModelConfig, read_out: ReadOut) -> Result<Forecaster> {
    build(store, config, read_out).map_err(candle_core::Error::wrap)
}

/// `(batch, len)`; `garbage` determines the values of the padding.
fn ids(garbage: u32) -> Result<Tensor> {
    let stream = Stream::new(3, Purpose::Data);
    let id = |row: usize, at: usize| {
        let real = stream.below((row * SEQ_LEN + at) as u64, N_CLASSES as u64) as u32;
        if at < LENGTHS[row] { real } else { garbage }
    };
    let ids = (0..BATCH).flat_map(|row| (0..SEQ_LEN).map(move |at| id(row, at))).collect();
    Tensor::from_vec(ids, (BATCH, SEQ_LEN), device())
}

fn padding() -> Result<Mask> {
    let row = |len: usize| (0..SEQ_LEN).map(move |at| u8::from(at >= len));
    let flags = LENGTHS.into_iter().flat_map(row).collect();
    Mask::none().with_key_padding_mask(&Tensor::from_vec(flags, (BATCH, SEQ_LEN), device())?)
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < ERROR)
}

#[test]
fn no_read_out_sees_padding() -> Result<()> {
    for read_out in [ReadOut::Mean, ReadOut::Cls, ReadOut::Last] {
        let store = store();
        let model = built(&store, &config(), read_out)?;
        let logits = |ids: &Tensor| model.forward(&Input::tokens(ids), &padding()?, Mode::Eval);
        let (a, b) = (logits(&ids(0)?)?, logits(&ids(4)?)?);
        assert_eq!(values(&a)?, values(&b)?, "{read_out:?}");
        // The same as the example alone, without padding.
        for (row, len) in LENGTHS.into_iter().enumerate() {
            let alone = ids(0)?.narrow(0, row, 1)?.narrow(1, 0, len)?.contiguous()?;
            let alone = model.forward(&Input::tokens(&alone), &Mask::none(), Mode::Eval)?;
            let (alone, padded) = (values(&alone)?, values(&a.get(row)?)?);
            assert!(close(&alone, &padded), "{read_out:?}: {alone:?} is not {padded:?}");
        }
    }
    Ok(())
}

#[test]
fn every_position_forecasts_from_its_past() -> Result<()> {
    let store = store();
    let causal = ModelConfig { causal: true, ..config() };
    let model = built(&store, &causal, ReadOut::EveryPosition)?;
    let ids = ids(0)?;
    let logits = model.forward(&Input::tokens(&ids), &Mask::none(), Mode::Eval)?;
    assert_eq!(logits.dims(), [BATCH, SEQ_LEN, N_CLASSES]);
    for len in 1..=SEQ_LEN {
        let past = ids.narrow(1, 0, len)?.contiguous()?;
        let past = model.forward(&Input::tokens(&past), &Mask::none(), Mode::Eval)?;
        let (now, then) = (values(&logits.narrow(1, len - 1, 1)?)?, past.narrow(1, len - 1, 1)?);
        assert!(close(&now, &values(&then)?), "after {len} positions");
    }
    Ok(())
}

#[test]
fn an_example_that_is_padding_throughout_gives_finite_logits() -> Result<()> {
    for read_out in [ReadOut::Mean, ReadOut::Cls, ReadOut::Last] {
        let store = store();
        let model = built(&store, &config(), read_out)?;
        let mask = Mask::none().with_key_padding_mask(&Tensor::ones(
            (BATCH, SEQ_LEN),
            DType::U8,
            device(),
        )?)?;
        let logits = model.forward(&Input::tokens(&ids(0)?), &mask, Mode::Eval)?;
        assert!(values(&logits)?.iter().all(|x| x.is_finite()), "{read_out:?}");
    }
    Ok(())
}

#[test]
fn attention_weights_come_for_every_layer_and_sum_to_one() -> Result<()> {
    for (read_out, positions) in [(ReadOut::Mean, SEQ_LEN), (ReadOut::Cls, SEQ_LEN + 1)] {
        let store = store();
        let model = built(&store, &config(), read_out)?;
        let layers = model.attention_maps(&Input::tokens(&ids(0)?), &padding()?)?;
        assert_eq!(layers.len(), config().n_layers);
        for layer in layers {
            assert!(layer.cross_attention.is_none());
            let weights = layer.attention.weights;
            let (batch, _n_maps, q_len, kv_len) = weights.dims4()?;
            assert_eq!([batch, q_len, kv_len], [BATCH, positions, positions]);
            assert!(values(&weights.sum(3)?)?.iter().all(|sum| (sum - 1.).abs() < ERROR));
        }
    }
    Ok(())
}

#[test]
fn a_sequence_beyond_the_maximum_is_refused() -> Result<()> {
    let store = store();
    let model = built(&store, &config(), ReadOut::Mean)?;
    let ids = Tensor::zeros((BATCH, SEQ_LEN + 1), DType::U32, device())?;
    let error = model.forward(&Input::tokens(&ids), &Mask::none(), Mode::Eval).unwrap_err();
    let message = "a sequence of 8 positions is longer than `max_seq_len` = 7";
    assert!(error.to_string().contains(message), "{error}");
    // Longer than the sequence, and with room for [CLS].
    let longer = ModelConfig { max_seq_len: Some(SEQ_LEN + 1), ..config() };
    let model = built(&self::store(), &longer, ReadOut::Mean)?;
    model.forward(&Input::tokens(&ids), &Mask::none(), Mode::Eval)?;
    built(&self::store(), &longer, ReadOut::Cls)?;
    Ok(())
}

/// The keys that the error names.
fn refused(config: &ModelConfig, read_out: ReadOut) -> Vec<String> {
    match build(&store(), config, read_out) {
        Err(BuildError::Config(fault)) => fault.keys,
        Err(BuildError::Candle(error)) => panic!("a tensor operation failed: {error}"),
        Ok(_) => panic!("{config:?} was built"),
    }
}

#[test]
fn a_size_or_rate_out_of_range_is_refused_by_key() {
    let mean = |config: ModelConfig| refused(&config, ReadOut::Mean);
    assert_eq!(mean(ModelConfig { d_model: 0, ..config() }), ["model.d_model"]);
    assert_eq!(mean(ModelConfig { n_layers: 0, ..config() }), ["model.n_layers"]);
    assert_eq!(mean(ModelConfig { n_heads: 0, ..config() }), ["model.n_heads"]);
    let keys = ["model.n_heads", "model.d_model"];
    assert_eq!(mean(ModelConfig { n_heads: 5, ..config() }), keys);
    for dropout in [-0.1, 1., f64::NAN] {
        assert_eq!(mean(ModelConfig { dropout, ..config() }), ["model.dropout"]);
    }
    let max_seq_len = |max| ModelConfig { max_seq_len: Some(max), ..config() };
    assert_eq!(mean(max_seq_len(SEQ_LEN - 1)), ["model.max_seq_len"]);
    assert_eq!(refused(&max_seq_len(SEQ_LEN), ReadOut::Cls), ["model.max_seq_len"]);
}

#[test]
fn a_part_out_of_range_is_refused_by_key() {
    let mean = |config: ModelConfig| refused(&config, ReadOut::Mean);
    let feed_forward =
        |d_ff| FeedForwardConfig::Mlp(MlpConfig { d_ff: Some(d_ff), ..MlpConfig::default() });
    let none = ModelConfig { feed_forward: feed_forward(0), ..config() };
    assert_eq!(mean(none), ["model.feed_forward.d_ff"]);
    // The second rounds to zero in f32.
    for epsilon in [0., 1e-60, -1e-5, f64::NAN, f64::INFINITY] {
        for norm in [
            NormConfig::LayerNorm(LayerNormConfig { epsilon, bias: true }),
            NormConfig::RmsNorm(RmsNormConfig { epsilon }),
        ] {
            assert_eq!(mean(ModelConfig { norm, ..config() }), ["model.norm.epsilon"]);
        }
    }
    for std in [0., -1., f64::NAN] {
        let init = InitConfig::FanIn(FanIn { embedding_std: std });
        assert_eq!(mean(ModelConfig { init, ..config() }), ["model.init.embedding_std"]);
        let init = InitConfig::Normal(Normal { std, scale_residual: true });
        assert_eq!(mean(ModelConfig { init, ..config() }), ["model.init.std"]);
    }
}

#[test]
fn unsupported_position_schemes_are_refused_by_key() {
    let mean = |position| refused(&ModelConfig { position, ..config() }, ReadOut::Mean);
    let rotary = rotary::Config::default();
    let keys = ["model.position.kind", "model.head_dim", "model.n_heads", "model.d_model"];
    assert_eq!(mean(PositionConfig::Rotary(rotary.clone())), keys);
    let sinusoidal = sinusoidal::Config::default();
    let keys = ["model.d_model", "model.position.kind"];
    assert_eq!(mean(PositionConfig::Sinusoidal(sinusoidal.clone())), keys);
    for base in [0., f64::NAN] {
        let rotary = PositionConfig::Rotary(rotary::Config { base, ..rotary.clone() });
        assert_eq!(mean(rotary), ["model.position.base"]);
        let sinusoidal = sinusoidal::Config { base, ..sinusoidal.clone() };
        assert_eq!(mean(PositionConfig::Sinusoidal(sinusoidal)), ["model.position.base"]);
    }
    let learned = learned::Config { std: 0., ..learned::Config::default() };
    assert_eq!(mean(PositionConfig::Learned(learned)), ["model.position.std"]);
    let scalar = scalar::Config { length: 0. };
    assert_eq!(mean(PositionConfig::Scalar(scalar)), ["model.position.length"]);
    for n_buckets in [0, 2, 31] {
        let relative = relative::Config { n_buckets, max_distance: 128 };
        assert_eq!(mean(PositionConfig::Relative(relative)), ["model.position.n_buckets"]);
    }
    let relative = |n_buckets, max_distance| {
        PositionConfig::Relative(relative::Config { n_buckets, max_distance })
    };
    let keys = ["model.position.max_distance", "model.position.n_buckets"];
    assert_eq!(mean(relative(32, 8)), keys);
    let causal = |position| ModelConfig { position, causal: true, ..config() };
    assert_eq!(refused(&causal(relative(1, 9)), ReadOut::Mean), ["model.position.n_buckets"]);
    assert_eq!(refused(&causal(relative(32, 16)), ReadOut::Mean), keys);
}

#[test]
fn two_buckets_a_side_are_enough() -> Result<()> {
    for (n_buckets, max_distance, causal) in [(4, 2, false), (6, 2, false), (32, 9, false)]
        .into_iter()
        .chain([(2, 2, true), (3, 2, true), (32, 17, true)])
    {
        let relative = relative::Config { n_buckets, max_distance };
        let position = PositionConfig::Relative(relative);
        let config = ModelConfig { position, causal, ..config() };
        let store = store();
        let model = built(&store, &config, ReadOut::Mean)?;
        let logits = model.forward(&Input::tokens(&ids(0)?), &Mask::none(), Mode::Eval)?;
        assert!(values(&logits)?.iter().all(|logit| logit.is_finite()), "{config:?}");
    }
    Ok(())
}

#[test]
fn tied_outputs_that_do_not_match_the_input_are_refused_by_key() {
    let keys = ["task.read_out", "model.causal"];
    assert_eq!(refused(&config(), ReadOut::EveryPosition), keys);
    assert_eq!(refused(&ModelConfig { causal: true, ..config() }, ReadOut::Cls), keys);
    let tied = ModelConfig { tied_output: true, ..config() };
    let features = InputSpec::Features { n_features: 3 };
    let tokens = InputSpec::Tokens { vocab_size: N_CLASSES + 1, n_token_types: 0, pad_id: None };
    for input in [features, tokens] {
        let spec = ForecasterSpec { input, ..spec(ReadOut::Mean) };
        let error = Forecaster::build(&tied, &spec, &store().trainable()).unwrap_err();
        let BuildError::Config(fault) = error else { panic!("{error}") };
        assert_eq!(fault.keys, ["model.tied_output"]);
    }
}

#[test]
fn inputs_of_the_wrong_sort_are_refused() -> Result<()> {
    let store = store();
    let model = built(&store, &config(), ReadOut::Mean)?;
    let features = normal(0, &[BATCH, SEQ_LEN, 3], DType::F32)?;
    assert!(model.forward(&Input::Features(&features), &Mask::none(), Mode::Eval).is_err());
    let ids = ids(0)?;
    let typed = Input::Tokens { input_ids: &ids, token_type_ids: Some(&ids) };
    let error = model.forward(&typed, &Mask::none(), Mode::Eval).unwrap_err();
    assert!(error.to_string().contains("without token types"), "{error}");
    let empty = Tensor::zeros((BATCH, 0), DType::U32, device())?;
    let error = model.forward(&Input::tokens(&empty), &Mask::none(), Mode::Eval).unwrap_err();
    assert!(error.to_string().contains("a sequence of 0 positions"), "{error}");
    let vb = store.trainable();
    let (config, input) = (config(), spec(ReadOut::Mean).input);
    let alone = StackSpec::single(&config, SEQ_LEN);
    let reading = StackSpec { cross_attention: Some((alone.attention, SEQ_LEN)), ..alone };
    let decoder = Transformer::build(&config, input, &reading, &vb.pp("d"))
        .map_err(candle_core::Error::wrap)?;
    let mask = Mask::none();
    let context = BlockInput::new(&mask, Mode::Eval);
    let error = decoder.forward(&Input::tokens(&ids), &context).unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    let encoder = Transformer::build(&config, input, &alone, &vb.pp("e"))
        .map_err(candle_core::Error::wrap)?;
    let states = normal(1, &[BATCH, SEQ_LEN, 33], DType::F32)?;
    let memory = Some(Memory { states: &states, mask: &Mask::none() });
    let context = BlockInput { memory, ..context };
    let error = encoder.forward(&Input::tokens(&ids), &context).unwrap_err();
    assert!(error.to_string().contains("was given a memory"), "{error}");
    Ok(())
}

#[test]
fn a_memory_is_given_exactly_where_one_is_read() -> Result<()> {
    let store = store();
    let init = Initializer::build(&InitConfig::default(), 1).map_err(candle_core::Error::wrap)?;
    let x = normal(0, &[BATCH, SEQ_LEN, 33], DType::F32)?;
    for kind in AttentionConfig::KINDS {
        for reads in [Reads::Everything, Reads::Past, Reads::Memory] {
            let spec = AttentionSpec {
                d_model: 33,
                n_heads: 3,
                head_dim: None,
                max_q_len: SEQ_LEN,
                max_kv_len: SEQ_LEN,
                reads,
                dropout: 0.,
                bias: Bias::With,
                position: AttentionNeeds::Nothing,
                packed: false,
                conv_size: 0,
                layer: LayerPlace::ONLY,
                init: &init,
                key: "model.attention",
            };
            let config = AttentionConfig::default_of(kind.name).expect("one of KINDS");
            let vb = store.trainable().pp(kind.name);
            let Ok(attention) = config.build(&spec, &vb) else { continue };
            for memory in [None, Some(&x)] {
                let mask = Mask::none();
                let input = AttentionInput { memory, ..AttentionInput::new(&x, &mask, Mode::Eval) };
                let fits = memory.is_some() == (reads == Reads::Memory);
                assert_eq!(attention.forward(&input).is_ok(), fits, "{kind:?}, {reads:?}");
                assert_eq!(attention.weights(&input).is_ok(), fits, "{kind:?}, {reads:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_model_without_biases_has_none_on_its_features() -> Result<()> {
    let store = store();
    let norm = NormConfig::LayerNorm(LayerNormConfig { bias: false, ..LayerNormConfig::default() });
    let config = ModelConfig { bias: false, norm, ..config() };
    let input = InputSpec::Features { n_features: 3 };
    let spec = ForecasterSpec { input, ..spec(ReadOut::Mean) };
    Forecaster::build(&config, &spec, &store.trainable()).map_err(candle_core::Error::wrap)?;
    let biases: Vec<_> = store.iter().filter(|(name, _)| name.ends_with("bias")).collect();
    assert!(biases.is_empty(), "{biases:?}");
    Ok(())
}

/// The root mean square.
fn deviation(values: &[f64]) -> f64 {
    (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn tied_logits_do_not_grow_with_the_width() -> Result<()> {
    for d_model in [33, 243] {
        for scale in [false, true] {
            let embedding = embedding::Config { scale, norm: false };
            let config = ModelConfig { d_model, tied_output: true, embedding, ..config() };
            let store = store();
            let vocab_size = 101;
            let input = InputSpec::Tokens { vocab_size, n_token_types: 0, pad_id: None };
            let spec = ForecasterSpec { input, n_classes: vocab_size, ..spec(ReadOut::Last) };
            let model = Forecaster::build(&config, &spec, &store.trainable())
                .map_err(candle_core::Error::wrap)?;
            let logits = model.forward(&Input::tokens(&ids(0)?), &Mask::none(), Mode::Eval)?;
            let deviation = deviation(&values(&logits)?);
            assert!((0.5..2.).contains(&deviation), "{d_model}, {scale}: {deviation}");
        }
    }
    Ok(())
}

#[test]
fn scaled_embeddings_start_with_the_standard_deviation_of_the_table() -> Result<()> {
    for (scale, tied_output, expected) in
        [(false, false, 1.), (true, false, 33_f64.sqrt()), (false, true, 33_f64.sqrt())]
    {
        let embedding = embedding::Config { scale, norm: false };
        let config = ModelConfig { embedding, tied_output, ..config() };
        let initial = initial_values(&config, ReadOut::Cls)?;
        let token = deviation(&initial["embedding.token.weight"]) * expected;
        assert!((token - 1.).abs() < 0.2, "{token}");
        assert!((deviation(&initial["cls.weight"]) - 1.).abs() < 0.4);
    }
    Ok(())
}

#[test]
fn output_layer_cost_counts_read_positions_tied_or_not() -> Result<()> {
    let cost = |config: &ModelConfig, read_out| {
        let store = store();
        let model = built(&store, config, read_out)?;
        Ok::<_, candle_core::Error>(model.cost(config, &store, SEQ_LEN).forward_flops as usize)
    };
    // Computed by hand: four projections and two feed-forward maps per block.
    let blocks = |len: usize| 2 * (2 * len * 12 * 33 * 33 + 2 * 2 * len * len * 33);
    let output = 2 * 33 * N_CLASSES;
    for tied_output in [false, true] {
        let config = ModelConfig { tied_output, ..config() };
        for read_out in [ReadOut::Mean, ReadOut::Last] {
            assert_eq!(cost(&config, read_out)?, blocks(SEQ_LEN) + output);
        }
        assert_eq!(cost(&config, ReadOut::Cls)?, blocks(SEQ_LEN + 1) + output);
        let causal = ModelConfig { causal: true, ..config };
        let everywhere = cost(&causal, ReadOut::EveryPosition)?;
        assert_eq!(everywhere, blocks(SEQ_LEN) + SEQ_LEN * output);
    }
    Ok(())
}

#[test]
fn the_estimate_of_a_description_is_near_the_parameters_of_its_model() -> Result<()> {
    let networks = FeedForwardConfig::KINDS.iter();
    for feed_forward in networks.filter_map(|kind| FeedForwardConfig::default_of(kind.name)) {
        for config in every_position() {
            let config = ModelConfig { d_model: 66, feed_forward: feed_forward.clone(), ..config };
            let store = store();
            built(&store, &config, ReadOut::Mean)?;
            let (estimate, actual) =
                (Estimate::single_stack(&config, SEQ_LEN).parameters, store.n_parameters() as f64);
            assert!((0.9..=1.).contains(&(estimate / actual)), "{estimate} is not {actual}");
        }
    }
    let huge = ModelConfig { d_model: usize::MAX, n_layers: usize::MAX, ..config() };
    let Estimate { parameters, activations, recomputed } =
        Estimate::single_stack(&huge, usize::MAX);
    assert!(parameters > 1e50 && activations > 1e50 && recomputed > 1e50);
    Ok(())
}

/// Every position encoding, at a width that all of them support.
fn every_position() -> Vec<ModelConfig> {
    PositionConfig::of_sequences()
        .map(|position| ModelConfig { d_model: 30, position, ..config() })
        .collect()
}

#[test]
fn the_order_of_the_inputs_matters_exactly_where_there_are_positions() -> Result<()> {
    for config in every_position() {
        let store = store();
        let model = built(&store, &config, ReadOut::Mean)?;
        let logits = |ids: &[u32; SEQ_LEN]| {
            let ids = Tensor::new(&[*ids], device())?;
            values(&model.forward(&Input::tokens(&ids), &Mask::none(), Mode::Eval)?)
        };
        let (a, b) = (logits(&[0, 1, 2, 3, 4, 0, 0])?, logits(&[4, 1, 0, 3, 0, 2, 0])?);
        let is_bag = config.position == PositionConfig::None;
        assert_eq!(close(&a, &b), is_bag, "{:?}", config.position);
    }
    Ok(())
}

#[test]
fn only_relative_schemes_ignore_the_start_of_a_sequence() -> Result<()> {
    let (days, n_padding) = ([3_u32, 0, 4, 1], 3);
    let late: Vec<u32> = [&[2; 3][..], &days].concat();
    let late = Tensor::from_vec(late, (1, SEQ_LEN), device())?;
    let flags = (0..SEQ_LEN).map(|at| u8::from(at < n_padding)).collect();
    let flags = Tensor::from_vec(flags, (1, SEQ_LEN), device())?;
    let mask = Mask::none().with_key_padding_mask(&flags)?;
    for config in every_position() {
        let store = store();
        let model = built(&store, &config, ReadOut::Last)?;
        let logits = |ids: &Tensor, mask: &Mask| {
            values(&model.forward(&Input::tokens(ids), mask, Mode::Eval)?)
        };
        let early = logits(&Tensor::new(&[days], device())?, &Mask::none())?;
        let is_same = close(&early, &logits(&late, &mask)?);
        let is_of_distances = matches!(
            config.position,
            PositionConfig::None
                | PositionConfig::Rotary(_)
                | PositionConfig::Alibi(_)
                | PositionConfig::Relative(_)
        );
        assert_eq!(is_same, is_of_distances, "{:?}", config.position);
    }
    Ok(())
}

#[test]
fn frozen_model_equals_trainable_model_bit_for_bit() -> Result<()> {
    for config in every_position() {
        for norm_placement in [NormPlacement::Pre, NormPlacement::Post] {
            for tied_output in [false, true] {
                let config =
                    ModelConfig { norm_placement, tied_output, dropout: 0.3, ..config.clone() };
                let store = store();
                let model = built(&store, &config, ReadOut::Cls)?;
                let eval_model =
                    Forecaster::build(&config, &spec(ReadOut::Cls), &store.without_gradients())
                        .map_err(candle_core::Error::wrap)?;
                let ids = ids(0)?;
                let stream = Stream::new(3, Purpose::Dropout);
                for mode in [Mode::Eval, Mode::train(stream)] {
                    let forward =
                        |model: &Forecaster| model.forward(&Input::tokens(&ids), &padding()?, mode);
                    let (trainable, frozen) = (forward(&model)?, forward(&eval_model)?);
                    assert!(trainable.track_op() && !frozen.track_op());
                    assert_eq!(values(&trainable)?, values(&frozen)?, "{config:?}");
                }
            }
        }
    }
    Ok(())
}

fn initial_values(config: &ModelConfig, read_out: ReadOut) -> Result<BTreeMap<String, Vec<f64>>> {
    let store = store();
    built(&store, config, read_out)?;
    store.iter().map(|(name, variable)| Ok((name, values(&variable)?))).collect()
}

#[test]
fn initial_values_do_not_depend_on_other_layers() -> Result<()> {
    let shallow = initial_values(&config(), ReadOut::Mean)?;
    let deep = ModelConfig { n_layers: 3, ..config() };
    let without_norm =
        ModelConfig { norm: NormConfig::None, position: PositionConfig::None, ..deep.clone() };
    for (config, read_out) in [(deep, ReadOut::Cls), (without_norm, ReadOut::Mean)] {
        let other = initial_values(&config, read_out)?;
        let shared: Vec<_> = shallow.keys().filter(|name| other.contains_key(*name)).collect();
        assert!(shared.len() > shallow.len() / 2);
        for name in shared {
            // The position table has one more row for [CLS], at its end.
            let n = shallow[name].len().min(other[name].len());
            assert_eq!(shallow[name][..n], other[name][..n], "`{name}`");
        }
    }
    Ok(())
}

#[test]
fn no_two_parameters_start_with_the_same_values() -> Result<()> {
    let mut seen = BTreeMap::new();
    for (name, values) in initial_values(&config(), ReadOut::Cls)? {
        let is_constant = values.iter().all(|value| *value == values[0]);
        let bits: Vec<u64> = values.iter().take(5).map(|value| value.to_bits()).collect();
        if !is_constant && let Some(other) = seen.insert(bits, name.clone()) {
            panic!("`{name}` starts like `{other}`");
        }
    }
    Ok(())
}
