//! Statistics of repeated measurements.

use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use candle_core::Device;
use serde::Serialize;

/// Median, minimum and maximum of durations, in the unit of the input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) median: f64,
    pub(super) fastest: f64,
    pub(super) slowest: f64,
}

impl Times {
    /// NaN for no durations.
    pub(super) fn from_durations(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |i: usize| times.get(i).copied().unwrap_or(f64::NAN);
        let last = times.len().saturating_sub(1);
        Self {
            median: f64::midpoint(at(last / 2), at(times.len() / 2)),
            fastest: at(0),
            slowest: at(last),
        }
    }
}

/// The seconds that `work` takes on `device`.
pub(super) fn seconds_of<T, E>(device: &Device, work: impl FnOnce() -> Result<T, E>) -> Result<f64>
where
    Error: From<E>,
{
    device.synchronize()?;
    let started = Instant::now();
    work()?;
    device.synchronize()?;
    Ok(started.elapsed().as_secs_f64())
}

pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_not_be_sorted() {
        let times = |ms: &[u64]| {
            Times::from_durations(
                ms.iter().map(|&ms| milliseconds(Duration::from_millis(ms))).collect(),
            )
        };
        assert_eq!(times(&[5, 1, 3]), Times { median: 3., fastest: 1., slowest: 5. });
        assert_eq!(times(&[4, 1, 2, 9]), Times { median: 3., fastest: 1., slowest: 9. });
        assert!(times(&[]).median.is_nan());
    }
}
