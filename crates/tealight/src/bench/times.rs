//! How long something took that was done again and again.

use std::time::Duration;

use serde::Serialize;

/// In milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) median: f64,
    pub(super) fastest: f64,
    pub(super) slowest: f64,
}

impl Times {
    /// NaN of nothing.
    pub(super) fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut all: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        all.sort_by(f64::total_cmp);
        let at = |i: usize| all.get(i).copied().unwrap_or(f64::NAN);
        let last = all.len().saturating_sub(1);
        Self {
            median: f64::midpoint(at(last / 2), at(all.len() / 2)),
            fastest: at(0),
            slowest: at(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_sorted_before_they_are_looked_at() {
        let times = |ms: &[u64]| Times::of(ms.iter().map(|&ms| Duration::from_millis(ms)));
        assert_eq!(times(&[5, 1, 3]), Times { median: 3., fastest: 1., slowest: 5. });
        assert_eq!(times(&[4, 1, 2, 9]), Times { median: 3., fastest: 1., slowest: 9. });
        assert!(times(&[]).median.is_nan());
    }
}
