//! Gradients: the graph of operations, the walk back over it, and what is built on both.

pub mod gradients;
pub(crate) mod graph;
pub mod nan_trace;
pub mod recompute;
pub(crate) mod sum;
