//! Models of transformers without files: names, shapes, and configurations that it cannot represent.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Result, Tensor};
use serde_json::{Value, json};
use tealight_model::attention::{AttentionConfig, nystrom, softmax};
use tealight_model::block::NormPlacement;
use tealight_model::classifier_head::{ClassifierHead, DenseHead, HeadActivation};
use tealight_model::embedding::{self, Input};
use tealight_model::feed_forward::{Activation, FeedForwardConfig, MlpConfig};
use tealight_model::hf::{
    self, Classification, Expressed, Family, HfError, HfResult, ProblemType, SpecialIds,
};
use tealight_model::models::lm_head::LmHeadConfig;
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::norm::{LayerNormConfig, NormConfig};
use tealight_model::position::{PositionConfig, learned};
use tealight_model::{Mask, Mode, ModelConfig, ModelSpec, ParamStore};
use tealight_ops::testing::device;

const SPEC: MaskedLmSpec =
    MaskedLmSpec { vocab_size: 13, n_token_types: 2, seq_len: 7, pad_id: Some(0), packed: false };
const IDS: SpecialIds = SpecialIds { pad: Some(0), bos: None, eos: None };

/// The configuration of a small BERT.
fn bert() -> ModelConfig {
    ModelConfig {
        d_model: 33,
        n_heads: 3,
        norm_placement: NormPlacement::Post,
        tied_output: true,
        embedding: embedding::Config { scale: false, norm: true },
        ..ModelConfig::default()
    }
}

fn masked_lm(config: &ModelConfig, spec: &MaskedLmSpec) -> Result<(ParamStore, MaskedLm)> {
    let store = ParamStore::new(17, DType::F32, device());
    let model = MaskedLm::build(config, spec, &store.trainable());
    let model = model.map_err(candle_core::Error::wrap)?;
    Ok((store, model))
}

fn logits(model: &MaskedLm) -> Result<Vec<f32>> {
    let ids = Tensor::new(&[[1_u32, 5, 3, 0, 7], [2, 2, 9, 12, 0]], device())?;
    let hidden = model.hidden(&Input::tokens(&ids), &Mask::none(), Mode::Eval)?;
    model.logits(&hidden)?.flatten_all()?.to_vec1()
}

/// A masked language model for transformers.
fn express(config: &ModelConfig, spec: MaskedLmSpec) -> HfResult<Expressed> {
    hf::express(config, &ModelSpec::MaskedLm(spec), &IDS, None)
}

/// The specification of a masked language model that is described.
fn spec_of(described: &hf::Description) -> MaskedLmSpec {
    let ModelSpec::MaskedLm(spec) = described.spec else { panic!("{:?}", described.spec) };
    spec
}

