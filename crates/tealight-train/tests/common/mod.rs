//! What the suites share.

/// A result of whatever went wrong.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
