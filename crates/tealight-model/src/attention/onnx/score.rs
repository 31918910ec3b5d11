//! Scores of queries and keys: the formulas of [`crate::attention::score`].

use candle_core::Result;

use super::Layer;
use super::heads::Qkv;
use crate::attention::score::Score;
use crate::onnx_graph::Value;

/// `(batch, n_heads, q_len, kv_len)`
pub(crate) fn scores(layer: &Layer<'_>, score: Score, qkv: &Qkv) -> Result<Value> {
    let (graph, at) = (layer.graph(), layer.at.at("score"));
    let Qkv { query, key, .. } = qkv;
    let unsqueezed = |name, axes: &[i64]| -> Result<Value> {
        Ok(graph.unsqueeze(&at.constant(graph, name)?, axes))
    };
    Ok(match score {
        Score::ScaledDot => {
            let scale = 1. / (layer.head_dim as f64).sqrt();
            graph.matmul_transposed(&graph.scale(query, scale), key)
        }
        Score::Dot => graph.matmul_transposed(query, key),
        Score::General => {
            let mapped = graph.matmul(query, &at.constant(graph, "weight")?);
            graph.matmul_transposed(&mapped, key)
        }
        Score::Additive => {
            let map = |name, x| -> Result<Value> {
                let weight = at.constant(graph, name)?; // (n_heads, head_dim, head_dim)
                Ok(graph.matmul(x, &graph.transpose(&weight, [0, 2, 1])))
            };
            let query = graph.add(&map("query", query)?, &unsqueezed("bias", &[1])?);
            let key = map("key", key)?;
            // (batch, n_heads, q_len, kv_len, head_dim)
            let sum = graph.add(&graph.unsqueeze(&query, &[3]), &graph.unsqueeze(&key, &[2]));
            let direction = unsqueezed("direction", &[1, 3])?; // (n_heads, 1, head_dim, 1)
            graph.squeeze(&graph.matmul(&graph.map("Tanh", &sum), &direction), &[4])
        }
        Score::Logistic => {
            let query = graph.matmul(query, &unsqueezed("query", &[2])?); // (.., q_len, 1)
            let query = graph.add(&query, &unsqueezed("bias", &[1, 2])?);
            let key = graph.matmul(key, &unsqueezed("key", &[2])?);
            let key = graph.transpose(&key, [0, 1, 3, 2]); // (.., 1, kv_len)
            graph.map("Sigmoid", &graph.add(&query, &key))
        }
    })
}
