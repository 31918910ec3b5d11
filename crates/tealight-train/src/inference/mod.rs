//! Inference with language models: masked tokens and continuations.

pub mod continuation;
pub mod fill_mask;
