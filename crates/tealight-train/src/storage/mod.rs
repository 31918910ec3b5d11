//! Crash-safe files with digests, tensors by name, the cache of Hugging Face, and the clock.

pub(crate) mod clock;
pub mod digests;
pub(crate) mod disk;
pub mod files;
pub mod hub;
pub mod tensors;
