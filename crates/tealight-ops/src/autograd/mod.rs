//! Automatic differentiation: the graph of operations, `backward`, activation checkpointing, the NaN trace.

pub mod gradients;
pub(crate) mod graph;
pub mod nan_trace;
pub mod recompute;
pub(crate) mod sum;
