//! Classifiers: parameters shared with masked language models, and independence of padding.

use std::collections::BTreeSet;

use candle_core::{DType, Result, Tensor};
use tealight_model::embedding::Input;
use tealight_model::models::classifier::{Classifier, ClassifierSpec, ReadOut};
use tealight_model::models::lm_head::LmHeadConfig;
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::{BuildError, Mask, Mode, ModelConfig, ParamStore};
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
    let model = Classifier::build(&config(), &spec(read_out), &store.trainable());
    model.map_err(candle_core::Error::wrap)
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
    for read_out in [ReadOut::Cls, ReadOut::Mean] {
        let model = build(read_out, &store())?;
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
