//! What the server has done, in the text format of Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    requests: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    microseconds: AtomicU64,
    passes: AtomicU64,
    together: AtomicU64,
}

impl Counters {
    /// Counts a request that was answered with the number `status` after `time`.
    pub(super) fn answered(&self, status: u16, time: Duration) {
        add(&self.requests, 1);
        add(&self.microseconds, time.as_micros() as u64);
        match status {
            400..500 => add(&self.refused, 1),
            500.. => add(&self.failed, 1),
            _ => {}
        }
    }

    /// Counts `n` requests that a model answered together.
    pub(super) fn computed(&self, n: usize) {
        add(&self.passes, 1);
        add(&self.together, n as u64);
    }

    /// All numbers as text for Prometheus.
    pub(super) fn text(&self) -> String {
        let seconds = get(&self.microseconds) as f64 / 1e6;
        let mut text = String::new();
        for (name, help, value) in [
            ("requests_total", "Requests answered", get(&self.requests).to_string()),
            ("requests_refused_total", "Answers 4xx", get(&self.refused).to_string()),
            ("requests_failed_total", "Answers 5xx", get(&self.failed).to_string()),
            ("request_seconds_total", "Time until the answer began", seconds.to_string()),
            ("batches_total", "Batches of requests to models", get(&self.passes).to_string()),
            ("batched_requests_total", "Requests in them", get(&self.together).to_string()),
        ] {
            let _ =
                writeln!(text, "# HELP tealight_{name} {help}.\n# TYPE tealight_{name} counter");
            let _ = writeln!(text, "tealight_{name} {value}");
        }
        text
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
