//! Training throughput.

use std::time::Instant;

/// Counts examples and tokens from one log line to the next. It is restarted after an evaluation or a
/// checkpoint, whose time does not count.
pub(crate) struct Throughput {
    since: Instant,
    examples: u64,
    tokens: Option<u64>,
}

/// Averages since the last log line.
pub(crate) struct Rates {
    pub(crate) examples_per_second: f64,
    pub(crate) tokens_per_second: Option<f64>,
}

impl Throughput {
    pub(crate) fn start() -> Self {
        Self { since: Instant::now(), examples: 0, tokens: Some(0) }
    }

    /// Adds one step; a step of unknown tokens makes the rate of tokens unknown.
    pub(crate) fn count(&mut self, examples: u64, tokens: Option<u64>) {
        self.examples += examples;
        self.tokens = self.tokens.zip(tokens).map(|(a, b)| a + b);
    }

    /// The rates since the start, and starts anew.
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
