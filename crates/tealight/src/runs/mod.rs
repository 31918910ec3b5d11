//! Configurations and runs as the commands use them.

pub(crate) mod config;
pub(crate) mod job;
pub(crate) mod load;
pub(crate) mod preflight;
pub(crate) mod summary;
