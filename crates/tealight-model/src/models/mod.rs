//! Complete models: a backbone with the head of a task.

pub mod causal_lm;
pub mod classifier;
pub mod cost;
pub mod forecaster;
pub mod image_classifier;
pub mod lm_head;
pub mod masked_lm;
mod output;
pub mod pooling;
pub mod read_out;
pub mod record;
pub mod seq2seq;
pub mod spec;
pub mod state;
pub mod tagger;