/// The keys of all faults.
fn refused(config: &ModelConfig) -> Vec<String> {
    match express(config, SPEC) {
        Err(HfError::Inexpressible { faults, .. }) => {
            faults.into_iter().flat_map(|fault| fault.keys).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// A class, the `config.json` of a small model, and the names of its tensors, tied and untied.
fn recorded() -> Vec<(Family, Value, [Value; 2])> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/reference/names_v5.json");
    let text = std::fs::read_to_string(path).expect("the names that transformers saves");
    let names: Value = serde_json::from_str(&text).expect("JSON");
    let encoder = json!({
        "vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 12, "max_position_embeddings": 16, "pad_token_id": 0,
    });
    let with = |more: Value| {
        let mut keys = encoder.clone();
        keys.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        keys
    };
    let distilbert = json!({
        "model_type": "distilbert", "vocab_size": 50, "dim": 8, "n_layers": 1, "n_heads": 2,
        "hidden_dim": 12, "max_position_embeddings": 16,
    });
    let roberta = json!({ "max_position_embeddings": 18, "type_vocab_size": 1, "pad_token_id": 1 });
    let nystrom = json!({ "num_landmarks": 4, "segment_means_seq_len": 16, "conv_kernel_size": 3 });
    let classes = [
        (Family::Bert, with(json!({}))),
        (Family::Roberta, with(roberta)),
        (Family::DistilBert, distilbert),
        (Family::Nystromformer, with(nystrom)),
    ];
    let names = |family: Family| {
        let class = family.architecture();
        [class.to_owned(), format!("{class} (tie_word_embeddings=false)")]
            .map(|key| names[key].clone())
    };
    classes.map(|(family, keys)| (family, keys, names(family))).into()
}

#[test]
fn tensors_have_the_names_and_shapes_that_transformers_saves() -> Result<()> {
    for (family, mut keys, names) in recorded() {
        for (tied, names) in [true, false].into_iter().zip(names) {
            keys["model_type"] = family.model_type().into();
            keys["tie_word_embeddings"] = tied.into();
            let described = hf::describe(&keys.to_string()).map_err(candle_core::Error::wrap)?;
            let (store, _) = masked_lm(&described.config, &spec_of(&described))?;
            let hf::Description { config, spec, ids, .. } = &described;
            let expressed =
                hf::express(config, spec, ids, None).map_err(candle_core::Error::wrap)?;
            assert_eq!(expressed.family, family);
            let theirs = expressed.rename(&store.tensors()).map_err(candle_core::Error::wrap)?;
            let shapes: BTreeMap<String, Value> = theirs
                .iter()
                .map(|(name, tensor)| (name.clone(), json!(["F32", tensor.dims()])))
                .collect();
            assert_eq!(json!(shapes), names, "{family:?}, tied {tied}");

            // The conversion back gives exactly the parameters of the model.
            let back = described.rename(theirs).map_err(candle_core::Error::wrap)?;
            let ours: Vec<String> = store.tensors().into_keys().collect();
            assert_eq!(back.tensors().keys().cloned().collect::<Vec<_>>(), ours);
            assert!(back.notes().is_empty(), "{:?}", back.notes());
        }
    }
    Ok(())
}

#[test]
fn a_model_without_token_types_is_a_bert_whose_only_type_is_zero() -> Result<()> {
    let spec = MaskedLmSpec { n_token_types: 0, ..SPEC };
    let (store, model) = masked_lm(&bert(), &spec)?;
    let expressed = express(&bert(), spec).expect("a BERT");
    assert_eq!(expressed.family, Family::Bert);
    let theirs = expressed.rename(&store.tensors()).expect("names");
    let text = Value::from(expressed.config.clone()).to_string();
    let described = hf::describe(&text).expect("a description");
    assert_eq!(spec_of(&described), MaskedLmSpec { n_token_types: 1, ..spec });
    assert_eq!(described.ids, IDS);
    let weights = described.rename(theirs).expect("weights");
    let vb = weights.builder(DType::F32, device());
    let back = MaskedLm::build(&described.config, &spec_of(&described), &vb);
    assert_eq!(logits(&back.expect("a model"))?, logits(&model)?);

    // With DistilBERT's ε it is exported as a DistilBERT.
    let norm = NormConfig::LayerNorm(LayerNormConfig { epsilon: 1e-12, bias: true });
    let expressed = express(&ModelConfig { norm, ..bert() }, spec);
    assert_eq!(expressed.expect("a DistilBERT").family, Family::DistilBert);
    Ok(())
}

#[test]
fn inexpressible_models_are_refused_with_all_keys() {
    let attention = |kind| AttentionConfig::default_of(kind).expect("a kind");
    let heads = softmax::Config { n_kv_heads: Some(1), qk_norm: true, ..Default::default() };
    let mlp = MlpConfig { activation: Activation::Relu, d_ff: None };
    let shift = learned::Config { offset: 1, ..learned::Config::default() };
    let without = LmHeadConfig { transform: false, bias: false, ..LmHeadConfig::default() };
    let convolved = softmax::Config { conv_size: 4, ..Default::default() };
    let changed: [(ModelConfig, &[&str]); 13] = [
        (ModelConfig { attention: attention("aft_full"), ..bert() }, &["model.attention.kind"]),
        (
            ModelConfig { attention: AttentionConfig::Softmax(heads), ..bert() },
            &["model.attention.n_kv_heads", "model.attention.qk_norm"],
        ),
        (
            ModelConfig {
                position: PositionConfig::default_of("rotary").expect("a kind"),
                ..bert()
            },
            &["model.position.kind"],
        ),
        (
            ModelConfig { position: PositionConfig::Learned(shift), ..bert() },
            &["model.position.offset"],
        ),
        (
            ModelConfig {
                feed_forward: FeedForwardConfig::default_of("glu").expect("a kind"),
                ..bert()
            },
            &["model.feed_forward.kind"],
        ),
        (
            ModelConfig { feed_forward: FeedForwardConfig::Mlp(mlp), ..bert() },
            &["model.lm_head.activation", "model.feed_forward.activation"],
        ),
        (
            ModelConfig { attention: AttentionConfig::Softmax(convolved), ..bert() },
            &["model.attention.conv_size"],
        ),
        (ModelConfig { bias: false, ..bert() }, &["model.bias"]),
        (ModelConfig { residual: false, ..bert() }, &["model.residual"]),
        (
            ModelConfig { norm: NormConfig::default_of("rms_norm").expect("a kind"), ..bert() },
            &["model.norm.kind"],
        ),
        (
            ModelConfig { lm_head: Some(without), ..bert() },
            &["model.lm_head.transform", "model.lm_head.bias"],
        ),
        (ModelConfig { norm_placement: NormPlacement::Pre, ..bert() }, &["model.norm_placement"]),
        (
            ModelConfig { embedding: embedding::Config { scale: true, norm: false }, ..bert() },
            &["model.embedding.scale", "model.embedding.norm"],
        ),
    ];
    for (config, keys) in changed {
        assert_eq!(refused(&config), keys);
    }
    let error = express(&ModelConfig { bias: false, ..bert() }, SPEC);
    assert_eq!(
        error.expect_err("no biases").to_string(),
        "BertForMaskedLM cannot represent this model: `model.bias` is false, but BertForMaskedLM \
         requires biases in all linear maps"
    );
}

#[test]
fn classifiers_are_exported_with_the_head_of_the_class_or_refused_by_its_keys() {
    let outputs = |read_out| Classification {
        labels: ["rain", "sun"].map(str::to_owned).into(),
        problem_type: Some(ProblemType::MultiLabel),
        read_out,
    };
    let of = |head: DenseHead| ModelConfig {
        classifier: Some(ClassifierHead::Dense(head)),
        // A classifier has no such head: what it is does not matter.
        lm_head: Some(LmHeadConfig { transform: false, ..LmHeadConfig::default() }),
        ..bert()
    };
    let relu = DenseHead { activation: HeadActivation::Relu, ..DenseHead::default() };
    let express_with = |config: &ModelConfig, spec, read_out| {
        let spec = ModelSpec::MaskedLm(spec).with_classes(2, read_out);
        hf::express(config, &spec, &IDS, Some(&outputs(Some(read_out))))
    };
    let express = |config: &ModelConfig| express_with(config, SPEC, ReadOut::Cls);
    let expressed = express(&of(DenseHead::default())).expect("a BERT");
    assert_eq!(expressed.config["architectures"], json!(["BertForSequenceClassification"]));
    assert_eq!(expressed.config["problem_type"], "multi_label_classification");
    assert_eq!(expressed.config["id2label"], json!({ "0": "rain", "1": "sun" }));
    assert_eq!(expressed.config["label2id"], json!({ "rain": 0, "sun": 1 }));
    assert_eq!(expressed.config["classifier_dropout"], Value::Null);
    assert!(expressed.notes.is_empty(), "{:?}", expressed.notes);
    let norm = NormConfig::LayerNorm(LayerNormConfig { epsilon: 1e-12, bias: true });
    let distilbert = ModelConfig { norm, dropout: 0.3, ..of(relu.clone()) };
    let spec = MaskedLmSpec { n_token_types: 0, ..SPEC };
    let expressed = express_with(&distilbert, spec, ReadOut::Cls).expect("a DistilBERT");
    assert_eq!(expressed.family, Family::DistilBert);
    assert_eq!(expressed.config["seq_classif_dropout"], 0.3);
    let dropped = DenseHead { dropout: Some(0.5), input_dropout: true, ..DenseHead::default() };
    let expressed = express(&of(dropped)).expect("a BERT");
    assert_eq!((&expressed.config["classifier_dropout"], expressed.notes.len()), (&json!(0.5), 1));

    let refused = |config: &ModelConfig, read_out| match express_with(config, SPEC, read_out) {
        Err(HfError::Inexpressible { faults, .. }) => {
            faults.into_iter().flat_map(|fault| fault.keys).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&bert(), ReadOut::Cls), ["model.classifier.kind"]);
    assert_eq!(refused(&of(relu), ReadOut::Cls), ["model.classifier.activation"]);
    assert_eq!(refused(&of(DenseHead::default()), ReadOut::Mean), ["task.read_out"]);
    let normed = DenseHead { norm: true, bias: false, ..DenseHead::default() };
    let keys = ["model.classifier.bias", "model.classifier.norm"];
    assert_eq!(refused(&of(normed), ReadOut::Cls), keys);
}

#[test]
fn a_head_has_the_dropout_rate_of_its_key_or_that_of_the_model() {
    let head = |family: &str, more: Value| {
        let mut keys = json!({ "architectures": [format!("{family}ForSequenceClassification")] });
        keys.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        let described = hf::describe(&keys.to_string()).expect("a classifier");
        match described.config.classifier {
            Some(ClassifierHead::Dense(head)) => (head, described.classification.expect("labels")),
            other => panic!("{other:?}"),
        }
    };
    let (bert, outputs) = head("Bert", json!({}));
    assert_eq!((bert.dropout, bert.activation), (None, HeadActivation::Tanh));
    assert_eq!(outputs.labels, ["LABEL_0", "LABEL_1"]);
    assert_eq!(head("Roberta", json!({ "classifier_dropout": 0.3 })).0.dropout, Some(0.3));
    assert_eq!(head("DistilBert", json!({})).0.dropout, Some(0.2));
    let (nystrom, _) =
        head("Nystromformer", json!({ "hidden_act": "relu", "hidden_dropout_prob": 0.4 }));
    assert_eq!((nystrom.dropout, nystrom.activation), (None, HeadActivation::Relu));
}

#[test]
fn nystrom_models_are_exported_only_if_transformers_computes_the_same() {
    let offset = learned::Config { offset: 2, ..learned::Config::default() };
    let of = |nystrom| ModelConfig {
        attention: AttentionConfig::Nystrom(nystrom),
        position: PositionConfig::Learned(offset.clone()),
        ..bert()
    };
    let ours = nystrom::Config { n_landmarks: 2, ..nystrom::Config::default() };
    let keys = ["model.attention.compat", "model.attention.seq_len"];
    assert_eq!(refused(&of(ours.clone())), keys);
    let theirs = nystrom::Config { compat: nystrom::Compat::HuggingFace, ..ours };
    let of_one_length = nystrom::Config { seq_len: Some(6), ..theirs.clone() };
    let expressed = express(&of(of_one_length.clone()), SPEC).expect("one");
    assert_eq!(expressed.family, Family::Nystromformer);
    assert_eq!((&expressed.config["num_landmarks"], expressed.seq_len), (&json!(2), 6));
    assert_eq!(expressed.notes.len(), 1, "{:?}", expressed.notes);
    let steps = nystrom::Config { n_iterations: 5, ..of_one_length };
    assert_eq!(refused(&of(steps)), ["model.attention.n_iterations"]);
    // With as many landmarks as positions it is softmax attention, at any length.
    let all = nystrom::Config { n_landmarks: 64, conv_kernel: Some(3), ..theirs };
    let expressed = express(&of(all), SPEC).expect("one");
    assert_eq!(expressed.config["num_landmarks"], 7);
    assert_eq!(expressed.config["segment_means_seq_len"], 7);
    assert!(expressed.notes.is_empty(), "{:?}", expressed.notes);
}

#[test]
fn fixed_nystrom_length_is_a_multiple_of_landmarks_and_enforced() -> Result<()> {
    let of = |n_landmarks, seq_len| ModelConfig {
        attention: AttentionConfig::Nystrom(nystrom::Config {
            n_landmarks,
            seq_len: Some(seq_len),
            ..nystrom::Config::default()
        }),
        ..bert()
    };
    let store = ParamStore::new(17, DType::F32, device());
    for (n_landmarks, seq_len) in [(2, 5), (2, 0), (2, 8)] {
        let built = MaskedLm::build(&of(n_landmarks, seq_len), &SPEC, &store.trainable());
        let error = built.expect_err("a length that cannot be").to_string();
        assert!(error.contains(&format!("`model.attention.seq_len` = {seq_len}")), "{error}");
    }
    let config = of(2, 4);
    assert_eq!(config.attention.required_len(), Some(4));
    let (_, model) = masked_lm(&config, &SPEC)?;
    let error = logits(&model).expect_err("five positions").to_string();
    assert!(error.contains("5 positions: this attention is for 4"), "{error}");
    Ok(())
}

#[test]
fn nystromformers_that_transformers_fails_on_are_refused_or_noted() {
    let with = |more: Value| {
        let mut keys = json!({ "model_type": "nystromformer", "max_position_embeddings": 24 });
        keys.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        hf::describe(&keys.to_string())
    };
    for (landmarks, len, rule) in [
        (5, 16, "a multiple of `num_landmarks` = 5"),
        (0, 16, "a multiple"),
        (32, 16, "a multiple"),
        (8, 32, "at most `max_position_embeddings` = 24"),
    ] {
        let error = with(json!({ "num_landmarks": landmarks, "segment_means_seq_len": len }));
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("`segment_means_seq_len` = ") && error.contains(rule), "{error}");
    }
    let exact = with(json!({ "inv_coeff_init_option": true })).expect("a description");
    assert!(exact.notes[0].contains("`inv_coeff_init_option` = true"), "{:?}", exact.notes);
    let AttentionConfig::Nystrom(nystrom) = exact.config.attention else { panic!("a Nyström") };
    assert_eq!((nystrom.compat, nystrom.n_landmarks), (nystrom::Compat::HuggingFaceExact, 24));
}

#[test]
fn an_attention_mask_says_the_opposite_of_a_key_padding_mask() -> Result<()> {
    for dtype in [DType::I64, DType::U8] {
        let mask = Tensor::new(&[[1_i64, 1, 0], [0, 1, 1]], device())?.to_dtype(dtype)?;
        let padding = hf::key_padding_mask(&mask)?;
        assert_eq!(padding.to_vec2::<u8>()?, [[0, 0, 1], [1, 0, 0]]);
    }
    Ok(())
}

#[test]
fn roberta_positions_start_after_the_padding_id() {
    let described = |more: Value| {
        let mut keys = json!({ "model_type": "roberta" });
        keys.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        hf::describe(&keys.to_string())
    };
    let roberta = described(json!({ "max_position_embeddings": 514 })).expect("a RoBERTa");
    assert_eq!(roberta.config.max_seq_len, Some(512));
    for (key, value) in [("pad_token_id", json!(null)), ("max_position_embeddings", json!(2))] {
        let mut keys = json!({});
        keys[key] = value;
        let error = described(keys).expect_err("refused").to_string();
        assert!(error.contains(&format!("`{key}` = ")), "{error}");
    }
    let gelu = described(json!({ "hidden_act": "relu" })).expect("a RoBERTa");
    let head = gelu.config.lm_head.expect("a head");
    assert_eq!(head.activation, Activation::Gelu);
}
