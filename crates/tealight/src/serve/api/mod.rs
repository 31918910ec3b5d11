//! The APIs: Hugging Face's tasks, the routes of text-embeddings-inference, those of OpenAI, and what the playground asks.

pub(super) mod check;
pub(super) mod embeddings;
mod endpoints;
pub(super) mod hf;
mod one_or_list;
pub(super) mod openai;
pub(super) mod play;
pub(super) mod tei;
mod vectors;
