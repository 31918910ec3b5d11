//! Masked language models: masks, gradients of padding, and refused configurations.

use candle_core::{DType, Result, Tensor, Var};
use tealight_model::attention::AttentionConfig;
use tealight_model::embedding::Input;
use tealight_model::models::lm_head::LmHeadConfig;
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::position::{PositionConfig, learned};
use tealight_model::{BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::Gradients;
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
    model.logits(&hidden, None)
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

#[test]
fn packed_documents_are_refused_by_what_cannot_keep_them_apart() {
    let spec = MaskedLmSpec { packed: true, ..SPEC };
    for kind in ["nystrom", "linear", "aft_full"] {
        let attention = AttentionConfig::default_of(kind).expect("a kind");
        let config = ModelConfig { attention, ..config() };
        assert_eq!(refused(&config, &spec), ["model.attention.kind", "task.sequences"], "{kind}");
    }
}

#[test]
fn logits_at_positions_equal_those_of_all_positions() -> Result<()> {
    let store = store();
    for (tied_output, transform) in [(true, true), (true, false), (false, true), (false, false)] {
        let lm_head = Some(LmHeadConfig { transform, ..LmHeadConfig::default() });
        let model = build(&ModelConfig { tied_output, lm_head, ..config() }, &store)?;
        let ids = input_ids()?;
        let hidden = model.hidden(&Input::tokens(&ids), &Mask::none(), Mode::Eval)?;
        let all = model.logits(&hidden, None)?;
        assert_eq!(all.dims(), [2, SEQ_LEN, 13]);
        let positions = Tensor::new(&[9_u32, 0, 6, 6], device())?;
        let some = model.logits(&hidden, Some(&positions))?;
        let expected = all.flatten_to(1)?.index_select(&positions, 0)?;
        let difference = (some - expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
        assert!(difference < 1e-12, "{difference}");
    }
    Ok(())
}

#[test]
fn every_parameter_of_a_masked_language_model_has_a_gradient() -> Result<()> {
    let store = store();
    for tied_output in [true, false] {
        let model = build(&ModelConfig { tied_output, ..config() }, &store)?;
        let ids = input_ids()?;
        let types = Tensor::new(&[[0_u32, 1, 2, 0, 1]; 2], device())?;
        let input = Input::Tokens { input_ids: &ids, token_type_ids: Some(&types) };
        let logits = model.logits(&model.hidden(&input, &Mask::none(), Mode::Eval)?, None)?;
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
    let context = tealight_model::block::BlockInput { mask: &mask, memory: None, mode: Mode::Eval };
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
fn cost_of_the_head_counts_only_masked_positions() -> Result<()> {
    let store = store();
    let config = ModelConfig { tied_output: true, ..config() };
    build(&config, &store)?;
    let of = |vocab_size, seq_len| {
        let spec = MaskedLmSpec { vocab_size, seq_len, ..SPEC };
        MaskedLm::cost(&config, &spec, &store)
    };
    assert_eq!(of(13, 5).n_parameters, store.n_parameters());
    assert!(of(1300, 5).activations > of(13, 5).activations);
    // The head is applied to 15 of 100 positions.
    let with_head = of(13, 100).forward_flops;
    let bare = ModelConfig {
        lm_head: Some(LmHeadConfig { transform: false, ..LmHeadConfig::default() }),
        ..config.clone()
    };
    let other = ParamStore::new(17, DType::F64, device());
    build(&bare, &other)?;
    let spec = MaskedLmSpec { seq_len: 100, ..SPEC };
    let without = MaskedLm::cost(&bare, &spec, &other).forward_flops;
    assert_eq!(with_head - without, 2 * 15 * (D_MODEL * D_MODEL) as u64);
    Ok(())
}
