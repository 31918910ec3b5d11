//! Attention: one file for each way to compute it, and here which kind is computed in which.

mod aft;
mod dense;
mod heads;
mod layer;
mod linear;
mod nystrom;
mod recurrence;
mod retention;
mod rwkv;
mod score;
mod weights;

pub(super) use layer::{Layer, Output};

use crate::attention as kinds;
use crate::attention::projection::Heads;
use crate::attention::score::Score;
use crate::attention::{
    AttentionConfig, aft_local, aft_simple, entmax15, sparsemax, thresholded, top_k,
};
use crate::onnx_graph::{OnnxResult, Value};
use dense::Scores;

/// Self-attention of `x (batch, q_len, d_model)`.
///
/// # Errors
/// If the kind cannot be written as asked for, by its name.
pub(super) fn attention(
    config: &AttentionConfig,
    layer: &Layer<'_>,
    x: &Value,
) -> OnnxResult<Output> {
    // Kinds that differ in the step from scores to weights alone.
    let dense = |score: Score, weights: &dyn Fn(&Scores<'_>) -> Value| {
        dense::attention(layer, x, Heads::default(), score, None, weights)
    };
    match config {
        AttentionConfig::Softmax(config) => {
            dense::attention(layer, x, config.heads(), config.score, None, weights::softmax)
        }
        AttentionConfig::Local(config) => {
            let (score, window) = (Score::ScaledDot, Some(config.window));
            dense::attention(layer, x, config.heads(), score, window, weights::softmax)
        }
        AttentionConfig::Sparsemax(sparsemax::Config { score }) => {
            dense(*score, &weights::sparsemax)
        }
        AttentionConfig::Entmax15(entmax15::Config { score }) => dense(*score, &weights::entmax15),
        AttentionConfig::TopK(top_k::Config { k, score }) => {
            dense(*score, &|scores| weights::top_k(scores, *k))
        }
        AttentionConfig::Thresholded(thresholded::Config { threshold, rule, score }) => {
            dense(*score, &|scores| weights::thresholded(scores, *rule, *threshold))
        }
        AttentionConfig::AftFull(config) => aft::full(layer, x, config),
        AttentionConfig::AftLocal(aft_local::Config { window: _ }) => aft::local(layer, x),
        AttentionConfig::AftSimple(aft_simple::Config {}) => aft::simple(layer, x),
        AttentionConfig::AftConv(config) => aft::conv(layer, x, config),
        AttentionConfig::Nystrom(config) => nystrom::attention(layer, x, config),
        AttentionConfig::Linear(kinds::linear::Config {}) => linear::elu(layer, x),
        AttentionConfig::Performer(config) => linear::performer(layer, x, config),
        AttentionConfig::Rwkv(kinds::rwkv::Config {}) => rwkv::attention(layer, x),
        AttentionConfig::Retention(kinds::retention::Config {}) => retention::attention(layer, x),
    }
}
