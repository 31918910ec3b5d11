//! Training by several ranks: data parallelism whose numbers do not depend on the number of ranks.
//!
//! ```text
//! rank 0   micro-batches 0 1   partial sums ┐             ┌ agree ── norm ── update
//! rank 1   micro-batches 2 3   partial sums ┴ sum shards ─┴ agree ── norm ── update
//! ```
//!
//! A step's micro-batches are divided among the ranks. Each sums the gradients of its own
//! (`training::pairwise_sum`), and the ranks sum these sums (`exchange`, `bucket_reducer`) in one fixed
//! order. Then every rank tells the others how its part went (`step`): its losses, an error, whether a stop was asked
//! for. So all take the same decision, and a step in which one rank fails fails on all. Rank 0 alone writes.

pub(crate) mod bucket_reducer;
pub mod exchange;
pub mod join;
pub mod measure;
pub(crate) mod plan;
pub(crate) mod step;
