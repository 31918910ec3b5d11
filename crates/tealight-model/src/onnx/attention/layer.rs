//! What one attention layer is built from, and what it gives.

use super::super::position::Angles;
use crate::onnx_graph::{Graph, OnnxError, OnnxResult, Scope, Sequence, Value};

/// One attention layer of a model.
#[derive(Debug)]
pub(in super::super) struct Layer<'a> {
    pub(in super::super) sequence: &'a Sequence<'a>,
    /// Its parameters.
    pub(in super::super) at: Scope<'a>,
    pub(in super::super) n_heads: usize,
    pub(in super::super) head_dim: usize,
    /// Of rotary positions.
    pub(in super::super) angles: Option<&'a Angles>,
    /// Added to the scores, `(n_heads, q_len, kv_len)`.
    pub(in super::super) score_bias: Option<&'a Value>,
    /// Keys and values of the past positions, `(batch, n_kv_heads, past_len, head_dim)` each.
    pub(in super::super) past: Option<[Value; 2]>,
}

/// What an attention layer gives.
#[derive(Debug)]
pub(in super::super) struct Output {
    /// `(batch, q_len, d_model)`
    pub(in super::super) y: Value,
    /// Keys and values of all positions, the new ones included, if there is a cache.
    pub(in super::super) present: Option<[Value; 2]>,
}

impl Layer<'_> {
    pub(super) fn graph(&self) -> &Graph {
        self.sequence.graph
    }

    /// Refuses a cache for a `kind` that keeps something other than keys and values.
    pub(super) fn refuse_cache(&self, kind: &str) -> OnnxResult<()> {
        if self.past.is_none() {
            return Ok(());
        }
        Err(OnnxError::unsupported(
            format!("a cache of `model.attention.kind` = \"{kind}\""),
            "the inputs `past_key_values` hold keys and values, and its state is another; export it \
             without a cache",
        ))
    }
}
