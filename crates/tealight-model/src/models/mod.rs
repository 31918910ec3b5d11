//! Backbones with heads: what a task trains.

pub mod forecaster;
pub mod seq2seq;
