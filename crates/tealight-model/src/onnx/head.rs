//! From hidden states to what a task reads.

use super::pooled::{first, mean};
use crate::config::{LmHeadConfig, ModelConfig};
use crate::layers::classifier_head::{ClassifierHead, DenseHead};
use crate::models::read_out::ReadOut;
use crate::onnx_graph::{FORBIDDEN, Graph, OnnxResult, Parameters, Sequence, Value};

/// The head of a masked language model: `(.., d_model)` → `(.., vocab_size)`
pub(super) fn masked_lm(
    graph: &Graph,
    config: &ModelConfig,
    parameters: &Parameters,
    x: &Value,
) -> OnnxResult<Value> {
    let at = parameters.at("lm_head");
    // The bias is that of the parameters.
    let LmHeadConfig { transform, activation, bias: _ } =
        config.lm_head.clone().unwrap_or_default();
    if !transform {
        return output(graph, config, parameters, x);
    }
    let x = activation.onnx(graph, &graph.linear(&at.at("dense"), x)?);
    output(graph, config, parameters, &config.norm.onnx(graph, &at.at("norm"), &x)?)
}

/// The output layer of a language model: `(.., d_model)` → `(.., vocab_size)`
pub(super) fn output(
    graph: &Graph,
    config: &ModelConfig,
    parameters: &Parameters,
    x: &Value,
) -> OnnxResult<Value> {
    let at = parameters.at("output");
    if !config.tied_output {
        return Ok(graph.linear(&at, x)?);
    }
    let scale = if config.scale_output { 1. / (config.d_model as f64).sqrt() } else { 1. };
    let table = parameters.at("embedding.token");
    let logits = graph.product_with_rows(&table, &graph.scale(x, scale))?;
    Ok(graph.biased(&at, &logits)?)
}

/// The head of a classifier: `x (batch, seq_len, d_model)` → `(batch, n_classes)`
pub(super) fn classifier(
    sequence: &Sequence<'_>,
    config: &ModelConfig,
    read_out: ReadOut,
    parameters: &Parameters,
    x: &Value,
) -> OnnxResult<Value> {
    let graph = sequence.graph;
    let read = match read_out {
        ReadOut::Cls => first(graph, x),
        ReadOut::Mean => mean(sequence, x),
        ReadOut::Attention => {
            let real = graph.unsqueeze(&sequence.real_keys(), &[2]); // (batch, seq_len, 1)
            let forbidden = graph.sub(&graph.number(1.), &real);
            let scores = graph.linear(&parameters.at("pooling"), x)?;
            let scores = graph.add(&scores, &graph.scale(&forbidden, FORBIDDEN));
            let weights = graph.mul(&graph.softmax(&scores, 1), &real);
            graph.sum(&graph.mul(x, &weights), 1)
        }
    };
    mapped(graph, config, parameters, &graph.squeeze(&read, &[1]))
}

/// The head of a classifier behind its read-out, or of a tagger: `(.., d_model)` → `(.., n_classes)`
pub(super) fn mapped(
    graph: &Graph,
    config: &ModelConfig,
    parameters: &Parameters,
    x: &Value,
) -> OnnxResult<Value> {
    let at = parameters.at("classifier");
    let ClassifierHead::Dense(head) = config.classifier.clone().unwrap_or_default() else {
        return Ok(graph.linear(&at, x)?);
    };
    // The bias is that of the parameters, and dropout has no effect on a trained model.
    let DenseHead { activation: function, bias: _, norm: has_norm, input_dropout: _, dropout: _ } =
        head;
    let mut x = graph.linear(&at.at("dense"), x)?;
    x = match function.of_blocks() {
        Some(function) => function.onnx(graph, &x),
        None => graph.map("Tanh", &x),
    };
    if has_norm {
        x = config.norm.onnx(graph, &at.at("norm"), &x)?;
    }
    Ok(graph.linear(&at, &x)?)
}
