//! The tensors of OLMo Hybrid: their names in files and here, and the three forms of files.

use std::collections::BTreeMap;

use candle_core::Tensor;

use super::super::table::Pair;
use super::super::{HfError, HfResult};
use super::{features, kinds};
use crate::attention::AttentionConfig;
use crate::config::ModelConfig;
use crate::position::PositionConfig;
use crate::position::rotary::Layout;

/// Names that files have for the norms of a layer, and their names in memory.
const NORMS: [[&str; 2]; 2] = [
    [".attention_layer_norm.", ".input_layernorm."],
    [".feedforward_layer_norm.", ".post_attention_layernorm."],
];

/// The convolutions of queries, keys and values in a file, and all of them in memory.
pub(super) const PARTS: [&str; 3] = ["q_conv1d", "k_conv1d", "v_conv1d"];
pub(super) const WHOLE: &str = "conv1d";

/// The parameters of a model, and the tensors of a file that have them.
pub(super) fn pairs(config: &ModelConfig) -> Vec<Pair> {
    let linear = kinds(config);
    let full: Vec<bool> = linear.iter().map(|is_linear| !is_linear).collect();
    let same = |ours: &str, theirs: &str| {
        Pair::same(format!("layer.*.{ours}"), format!("model.layers.*.{theirs}"))
    };
    let norm = |ours: &str, theirs: &str| {
        same(&format!("{ours}_residual.norm"), &format!("{theirs}_layernorm"))
    };
    let mut pairs = vec![
        Pair::same("embedding.token", "model.embed_tokens"),
        norm("attention", "input").in_layers(&linear),
        norm("feed_forward", "post_attention").in_layers(&linear),
        norm("attention", "post_attention").in_layers(&full),
        norm("feed_forward", "post_feedforward").in_layers(&full),
        same("feed_forward.gate", "mlp.gate_proj"),
        same("feed_forward.up", "mlp.up_proj"),
        same("feed_forward.down", "mlp.down_proj"),
        Pair::same("final_norm", "model.norm"),
        Pair::same("output", "lm_head"),
    ];
    let first = full.iter().position(|&is_full| is_full).unwrap_or_default();
    pairs.extend(softmax_pairs(config, first).map(|pair| pair.in_layers(&full)));
    pairs.extend(mixer_pairs(config).into_iter().map(|pair| pair.in_layers(&linear)));
    pairs
}

/// The parameters of softmax attention; `first` is the first layer that has it.
fn softmax_pairs(config: &ModelConfig, first: usize) -> impl Iterator<Item = Pair> {
    let layout = match config.position_of(first) {
        PositionConfig::Rotary(rotary) => rotary.layout,
        _ => Layout::Half,
    };
    let head_dim = config.head_dim();
    let names = [
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("query_norm", "q_norm"),
        ("key_norm", "k_norm"),
        ("value", "v_proj"),
        ("output", "o_proj"),
    ];
    names.into_iter().enumerate().map(move |(i, (ours, theirs))| {
        let theirs = format!("model.layers.*.self_attn.{theirs}");
        let pair = Pair::same(format!("layer.*.attention.{ours}"), theirs);
        // Queries and keys rotate in the layout `half` there.
        if i < 4 && layout == Layout::Interleaved { pair.in_halves(head_dim) } else { pair }
    })
}

/// The parameters of gated DeltaNet.
fn mixer_pairs(config: &ModelConfig) -> Vec<Pair> {
    let theirs = |name: &str| format!("model.layers.*.linear_attn.{name}");
    let ours = |name: &str| format!("layer.*.attention.{name}");
    let names = [
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("value", "v_proj"),
        ("decay.a_log", "A_log"),
        ("decay.dt_bias", "dt_bias"),
        ("decay", "a_proj"),
        ("strength", "b_proj"),
        ("gate", "g_proj"),
        ("norm", "o_norm"),
        ("output", "o_proj"),
    ];
    let mut pairs: Vec<_> = names.map(|name| Pair::same(ours(name.0), theirs(name.1))).into();
    let convolutions = ["query", "key", "value"].map(|name| ours(&format!("{name}.convolution")));
    let parts = PARTS.iter().zip(&convolutions);
    pairs.extend(parts.map(|(part, ours)| Pair::same(ours, theirs(part)).of_filters()));
    let mixer = config.attentions().find_map(|(_, attention)| match attention {
        AttentionConfig::GatedDeltaNet(mixer) => Some(mixer.clone()),
        _ => None,
    });
    let mixer = mixer.unwrap_or_default();
    let width = |n_heads: usize, factor| n_heads.saturating_mul(features(config, factor));
    let keys = width(mixer.n_key_heads.unwrap_or(config.n_heads), mixer.expand_k);
    let rows = [keys, keys, width(config.n_heads, mixer.expand_v)];
    let whole = Pair::joined(&convolutions.each_ref().map(String::as_str), theirs(WHOLE));
    pairs.push(whole.of_rows(&rows).of_filters());
    pairs
}

/// The tensors of a file as they are in memory: norms by their names there, and the convolutions of a layer as one, as
/// files cut them at different rows.
pub(super) fn arranged(tensors: BTreeMap<String, Tensor>) -> HfResult<BTreeMap<String, Tensor>> {
    let mut arranged = BTreeMap::new();
    for (name, tensor) in tensors {
        let name = NORMS.iter().fold(name, |name, [from, to]| name.replace(from, to));
        if arranged.contains_key(&name) {
            let message = format!("the file contains tensor `{name}` twice, under two names");
            return Err(HfError::Tensor(message));
        }
        arranged.insert(name, tensor);
    }
    let end = |name: &str| format!(".linear_attn.{name}.weight");
    let layers = arranged.keys().filter_map(|name| name.strip_suffix(&end(PARTS[0])));
    let layers: Vec<_> = layers.map(str::to_owned).collect();
    for layer in layers {
        let names = PARTS.map(|part| format!("{layer}{}", end(part)));
        let parts: Vec<_> = names.iter().filter_map(|name| arranged.get(name)).collect();
        let form = |part: &Tensor| (part.dtype(), part.dims().get(1..).map(<[usize]>::to_vec));
        let are_alike = parts.iter().all(|part| part.rank() > 0 && form(part) == form(parts[0]));
        // Parts that do not fit, and one that is missing, are errors later, by their names.
        if parts.len() == PARTS.len() && are_alike {
            let whole = Tensor::cat(&parts, 0)?;
            for name in &names {
                arranged.remove(name);
            }
            arranged.insert(format!("{layer}{}", end(WHOLE)), whole);
        }
    }
    Ok(arranged)
}
