//! Positions in a graph of ONNX: tables over the positions that a model supports, read at those of a call.

use candle_core::{Result, Tensor};
use tealight_ops::rotary::Layout;

use super::rotary::Rotary;
use super::{EmbeddingPosition, ScoreBias, TokenPositions};
use crate::onnx_graph::{OnnxResult, Scope, Sequence, Value, signed};

/// A call, as position encodings read it.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub(crate) sequence: &'a Sequence<'a>,
    /// The longest sequence.
    pub(crate) max_seq_len: usize,
    /// `(batch, q_len)`
    pub(crate) ids: &'a Value,
    /// The padding id, for positions that skip padding.
    pub(crate) pad_id: Option<u32>,
    /// The parameters of the encoding.
    pub(crate) at: Scope<'a>,
}

impl Call<'_> {
    /// The vectors of an `encoding` that depends on the position alone, `(batch or 1, q_len, d_model)`.
    pub(super) fn vectors(
        &self,
        encoding: &(impl EmbeddingPosition + ?Sized),
    ) -> OnnxResult<Value> {
        let graph = self.sequence.graph;
        let places = TokenPositions { positions: 0..self.max_seq_len, padded: None };
        let table = self.table(&encoding.vectors(&places)?)?;
        Ok(graph.gather(&table, &self.sequence.places, 0))
    }

    /// The bias that an `encoding` adds to scores, `(n_heads, q_len, kv_len)`.
    pub(crate) fn score_bias(&self, encoding: &dyn ScoreBias) -> OnnxResult<Value> {
        let graph = self.sequence.graph;
        let farthest = signed(self.max_seq_len) - 1;
        let table = self.table(&encoding.of_distances(-farthest..=farthest)?)?;
        // Queries are the last positions, so the largest distance lies behind: in a sequence that is too long it is
        // the index that runs over the end, an error, and not a negative one, which would count from there.
        let column = graph.sub(&graph.int(farthest), &self.sequence.distances());
        Ok(graph.gather(&table, &column, 1))
    }

    /// A table that is computed from all parameters of the encoding.
    fn table(&self, table: &Tensor) -> Result<Value> {
        self.at.take_all();
        self.at.derived(self.sequence.graph, "table", table)
    }
}

/// The cosines and sines of a call's positions, `(batch or 1, 1, q_len, head_dim/2)` each.
#[derive(Clone, Debug)]
pub(crate) struct Angles {
    cos: Value,
    sin: Value,
    layout: Layout,
}

impl Angles {
    /// The tables of `rotary` for `max_seq_len` positions under `name`, read at the positions of the queries.
    pub(crate) fn new(
        sequence: &Sequence<'_>,
        rotary: &Rotary,
        max_seq_len: usize,
        name: &str,
    ) -> Result<Self> {
        let graph = sequence.graph;
        let read = |part, table: &Tensor| {
            let table = graph.tensor(&format!("{name}.{part}"), table)?;
            Result::Ok(graph.unsqueeze(&graph.gather(&table, &sequence.places, 0), &[1]))
        };
        let (cos, sin, layout) = rotary.constants(max_seq_len)?;
        Ok(Self { cos: read("cos", &cos)?, sin: read("sin", &sin)?, layout })
    }

    /// `x (batch, heads, q_len, head_dim)` → the same shape, rotated.
    pub(crate) fn rotate(&self, sequence: &Sequence<'_>, x: &Value, head_dim: usize) -> Value {
        let (graph, half) = (sequence.graph, signed(head_dim) / 2);
        let [first, second] = match self.layout {
            Layout::Half => [[0, half, 1], [half, 2 * half, 1]],
            Layout::Interleaved => [[0, 2 * half, 2], [1, 2 * half, 2]],
        };
        let (a, b) = (graph.slice(x, -1, first), graph.slice(x, -1, second));
        let Self { cos, sin, layout } = self;
        let y_a = graph.sub(&graph.mul(&a, cos), &graph.mul(&b, sin));
        let y_b = graph.add(&graph.mul(&a, sin), &graph.mul(&b, cos));
        match layout {
            Layout::Half => graph.concat(&[&y_a, &y_b], -1),
            Layout::Interleaved => {
                let pairs = [&y_a, &y_b].map(|y| graph.unsqueeze(y, &[4]));
                let pairs = graph.concat(&[&pairs[0], &pairs[1]], -1); // (.., head_dim/2, 2)
                graph.reshape(&pairs, &[0, 0, 0, 2 * half])
            }
        }
    }
}
