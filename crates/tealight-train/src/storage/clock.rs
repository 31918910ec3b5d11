//! The wall clock.

use std::time::{Duration, UNIX_EPOCH};

/// Time since 1970, for timestamps in files: no computed number depends on it. Zero if the clock is set before
/// 1970.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
pub fn since_1970() -> Duration {
    UNIX_EPOCH.elapsed().unwrap_or_default()
}
