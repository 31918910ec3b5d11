//! The Vision Transformer (Dosovitskiy et al. 2021, <https://arxiv.org/abs/2010.11929>): `ViTForImageClassification`,
//! and `ViTModel` without its pooler.
//!
//! Pre-norm blocks, `[CLS]` first, learned positions, a norm before the head, which is a linear map. Patches are
//! numbered row by row; `transformers` flattens one channel by channel, Tealight pixel by pixel.

use serde_json::{Map, Value, json};

use super::class::{Class, Model};
use super::classification::{self, HeadClass, HeadOf};
use super::ids::SpecialIds;
use super::keys::{self, Keys};
use super::rules::Rules;
use super::table::Pair;
use super::{HfResult, requirements};
use crate::config::{ModelConfig, NormPlacement};
use crate::layers::classifier_head::ClassifierHead;
use crate::layers::feed_forward::{FeedForwardConfig, MlpConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::models::image_classifier::ImageClassifierSpec;
use crate::models::read_out::ReadOut;
use crate::models::spec::ModelSpec;
use crate::params::init::{InitConfig, Normal};
use crate::patches::{PatchesConfig, PictureSize, linear};
use crate::position::{PositionConfig, learned};

pub(super) const CLASS: Class = Class {
    architecture: "ViTModel",
    has: |spec| matches!(spec, ModelSpec::ImageClassifier(_)),
    base: "vit",
    roots: &["embeddings.", "encoder.", "layernorm.", "pooler."],
    unused: &["pooler", "mask_token"],
    read,
    write,
    pairs,
    arranged: None,
    aliases: |_| Vec::new(),
    token_types: None,
    heads: &[HeadClass {
        architecture: "ViTForImageClassification",
        is_of_tokens: false,
        read: |_, _| Ok((ClassifierHead::Linear, Some(ReadOut::Cls))),
        write: write_head,
        tensors: &[],
        output: "classifier",
    }],
};

/// Keys of masked image modelling and of the pooler, which classifiers do not use.
const UNUSED_KEYS: [&str; 3] = ["encoder_stride", "pooler_output_size", "pooler_act"];

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let why = "queries, keys and values have biases, as all linear maps";
    keys.require("qkv_bias", true, why)?;
    for key in UNUSED_KEYS {
        keys.ignore(key);
    }
    let [height, width] = keys.pair("image_size", 224)?;
    let patch = keys.pair("patch_size", 16)?;
    let [size, _] = patch;
    if patch != [size; 2] {
        let value = format!("[{}, {}]", patch[0], patch[1]);
        return Err(keys.unsupported("patch_size", &value, "only square patches are"));
    }
    let channels = keys.size("num_channels", 3)?;
    let activation = keys.activation("hidden_act", "gelu")?;
    let std = keys.number("initializer_range", 0.02)?;
    let epsilon = keys.number("layer_norm_eps", 1e-12)?;
    let dropouts = ["hidden_dropout_prob", "attention_probs_dropout_prob"];
    let config = ModelConfig {
        d_model: keys.size("hidden_size", 768)?,
        n_layers: keys.n_layers("num_hidden_layers", 12)?,
        n_heads: keys.size("num_attention_heads", 12)?,
        dropout: keys.dropout_with_default(&dropouts, 0.)?,
        norm_placement: NormPlacement::Pre,
        patches: Some(PatchesConfig::Linear(linear::Config { size, stride: None })),
        position: PositionConfig::Learned(learned::Config { std, ..Default::default() }),
        norm: NormConfig::LayerNorm(LayerNormConfig { epsilon, bias: true }),
        feed_forward: FeedForwardConfig::Mlp(MlpConfig {
            activation,
            d_ff: Some(keys.size("intermediate_size", 3072)?),
        }),
        init: InitConfig::Normal(Normal { std, scale_residual: false }),
        ..ModelConfig::default()
    };
    let size = PictureSize { height, width, channels };
    let backbone = ImageClassifierSpec { size, n_classes: 0, read_out: ReadOut::Cls };
    Ok((config, ModelSpec::ImageClassifier(backbone), SpecialIds::default()))
}

fn write((config, spec, _): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    rules.require_off("model.causal", config.causal, "bidirectional attention");
    requirements::check_equal_layers(config, rules);
    requirements::check_pre_norm_blocks(config, rules);
    rules.require_on("model.bias", config.bias, "biases in all linear maps");
    requirements::check_one_width(config, rules);
    requirements::check_softmax(config, rules);
    requirements::check_positions_from(0, config, rules);
    let patch = check_patches(config, rules);
    let (activation, d_ff) = requirements::mlp(config, rules);
    let PictureSize { height, width, channels } = spec.picture_size().unwrap_or_default();
    let size = if height == width { json!(height) } else { json!([height, width]) };
    let map = json!({
        "image_size": size,
        "patch_size": patch,
        "num_channels": channels,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": d_ff,
        "hidden_act": keys::activation_name(activation),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "layer_norm_eps": requirements::layer_norm_epsilon(config, rules),
        "initializer_range": requirements::initial_std(config),
        "qkv_bias": true,
    });
    map.as_object().cloned().unwrap_or_default()
}

/// Requires linear patches that do not overlap; their size.
fn check_patches(config: &ModelConfig, rules: &mut Rules) -> usize {
    match &config.patches {
        Some(PatchesConfig::Linear(linear::Config { size, stride })) => {
            let stride = stride.unwrap_or(*size);
            let apart = "patches that do not overlap: `model.patches.size`";
            rules.check(stride == *size, "model.patches.stride", &stride.to_string(), apart);
            *size
        }
        other => {
            let kind = other.as_ref().map_or("none", PatchesConfig::kind);
            rules.wrong_kind("model.patches.kind", kind, "linear");
            0
        }
    }
}

fn write_head((head, read_out, _): HeadOf<'_>, rules: &mut Rules) -> Map<String, Value> {
    classification::require_first(read_out, rules);
    if *head != ClassifierHead::Linear {
        rules.wrong_kind("model.classifier.kind", head.kind(), "linear");
    }
    Map::new()
}

fn pairs(config: &ModelConfig) -> Vec<Pair> {
    let size = match &config.patches {
        Some(PatchesConfig::Linear(linear)) => linear.size,
        _ => 0,
    };
    let embedding = |name: &str| format!("vit.embeddings.{name}");
    let layer = "vit.encoder.layer.*";
    let attention = format!("{layer}.attention");
    vec![
        Pair::same("embedding.cls", embedding("cls_token")),
        Pair::same("position.weight", embedding("position_embeddings")).under_axes(1),
        Pair::same("embedding.patches", embedding("patch_embeddings.projection"))
            .of_square_kernels(size),
        Pair::same("layer.*.attention.query", format!("{attention}.attention.query")),
        Pair::same("layer.*.attention.key", format!("{attention}.attention.key")),
        Pair::same("layer.*.attention.value", format!("{attention}.attention.value")),
        Pair::same("layer.*.attention.output", format!("{attention}.output.dense")),
        Pair::same("layer.*.attention_residual.norm", format!("{layer}.layernorm_before")),
        Pair::same("layer.*.feed_forward.up", format!("{layer}.intermediate.dense")),
        Pair::same("layer.*.feed_forward.down", format!("{layer}.output.dense")),
        Pair::same("layer.*.feed_forward_residual.norm", format!("{layer}.layernorm_after")),
        Pair::same("final_norm", "vit.layernorm"),
    ]
}
