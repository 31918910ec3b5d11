//! Classifiers: parameters shared with masked language models, and independence of padding.

use std::collections::BTreeSet;

use candle_core::{DType, IndexOp, Result, Tensor};
use tealight_model::block::BlockInput;
use tealight_model::classifier_head::{ClassifierHead, DenseHead, HeadActivation};
use tealight_model::embedding::Input;
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::models::lm_head::LmHeadConfig;
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::models::seq2seq::{Seq2Seq, Seq2SeqSpec};
use tealight_model::names::Named;
use tealight_model::{BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const N_CLASSES: usize = 7;
const PAD: u32 = 2;
const TOLERANCE: f64 = 1e-12;

/// The configuration of a masked language model, including its head.
fn config() -> ModelConfig {
    let lm_head = Some(LmHeadConfig::default());
    ModelConfig { d_model: 33, n_heads: 3, tied_output: true, lm_head, ..ModelConfig::default() }
}

fn spec(read_out: ReadOut) -> ClassifierSpec {
    ClassifierSpec {
        vocab_size: 13,
        n_token_types: 2,
        pad_id: Some(PAD),
        seq_len: 5,
        n_classes: N_CLASSES,
        read_out,
    }
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

fn build(read_out: ReadOut, store: &ParamStore) -> Result<Classifier> {
    build_with(None, read_out, store)
}

fn build_with(
    head: Option<DenseHead>,
    read_out: ReadOut,
    store: &ParamStore,
) -> Result<Classifier> {
    let config = ModelConfig { classifier: head.map(ClassifierHead::Dense), ..config() };
    let model = Classifier::build(&config, &spec(read_out), &store.trainable());
    model.map_err(candle_core::Error::wrap)
}

/// Each activation, with and without a norm, a bias and dropout before the map.
fn dense_heads() -> Vec<DenseHead> {
    let activations = HeadActivation::ALL.iter().enumerate();
    let head = |(i, &activation): (usize, &HeadActivation)| DenseHead {
        activation,
        bias: i % 3 != 0,
        norm: i % 2 == 0,
        input_dropout: i % 2 == 1,
        dropout: (i % 3 == 1).then_some(0.3),
    };
    activations.map(head).collect()
}

fn names(store: &ParamStore) -> BTreeSet<String> {
    store.iter().map(|(name, _)| name).collect()
}

#[test]
fn the_backbone_is_that_of_a_masked_language_model() -> Result<()> {
    let (masked, classifier) = (store(), store());
    let ClassifierSpec { vocab_size, n_token_types, pad_id, seq_len, .. } = spec(ReadOut::Cls);
    let masked_spec = MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: false };
    MaskedLm::build(&config(), &masked_spec, &masked.trainable())
        .map_err(candle_core::Error::wrap)?;
    build(ReadOut::Cls, &classifier)?;
    let (masked, classifier) = (names(&masked), names(&classifier));
    let new: Vec<&str> = classifier.difference(&masked).map(String::as_str).collect();
    assert_eq!(new, ["classifier.bias", "classifier.weight"]);
    let left: Vec<&String> = masked.difference(&classifier).collect();
    assert!(
        left.iter().all(|name| name.starts_with("lm_head.") || name.starts_with("output.")),
        "{left:?}"
    );
    Ok(())
}

#[test]
fn padding_does_not_matter() -> Result<()> {
    let heads = dense_heads().into_iter().map(Some).chain([None]);
    for (head, read_out) in heads.zip([ReadOut::Cls, ReadOut::Mean].into_iter().cycle()) {
        let model = build_with(head, read_out, &store())?;
        let alone = Tensor::new(&[[5_u32, 7, 11]], device())?;
        let padded = Tensor::new(&[[5_u32, 7, 11, PAD, PAD], [3, 3, 3, 3, 3]], device())?;
        let padding = Tensor::new(&[[0_u8, 0, 0, 1, 1], [0; 5]], device())?;
        let mask = Mask::none().with_key_padding_mask(&padding)?;
        let alone = model.forward(&Input::tokens(&alone), &Mask::none(), Mode::Eval)?;
        let together = model.forward(&Input::tokens(&padded), &mask, Mode::Eval)?;
        assert_eq!(together.dims(), [2, N_CLASSES]);
        let difference = (alone.get(0)? - together.get(0)?)?.abs()?.max_all()?;
        assert!(difference.to_scalar::<f64>()? < TOLERANCE, "{read_out:?}");
    }
    Ok(())
}

#[test]
fn cls_read_out_is_refused_for_causal_models() {
    let config = ModelConfig { causal: true, ..config() };
    let built = |read_out| Classifier::build(&config, &spec(read_out), &store().trainable());
    let Err(BuildError::Config(fault)) = built(ReadOut::Cls) else { panic!("not refused") };
    assert_eq!(fault.keys, ["task.read_out", "model.causal"]);
    assert!(built(ReadOut::Mean).is_ok());
}

/// W Norm(φ(V x + c)) + b of the first state, computed from the parameters by their names.
#[test]
fn a_dense_head_is_its_formula() -> Result<()> {
    let ids = Tensor::new(&[[5_u32, 7, 11], [3, 1, 0]], device())?;
    for head in dense_heads() {
        let store = store();
        let model = build_with(Some(head.clone()), ReadOut::Cls, &store)?;
        let params = store.tensors();
        let name = |name: &str| params.get(&format!("classifier.{name}"));
        let linear = |x: &Tensor, weight: &Tensor, bias: Option<&Tensor>| {
            let y = x.matmul(&weight.t()?)?;
            bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
        };
        let mask = Mask::none();
        let context = BlockInput::new(&mask, Mode::Eval);
        let hidden = model.transformer().forward(&Input::tokens(&ids), &context)?;
        let x =
            linear(&hidden.i((.., 0))?, &params["classifier.dense.weight"], name("dense.bias"))?;
        assert_eq!(name("dense.bias").is_some(), head.bias);
        let sigmoid = |x: &Tensor| (x.neg()?.exp()? + 1.)?.recip();
        let x = match head.activation {
            HeadActivation::Tanh => x.tanh()?,
            HeadActivation::Relu => x.relu()?,
            HeadActivation::Gelu => x.gelu_erf()?,
            HeadActivation::GeluTanh => x.gelu()?,
            HeadActivation::Silu => (&x * sigmoid(&x)?)?,
            HeadActivation::Sigmoid => sigmoid(&x)?,
        };
        assert_eq!(name("norm.weight").is_some(), head.norm);
        let x = match (name("norm.weight"), name("norm.bias")) {
            (Some(weight), Some(bias)) => {
                let centred = x.broadcast_sub(&x.mean_keepdim(1)?)?;
                let variance = (centred.sqr()?.mean_keepdim(1)? + 1e-5)?;
                let unit = centred.broadcast_div(&variance.sqrt()?)?;
                unit.broadcast_mul(weight)?.broadcast_add(bias)?
            }
            _ => x,
        };
        let expected = linear(&x, &params["classifier.weight"], name("bias"))?;
        let logits = model.forward(&Input::tokens(&ids), &mask, Mode::Eval)?;
        let difference = (logits - expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
        assert!(difference < 1e-9, "{head:?}: {difference}");
    }
    Ok(())
}

#[test]
fn every_parameter_of_every_head_has_a_gradient_and_dropout_follows_the_settings() -> Result<()> {
    let ids = Tensor::new(&[[5_u32, 7, 11], [3, 1, 0]], device())?;
    let labels = Tensor::new(&[2_u32, 4], device())?;
    for head in dense_heads() {
        let store = store();
        let model = build_with(Some(head.clone()), ReadOut::Mean, &store)?;
        let train = |seed| {
            let mode = Mode::train(Stream::new(seed, Purpose::Dropout));
            model.forward(&Input::tokens(&ids), &Mask::none(), mode)
        };
        let parameters: Vec<_> = store.iter().collect();
        let named = parameters.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
        let gradients = tealight_ops::backward(&cross_entropy(&train(1)?, &labels, 0.)?, named)?;
        let missing = gradients
            .iter()
            .find(|(name, gradient)| gradient.is_none() && !name.contains("token_type"));
        assert!(missing.is_none(), "{head:?}: {missing:?}");
        let differ = train(1)?.to_vec2::<f64>()? != train(2)?.to_vec2::<f64>()?;
        assert_eq!(differ, head.dropout.is_some(), "{head:?}");
    }
    Ok(())
}

#[test]
fn a_head_that_cannot_be_is_refused_by_its_keys() {
    let head = DenseHead { dropout: Some(1.), ..DenseHead::default() };
    let error =
        build_with(Some(head), ReadOut::Cls, &store()).expect_err("a rate of 1").to_string();
    assert!(error.contains("`model.classifier.dropout` = 1 must be at least 0"), "{error}");
    let config = ModelConfig {
        classifier: Some(ClassifierHead::Dense(DenseHead::default())),
        lm_head: None,
        ..config()
    };
    let (vocab_size, seq_len) = (13, 5);
    let spec = MaskedLmSpec { vocab_size, n_token_types: 0, pad_id: None, seq_len, packed: false };
    let masked = MaskedLm::build(&config, &spec, &store().trainable()).map(|_| ());
    let spec = Seq2SeqSpec { vocab_size, source_len: seq_len, target_len: seq_len };
    let translator = Seq2Seq::build(&config, &spec, &store().trainable()).map(|_| ());
    for built in [masked, translator] {
        let Err(BuildError::Config(fault)) = built else { panic!("not refused") };
        assert_eq!(fault.keys, ["model.classifier"]);
    }
}
