//! Files that survive a crash: written whole or not at all, with digests; tensors by name; the clock.

pub(crate) mod clock;
pub(crate) mod digests;
pub(crate) mod disk;
pub mod files;
pub mod tensors;
