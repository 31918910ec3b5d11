//! What kinds of attention share when they add themselves to a graph of ONNX: the layer, heads, weights of a matrix of
//! scores ([`dense`]), the gate of AFT, recurrences.

pub(crate) mod convolution;
pub(crate) mod dense;
pub(crate) mod gate;
pub(crate) mod heads;
pub(crate) mod recurrence;
mod score;

use crate::onnx_graph::{Graph, Scope, Sequence, Value};
use crate::position::onnx::Angles;

/// One attention layer of an exported model.
#[derive(Debug)]
pub struct Layer<'a> {
    pub(crate) sequence: &'a Sequence<'a>,
    /// Its parameters.
    pub(crate) at: Scope<'a>,
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
    /// Of rotary positions.
    pub(crate) angles: Option<&'a Angles>,
    /// Added to the scores, `(n_heads, q_len, kv_len)`.
    pub(crate) score_bias: Option<&'a Value>,
    /// Keys and values of the past positions, `(batch, n_kv_heads, past_len, head_dim)` each.
    pub(crate) past: Option<[Value; 2]>,
}

/// What an attention layer of an exported model gives.
#[derive(Debug)]
pub struct Output {
    /// `(batch, q_len, d_model)`
    pub(crate) y: Value,
    /// Keys and values of all positions, the new ones included, if there is a cache.
    pub(crate) present: Option<[Value; 2]>,
}

impl Layer<'_> {
    pub(crate) fn graph(&self) -> &Graph {
        self.sequence.graph
    }
}
