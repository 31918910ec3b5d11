//! Training throughput.

use std::time::Instant;

/// Counts examples and tokens from one log line to the next. It is restarted after an evaluation or a
/// checkpoint, whose time does not count.
pub(crate) struct Throughput {
    since: Instant,
    examples: u64,
    tokens: Option<u64>,
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

    /// Examples and tokens per second since the start; starts anew.
    pub(crate) fn rates(&mut self) -> (f64, Option<f64>) {
        let Self { since, examples, tokens } = std::mem::replace(self, Self::start());
        let seconds = since.elapsed().as_secs_f64().max(f64::EPSILON);
        (examples as f64 / seconds, tokens.map(|n| n as f64 / seconds))
    }
}
