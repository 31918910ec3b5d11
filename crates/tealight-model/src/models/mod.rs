//! Backbones with heads: what a task trains.

pub mod causal_lm;
pub mod classifier;
pub mod cost;
pub mod forecaster;
pub mod lm_head;
pub mod masked_lm;
pub mod seq2seq;
