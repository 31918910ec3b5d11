//! Positions: tables over the positions that a model supports, read at those of a call.

use candle_core::{Result, Tensor};
use tealight_ops::rotary::Layout;

use crate::onnx_graph::{Scope, Sequence, Type, Value, signed};
use crate::position::learned;
use crate::position::rotary::Rotary;
use crate::position::{EmbeddingPosition, PositionConfig, ScoreBias, TokenPositions};

/// Whether a position is the row of a table, which a call may choose. Otherwise scores depend on distances alone.
pub(super) fn is_table(config: &PositionConfig) -> bool {
    match config {
        PositionConfig::Scalar(_)
        | PositionConfig::Sinusoidal(_)
        | PositionConfig::Learned(_)
        | PositionConfig::Rotary(_)
        | PositionConfig::Sinusoidal2d(_)
        | PositionConfig::Rotary2d(_) => true,
        PositionConfig::None | PositionConfig::Alibi | PositionConfig::Relative(_) => false,
    }
}

/// The token ids and the padding id, for positions that skip padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'a> {
    /// `(batch, q_len)`
    pub(super) ids: &'a Value,
    pub(super) pad_id: Option<u32>,
}

/// The vectors that are added to the embeddings, `(batch or 1, q_len, d_model)`.
pub(super) fn vectors(
    sequence: &Sequence<'_>,
    config: &PositionConfig,
    encoding: &dyn EmbeddingPosition,
    tokens: Tokens<'_>,
    max_seq_len: usize,
    at: &Scope<'_>,
) -> Result<Value> {
    let graph = sequence.graph;
    if let PositionConfig::Learned(learned::Config { skip_padding: true, offset, .. }) = config
        && let Some(pad_id) = tokens.pad_id
    {
        let is_padding = graph.equal(tokens.ids, &graph.int(pad_id.into()));
        let is_real = graph.cast(&graph.not(&is_padding), Type::Int);
        // Row `offset - 1` at padding; the next rows at the other tokens in order.
        let place = graph.mul(&graph.cumulative(&is_real, 1), &is_real);
        let row = graph.add(&place, &graph.int(signed(*offset) - 1));
        return Ok(graph.gather(&at.constant(graph, "weight")?, &row, 0));
    }
    if at.has("weight") {
        at.tensor("weight")?; // Part of the table.
    }
    let places = TokenPositions { positions: 0..max_seq_len, padded: None };
    let table = at.derived(graph, "table", &encoding.vectors(&places)?)?;
    Ok(graph.gather(&table, &sequence.places, 0))
}

/// The bias that is added to scores, `(n_heads, q_len, kv_len)`.
pub(super) fn score_bias(
    sequence: &Sequence<'_>,
    encoding: &dyn ScoreBias,
    max_seq_len: usize,
    at: &Scope<'_>,
) -> Result<Value> {
    let graph = sequence.graph;
    if at.has("weight") {
        at.tensor("weight")?; // Part of the table.
    }
    let farthest = signed(max_seq_len) - 1;
    let table = at.derived(graph, "table", &encoding.of_distances(-farthest..=farthest)?)?;
    // Queries are the last positions, so the largest distance lies behind: in a sequence that is too long it is the
    // index that runs over the end, an error, and not a negative one, which would count from there.
    let row = graph.sub(&graph.int(farthest), &sequence.distances());
    Ok(graph.gather(&table, &row, 1))
}

/// The cosines and sines of a call's positions, `(batch or 1, 1, q_len, head_dim/2)` each.
#[derive(Clone, Debug)]
pub(super) struct Angles {
    cos: Value,
    sin: Value,
    layout: Layout,
}

impl Angles {
    /// The tables of `rotary` for `max_seq_len` positions under `name`, read at the positions of the queries.
    pub(super) fn new(
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
    pub(super) fn rotate(&self, sequence: &Sequence<'_>, x: &Value, head_dim: usize) -> Value {
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
