//! Checks of single settings against bounds.

use crate::error::{Error, Result};

/// Refuses `key` = 0.
pub(crate) fn positive(key: &str, value: usize) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::config([key], format!("`{key}` = 0 must be positive")))
}

/// Refuses a `value` of `key` above `limit`.
pub(crate) fn at_most(key: &str, value: u64, limit: u64) -> Result<()> {
    if value <= limit {
        return Ok(());
    }
    Err(Error::config([key], format!("`{key}` = {value} must be at most {limit}")))
}

/// Refuses a `value` of `key` outside the open interval from 0 to 1.
pub(crate) fn share(key: &str, value: f64) -> Result<()> {
    if value > 0. && value < 1. {
        return Ok(());
    }
    Err(Error::config([key], format!("`{key}` = {value} must be between 0 and 1")))
}
