//! The APIs: Hugging Face's tasks, OpenAI's completions, and what the playground asks.

pub(super) mod check;
mod endpoints;
pub(super) mod hf;
mod one_or_list;
pub(super) mod openai;
pub(super) mod play;
