//! Inference with language models: filling masks and continuing texts.

pub mod continuation;
pub mod fill_mask;
