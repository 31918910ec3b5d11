//! Checks of single settings, as the file is read and a model is built. A run is checked in
//! [`preflight`](crate::training::preflight) before its first step, and in [`monitor`](crate::monitor) while it trains.

use std::fmt::Display;
use std::path::Path;

use crate::error::{Error, Result};

/// The largest integer in `[model]`, the largest batch, and the longest sequence of tokens.
pub(crate) const MAX_SIZE: u64 = tealight_model::config::MAX_SIZE as u64;

/// Refuses a `value` of `key` that is not valid. The message is the key, the value and the `rule`.
pub(crate) fn check<T: Copy + Display>(
    key: &str,
    value: T,
    is_valid: impl FnOnce(T) -> bool,
    rule: &str,
) -> Result<()> {
    if is_valid(value) {
        return Ok(());
    }
    Err(Error::config([key], format!("`{key}` = {value} {rule}")))
}

/// Refuses an empty `path` of `key`, which has to be `what`.
pub(crate) fn given(key: &str, path: &Path, what: &str) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Err(Error::config([key], format!("`{key}` is missing: {what}")));
    }
    Ok(())
}

/// Refuses `key` = 0.
pub(crate) fn positive<T: Copy + Default + Display + PartialOrd>(
    key: &str,
    value: T,
) -> Result<()> {
    check(key, value, |value| value > T::default(), "must be positive")
}

/// Refuses a `value` of `key` above `limit`.
pub(crate) fn at_most(key: &str, value: u64, limit: u64) -> Result<()> {
    check(key, value, |value| value <= limit, &format!("must be at most {limit}"))
}

/// Refuses a `value` of `key` outside the open interval from 0 to 1.
pub(crate) fn share(key: &str, value: f64) -> Result<()> {
    check(key, value, |value| value > 0. && value < 1., "must be between 0 and 1")
}

/// Refuses a `value` of `key` that is neither 0 nor a [`share`].
pub(crate) fn share_or_none(key: &str, value: f64) -> Result<()> {
    check(key, value, |value| (0. ..1.).contains(&value), "must be at least 0 and less than 1")
}
