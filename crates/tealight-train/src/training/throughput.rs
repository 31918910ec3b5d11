//! How fast training goes.

use std::time::Instant;

/// Examples and tokens of training since the last report. Evaluations and checkpoints start it anew, so
/// that their time does not count.
pub(crate) struct Clock {
    since: Instant,
    examples: u64,
    tokens: Option<u64>,
}

pub(crate) struct Rates {
    pub(crate) examples_per_second: f64,
    pub(crate) tokens_per_second: Option<f64>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { since: Instant::now(), examples: 0, tokens: Some(0) }
    }

    pub(crate) fn count(&mut self, examples: u64, tokens: Option<u64>) {
        self.examples += examples;
        self.tokens = self.tokens.zip(tokens).map(|(a, b)| a + b);
    }

    /// The rates since the last time they were asked for.
    pub(crate) fn rates(&mut self) -> Rates {
        let seconds = self.since.elapsed().as_secs_f64().max(f64::EPSILON);
        let per_second = |n: u64| n as f64 / seconds;
        let rates = Rates {
            examples_per_second: per_second(self.examples),
            tokens_per_second: self.tokens.map(per_second),
        };
        *self = Self::start();
        rates
    }
}
