//! Masked language models: masks, gradients of padding, and refused configurations.

use candle_core::{DType, Result, Tensor, Var};
use tealight_model::attention::AttentionConfig;
use tealight_model::block::{BlockInput, NormPlacement};
use tealight_model::embedding::Input;
use tealight_model::feed_forward::FeedForwardConfig;
use tealight_model::models::lm_head::LmHeadConfig;
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::position::{PositionConfig, learned};
use tealight_model::{Activations, BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::Gradients;
use tealight_ops::embedding::embedding;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const D_MODEL: usize = 33;
const SEQ_LEN: usize = 5;
const PAD: u32 = 2;
const SPEC: MaskedLmSpec = MaskedLmSpec {
    vocab_size: 13,
    n_token_types: 3,
    pad_id: Some(PAD),
    seq_len: SEQ_LEN,
    packed: false,
};

fn config() -> ModelConfig {
    ModelConfig { d_model: D_MODEL, n_heads: 3, ..ModelConfig::default() }
}

fn skipping_padding(offset: usize) -> PositionConfig {
    let config = learned::Config { offset, skip_padding: true, ..learned::Config::default() };
    PositionConfig::Learned(config)
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

fn build(config: &ModelConfig, store: &ParamStore) -> Result<MaskedLm> {
    MaskedLm::build(config, &SPEC, &store.trainable()).map_err(candle_core::Error::wrap)
}

/// `(2, 5)`: the second row has padding on both sides.
fn input_ids() -> Result<Tensor> {
    Tensor::new(&[[5_u32, 7, 11, 3, 5], [PAD, 7, 11, 3, PAD]], device())
}

fn logits(model: &MaskedLm, input_ids: &Tensor) -> Result<Tensor> {
    let hidden = model.hidden(&Input::tokens(input_ids), &Mask::none(), Mode::Eval)?;
    model.logits(&hidden)
}

fn gradients(store: &ParamStore, loss: &Tensor) -> Result<Gradients> {
    let parameters: Vec<(String, Var)> = store.iter().collect();
    let named = parameters.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
    tealight_ops::backward(loss, named)
}

fn row_norm(gradients: &Gradients, name: &str, row: u32) -> Result<f64> {
    let gradient = gradients.get(name).expect("a gradient");
    gradient.get(row as usize)?.sqr()?.sum_all()?.to_scalar()
}

fn refused(config: &ModelConfig, spec: &MaskedLmSpec) -> Vec<String> {
    match MaskedLm::build(config, spec, &store().trainable()) {
        Err(BuildError::Config(fault)) => fault.keys,
        other => panic!("{other:?}"),
    }
}

/// Rotary positions are relative, so moving a document does not change its outputs.
#[test]
fn documents_packed_into_one_sequence_are_read_as_if_alone() -> Result<()> {
    let store = store();
    let position = PositionConfig::default_of("rotary").expect("a kind");
    let config = ModelConfig { d_model: 30, position, n_layers: 2, ..config() };
    let spec = MaskedLmSpec { packed: true, ..SPEC };
    let model =
        MaskedLm::build(&config, &spec, &store.trainable()).map_err(candle_core::Error::wrap)?;
    let ids = Tensor::new(&[[5_u32, 7, 11, 3, 5]], device())?;
    let segments = Tensor::new(&[[0_u32, 0, 1, 1, 1]], device())?;
    let mask = Mask::none().with_segments(&segments)?;
    let packed = model.hidden(&Input::tokens(&ids), &mask, Mode::Eval)?;
    for (start, len) in [(0, 2), (2, 3)] {
        let ids = ids.narrow(1, start, len)?.contiguous()?;
        let alone = model.hidden(&Input::tokens(&ids), &Mask::none(), Mode::Eval)?;
        let difference = (packed.narrow(1, start, len)? - alone)?.abs()?.max_all()?;
        assert!(difference.to_scalar::<f64>()? < 1e-12, "{difference}");
    }
    Ok(())
}

/// softmax(Q Kᵀ / √d) of the heads of a layer are its attention weights, with the rotation of the positions.
#[test]
fn heads_of_a_layer_give_its_attention_weights() -> Result<()> {
    let store = store();
    let position = PositionConfig::default_of("rotary").expect("a kind");
    let config = ModelConfig { d_model: 30, position, n_layers: 3, ..config() };
    let model = build(&config, &store)?;
    let (ids, mask) = (input_ids()?, Mask::none());
    let maps = model.attention_maps(&Input::tokens(&ids), &mask)?;
    let context = BlockInput::new(&mask, Mode::Eval);
    for (layer, map) in maps.iter().enumerate() {
        let heads = model.transformer().heads(&Input::tokens(&ids), &context, layer)?;
        let [query, key, value] = heads.expect("softmax has heads");
        assert_eq!(value.dims(), [2, SEQ_LEN, 3, 10]);
        let first = |x: &Tensor| x.transpose(1, 2)?.contiguous();
        let scores = (first(&query)?.matmul(&first(&key)?.t()?)? / 10_f64.sqrt())?;
        let weights = tealight_ops::softmax::softmax(&scores)?;
        let difference = (weights - &map.attention.weights)?.abs()?.max_all()?;
        assert!(difference.to_scalar::<f64>()? < 1e-12, "layer {layer}: {difference}");
    }
    assert!(model.transformer().heads(&Input::tokens(&ids), &context, 3).is_err());
    let gated = AttentionConfig::default_of("aft_simple").expect("a kind");
    let config = ModelConfig { attention: gated, ..self::config() };
    let model = build(&config, &self::store())?;
    assert!(model.transformer().heads(&Input::tokens(&ids), &context, 0)?.is_none());
    Ok(())
}

#[test]
fn packed_documents_are_refused_by_what_cannot_keep_them_apart() {
    let spec = MaskedLmSpec { packed: true, ..SPEC };
    for kind in ["nystrom", "linear", "aft_full"] {
        let attention = AttentionConfig::default_of(kind).expect("a kind");
        let config = ModelConfig { attention, ..config() };
        assert_eq!(refused(&config, &spec), ["model.attention.kind", "task.sequences"], "{kind}");
    }
}

/// Configurations that differ in what the last block does.
fn last_blocks() -> Vec<ModelConfig> {
    let glu = FeedForwardConfig::default_of("glu").expect("a kind");
    vec![
        ModelConfig { n_layers: 1, ..config() },
        ModelConfig { norm_placement: NormPlacement::Post, ..config() },
        ModelConfig { feed_forward: glu, ..config() },
        ModelConfig { feed_forward: FeedForwardConfig::None, ..config() },
        ModelConfig { stochastic_depth: 0.5, ..config() },
    ]
}

#[test]
fn hidden_states_at_positions_equal_those_of_all_positions_and_so_do_their_gradients() -> Result<()>
{
    let stream = Stream::new(17, Purpose::Dropout);
    let recomputed = Mode::Train { stream, activations: Activations::Recomputed };
    for config in last_blocks() {
        let store = store();
        let model = build(&config, &store)?;
        let (ids, mask) = (input_ids()?, Mask::none());
        let input = Input::tokens(&ids);
        let positions = Tensor::new(&[9_u32, 0, 6, 6], device())?;
        for mode in [Mode::Eval, Mode::train(stream), recomputed] {
            let some = model.hidden_at(&input, &mask, &positions, mode)?;
            let all = model.hidden(&input, &mask, mode)?;
            let expected = embedding(&all.flatten_to(1)?, &positions)?;
            assert_eq!(some.dims(), [4, D_MODEL]);
            assert!(largest(&(&some - &expected)?)? < 1e-12, "{config:?}");

            let of_some = gradients(&store, &some.powf(3.)?.sum_all()?)?;
            let of_all = gradients(&store, &expected.powf(3.)?.sum_all()?)?;
            for (name, _) in store.iter() {
                let (some, all) = (of_some.get(&name), of_all.get(&name));
                assert_eq!(some.is_some(), all.is_some(), "{name}");
                let (Some(some), Some(all)) = (some, all) else { continue };
                assert!(largest(&(some - all)?)? < 1e-9 * (1. + largest(all)?), "{name}");
            }
        }
    }
    Ok(())
}

/// The masks of dropout are drawn again when activations are recomputed.
#[test]
fn recomputed_hidden_states_at_positions_are_those_that_are_kept() -> Result<()> {
    let stream = Stream::new(17, Purpose::Dropout);
    for stochastic_depth in [0., 0.5] {
        let store = store();
        let model = build(&ModelConfig { dropout: 0.3, stochastic_depth, ..config() }, &store)?;
        let (ids, positions) = (input_ids()?, Tensor::new(&[9_u32, 0, 6], device())?);
        let all = |activations| {
            let mode = Mode::Train { stream, activations };
            let hidden = model.hidden_at(&Input::tokens(&ids), &Mask::none(), &positions, mode)?;
            let gradients = gradients(&store, &hidden.sqr()?.sum_all()?)?;
            let names = store.iter().map(|(name, _)| name);
            let gradients = names.filter_map(|name| gradients.get(&name).cloned());
            let all =
                [hidden].into_iter().chain(gradients).map(|x| x.flatten_all()?.to_vec1::<f64>());
            all.collect::<Result<Vec<_>>>()
        };
        let (kept, recomputed) = (all(Activations::Kept)?, all(Activations::Recomputed)?);
        if device().is_cuda() {
            // cuBLAS does not always add in the same order.
            for (kept, recomputed) in kept.iter().zip(&recomputed) {
                let off = kept.iter().zip(recomputed).map(|(a, b)| (a - b).abs());
                let most = 1e-12 * kept.iter().fold(1., |most: f64, x| most.max(x.abs()));
                assert!(off.into_iter().all(|off| off <= most));
            }
        } else {
            assert_eq!(kept, recomputed);
        }
    }
    Ok(())
}

/// A kernel does not return an error, for which it would have to wait for the GPU.
#[test]
fn a_position_outside_the_input_is_refused_or_not_a_number() -> Result<()> {
    let model = build(&config(), &store())?;
    let (ids, positions) = (input_ids()?, Tensor::new(&[10_u32], device())?);
    let hidden = model.hidden_at(&Input::tokens(&ids), &Mask::none(), &positions, Mode::Eval);
    let has_kernels = device().is_cuda() || cfg!(feature = "emulator");
    match hidden {
        Ok(hidden) => assert!(has_kernels && hidden.sum_all()?.to_scalar::<f64>()?.is_nan()),
        Err(_) => assert!(!device().is_cuda()),
    }
    Ok(())
}

fn largest(x: &Tensor) -> Result<f64> {
    x.abs()?.max_all()?.to_scalar()
}

#[test]
fn every_parameter_of_a_masked_language_model_has_a_gradient() -> Result<()> {
    let store = store();
    for tied_output in [true, false] {
        let model = build(&ModelConfig { tied_output, ..config() }, &store)?;
        let ids = input_ids()?;
        let types = Tensor::new(&[[0_u32, 1, 2, 0, 1]; 2], device())?;
        let input = Input::Tokens { input_ids: &ids, token_type_ids: Some(&types) };
        let logits = model.logits(&model.hidden(&input, &Mask::none(), Mode::Eval)?)?;
        let gradients = gradients(&store, &logits.sqr()?.sum_all()?)?;
        let faults = gradients.audit()?;
        let is_key_bias = |name: &str| name.ends_with("key.bias");
        assert!(faults.iter().all(|fault| is_key_bias(&fault.name)), "{faults:?}");
    }
    Ok(())
}

#[test]
fn padding_embedding_is_trained_by_the_tied_output_only() -> Result<()> {
    for tied_output in [true, false] {
        let store = store();
        let model = build(&ModelConfig { tied_output, ..config() }, &store)?;
        let gradients = gradients(&store, &logits(&model, &input_ids()?)?.sqr()?.sum_all()?)?;
        let of_padding = row_norm(&gradients, "embedding.token.weight", PAD)?;
        assert_eq!(of_padding > 0., tied_output, "{of_padding}");
        assert!(row_norm(&gradients, "embedding.token.weight", 7)? > 0.);
    }
    Ok(())
}

#[test]
fn positions_that_skip_padding_do_not_depend_on_where_it_stands() -> Result<()> {
    let store = store();
    let config = ModelConfig { position: skipping_padding(2), ..config() };
    let model = build(&config, &store)?;
    let ids = Tensor::new(&[[PAD, PAD, 7, 11, 3], [7, 11, 3, PAD, PAD]], device())?;
    let mask = Tensor::new(&[[1_u8, 1, 0, 0, 0], [0, 0, 0, 1, 1]], device())?;
    let mask = Mask::none().with_key_padding_mask(&mask)?;
    let hidden = model.hidden(&Input::tokens(&ids), &mask, Mode::Eval)?;
    let [left, right] = [hidden.get(0)?.narrow(0, 2, 3)?, hidden.get(1)?.narrow(0, 0, 3)?];
    let difference = (&left - &right)?.abs()?.max_all()?.to_scalar::<f64>()?;
    assert!(difference < 1e-12, "{difference}");

    let gradients = gradients(&store, &hidden.sqr()?.sum_all()?)?;
    let (rows, _d_model) = gradients.get("position.weight").expect("a gradient").dims2()?;
    assert_eq!(rows, SEQ_LEN + 2);
    let norms = (0..rows as u32).map(|row| row_norm(&gradients, "position.weight", row));
    let learns: Vec<bool> = norms.map(|norm| Ok(norm? > 0.)).collect::<Result<_>>()?;
    assert_eq!(learns, [false, false, true, true, true, false, false]);
    Ok(())
}

#[test]
fn learned_positions_start_at_the_offset_row() -> Result<()> {
    let store = store();
    let offset = learned::Config { offset: 3, ..learned::Config::default() };
    let config = ModelConfig { position: PositionConfig::Learned(offset), ..config() };
    let model = build(&config, &store)?;
    let gradients = gradients(&store, &logits(&model, &input_ids()?)?.sqr()?.sum_all()?)?;
    for row in 0..8 {
        assert_eq!(row_norm(&gradients, "position.weight", row)? > 0., row >= 3, "{row}");
    }
    Ok(())
}

#[test]
fn last_hidden_state_equals_the_output() -> Result<()> {
    let (store, ids, mask) = (store(), input_ids()?, Mask::none());
    let model = build(&config(), &store)?;
    let context = tealight_model::block::BlockInput::new(&mask, Mode::Eval);
    let states = model.transformer().hidden_states(&Input::tokens(&ids), &context)?;
    assert_eq!(states.len(), config().n_layers + 1);
    let hidden = model.hidden(&Input::tokens(&ids), &mask, Mode::Eval)?;
    let difference = (&states[2] - hidden)?.abs()?.max_all()?.to_scalar::<f64>()?;
    assert_eq!(difference, 0.);
    Ok(())
}

#[test]
fn what_a_masked_language_model_cannot_be_is_refused_by_name() {
    assert_eq!(refused(&ModelConfig { causal: true, ..config() }, &SPEC), ["model.causal"]);
    let softmax = AttentionConfig::default_of("softmax");
    let second = ModelConfig { cross_attention: softmax, ..config() };
    assert_eq!(refused(&second, &SPEC), ["model.cross_attention"]);
    let short = ModelConfig { max_seq_len: Some(SEQ_LEN - 1), ..config() };
    assert_eq!(refused(&short, &SPEC), ["model.max_seq_len"]);

    let skipping = ModelConfig { position: skipping_padding(0), ..config() };
    let keys = ["model.position.offset", "model.position.skip_padding"];
    assert_eq!(refused(&skipping, &SPEC), keys);
    let skipping = ModelConfig { position: skipping_padding(1), ..config() };
    let unknown = MaskedLmSpec { pad_id: None, ..SPEC };
    assert_eq!(refused(&skipping, &unknown), ["model.position.skip_padding"]);
}

#[test]
fn cost_of_last_feed_forward_network_and_head_counts_masked_positions() -> Result<()> {
    const N_LAYERS: usize = 3;
    let spec = MaskedLmSpec { seq_len: 100, ..SPEC };
    let bare = ModelConfig {
        n_layers: N_LAYERS,
        tied_output: true,
        lm_head: Some(LmHeadConfig { transform: false, ..LmHeadConfig::default() }),
        feed_forward: FeedForwardConfig::None,
        ..config()
    };
    let of = |config: &ModelConfig, masked: f64| {
        let store = store();
        build(config, &store)?;
        let cost = MaskedLm::cost(config, &spec, masked, &store);
        assert_eq!(cost.n_parameters, store.n_parameters());
        Result::Ok(cost)
    };
    // Of 100 positions, the head is applied to 15 or 30, and one of three feed-forward networks to as many.
    let square = 2 * (D_MODEL * D_MODEL) as u64;
    let with_head = ModelConfig { lm_head: Some(LmHeadConfig::default()), ..bare.clone() };
    let with_networks = ModelConfig { feed_forward: FeedForwardConfig::default(), ..bare.clone() };
    for (masked, n_masked) in [(0.15, 15), (0.3, 30)] {
        let bare = of(&bare, masked)?;
        let head = of(&with_head, masked)?;
        assert_eq!(head.forward_flops - bare.forward_flops, n_masked * square);
        let networks = of(&with_networks, masked)?;
        assert_eq!(networks.forward_flops - bare.forward_flops, (200 + n_masked) * 8 * square);
    }
    // Stochastic depth computes the last network at all positions.
    let everywhere = ModelConfig { stochastic_depth: 0.1, ..with_networks.clone() };
    let [some, all] = [&with_networks, &everywhere].map(|config| of(config, 0.3));
    let (some, all) = (some?, all?);
    assert_eq!(all.forward_flops - some.forward_flops, 70 * 8 * square);
    assert_eq!(all.activations - some.activations, 70 * 6 * D_MODEL);
    // 15 more positions with the norm, the sum and the input of φ, the state that is read, and the logits.
    let [less, more] = [0.15, 0.3].map(|masked| of(&with_networks, masked));
    let (less, more) = (less?, more?);
    assert_eq!(more.activations - less.activations, 15 * (6 * D_MODEL + D_MODEL + 13));
    assert_eq!(more.recomputed - less.recomputed, 15 * (D_MODEL + 13));
    // Recomputation keeps the inner activations of one block: of a single one, those of the masked positions.
    let single = ModelConfig { n_layers: 1, ..with_networks };
    let [less, more] = [0.15, 0.3].map(|masked| of(&single, masked));
    let (less, more) = (less?, more?);
    assert_eq!(more.recomputed - less.recomputed, 15 * (6 * D_MODEL + D_MODEL + 13));
    // The gate, the gated values and their product.
    let glu = FeedForwardConfig::default_of("glu").expect("a kind");
    let d_ff = glu.d_ff(D_MODEL).expect("a width");
    let gated = ModelConfig { feed_forward: glu, ..bare };
    let [less, more] = [0.15, 0.3].map(|masked| of(&gated, masked));
    let (less, more) = (less?, more?);
    assert_eq!(more.activations - less.activations, 15 * (2 * D_MODEL + 3 * d_ff + D_MODEL + 13));
    Ok(())
}
