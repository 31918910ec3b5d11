//! What all layers share: the lengths of a call, the positions, and the masks.
//!
//! `attention_mask (batch, kv_len)` is 1 at real positions, as in `transformers`. With a cache, kv_len counts the
//! past positions, too, and the queries are the last q_len positions.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::{Graph, Type, Value, signed};

/// A number that is added to forbidden scores: far below any other, and sums of it stay finite in f32.
pub(crate) const FORBIDDEN: f64 = -1e30;

/// The sequence that a call reads.
#[derive(Debug)]
pub(crate) struct Sequence<'a> {
    pub(crate) graph: &'a Graph,
    /// The number of keys: an integer.
    pub(crate) kv_len: Value,
    /// The columns of the queries, `(q_len)`.
    pub(crate) queries: Value,
    /// The columns of the keys, `(kv_len)`.
    pub(crate) keys: Value,
    /// The positions of the queries in tables, `(batch or 1, q_len)`: their columns, unless a call chooses them.
    pub(crate) places: Value,
    /// Which keys are no padding, `(batch, kv_len)` of bool.
    pub(crate) real: Value,
    /// Position i reads j ≤ i.
    pub(crate) causal: bool,
    masks: RefCell<BTreeMap<Option<usize>, Mask>>,
    distances: RefCell<Option<Value>>,
}

/// The inputs that say how long a sequence is, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths<'a> {
    /// `(batch, q_len)`
    pub(crate) ids: &'a Value,
    /// `(batch, kv_len)`
    pub(crate) attention_mask: &'a Value,
    /// `(batch, q_len)`, if a call chooses positions.
    pub(crate) position_ids: Option<&'a Value>,
    /// The number of cached positions, if there is a cache: an integer.
    pub(crate) past_len: Option<&'a Value>,
}

/// Which keys a query may read.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    /// `(batch, 1, q_len or 1, kv_len)` of bool.
    pub(crate) allowed: Value,
    /// The same in floats: 0 where allowed, else [`FORBIDDEN`].
    pub(crate) additive: Value,
    /// 1 where a query may read any key, else 0: `(batch, 1, q_len or 1, 1)`.
    pub(crate) reads_any: Value,
}

impl<'a> Sequence<'a> {
    /// The sequence of these `inputs` of the graph.
    pub(crate) fn new(graph: &'a Graph, inputs: &Lengths<'_>, causal: bool) -> Self {
        let Lengths { ids, attention_mask, position_ids, past_len } = *inputs;
        let q_len = graph.len(ids, 1);
        let kv_len = past_len.map_or_else(|| q_len.clone(), |past| graph.add(past, &q_len));
        let keys = graph.range(&graph.int(0), &kv_len);
        let queries = past_len.map_or_else(|| keys.clone(), |past| graph.range(past, &kv_len));
        let columns = || graph.unsqueeze(&queries, &[0]);
        Self {
            graph,
            kv_len,
            places: position_ids.cloned().unwrap_or_else(columns),
            queries,
            keys,
            real: graph.not(&graph.equal(attention_mask, &graph.int(0))),
            causal,
            masks: RefCell::default(),
            distances: RefCell::default(),
        }
    }

    /// j − i for query i and key j: `(q_len, kv_len)` of integers.
    pub(crate) fn distances(&self) -> Value {
        let graph = self.graph;
        let compute = || {
            let keys = graph.unsqueeze(&self.keys, &[0]);
            graph.sub(&keys, &graph.unsqueeze(&self.queries, &[1]))
        };
        self.distances.borrow_mut().get_or_insert_with(compute).clone()
    }

    /// The tokens between key j and query i, the one at i counted: `(batch, 1, q_len, kv_len)` of floats.
    pub(crate) fn tokens_between(&self) -> Value {
        let graph = self.graph;
        let keys = graph.cumulative(&self.real_keys(), 1);
        let queries = graph.gather(&keys, &self.queries, 1);
        graph.sub(&graph.unsqueeze(&queries, &[1, 3]), &graph.unsqueeze(&keys, &[1, 2]))
    }

    /// 1 at keys that are no padding, else 0: `(batch, kv_len)` of floats.
    pub(crate) fn real_keys(&self) -> Value {
        self.graph.cast(&self.real, Type::Float)
    }

    /// The mask of padding, causality and a window: |i − j| < window.
    pub(crate) fn mask(&self, window: Option<usize>) -> Mask {
        if let Some(mask) = self.masks.borrow().get(&window) {
            return mask.clone();
        }
        let graph = self.graph;
        let mut allowed = graph.unsqueeze(&self.real, &[1, 2]); // (batch, 1, 1, kv_len)
        if self.causal {
            let past = graph.less(&self.distances(), &graph.int(1));
            allowed = graph.and(&allowed, &past); // (batch, 1, q_len, kv_len)
        }
        if let Some(window) = window {
            let window = graph.int(signed(window));
            let near = graph.less(&graph.map("Abs", &self.distances()), &window);
            allowed = graph.and(&allowed, &near);
        }
        let mask = Mask {
            additive: graph.select(&allowed, &graph.number(0.), &graph.number(FORBIDDEN)),
            reads_any: graph.largest(&graph.cast(&allowed, Type::Float), &[-1]),
            allowed,
        };
        self.masks.borrow_mut().insert(window, mask.clone());
        mask
    }
}
