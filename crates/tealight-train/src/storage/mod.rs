//! Crash-safe files with digests, tensors by name, and the clock.

pub(crate) mod clock;
pub mod digests;
pub(crate) mod disk;
pub mod files;
pub mod tensors;
