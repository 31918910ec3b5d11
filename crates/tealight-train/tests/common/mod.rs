//! Shared by the test suites.

/// A result with any error.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
