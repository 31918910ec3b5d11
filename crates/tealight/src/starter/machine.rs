//! The size of a transformer that suits the data and this machine.

use std::thread::available_parallelism;

use tealight_train::config::memory::BytesPerScalar;

use super::about;
use crate::system::memory;
use crate::terminal::numbers::format_bytes;

/// Operations per second that training reaches on one core, about.
const RATE: f64 = 2e10;
/// The training should end within this time.
const SECONDS: f64 = 900.;
/// Tokens per parameter that a model should see (Hoffmann et al. 2022).
const TOKENS_PER_PARAMETER: f64 = 20.;
/// Often repeated data teach little more than themselves.
const MAX_EPOCHS: f64 = 20.;
/// Numbers that a block keeps of each position for the backward pass, in widths of the model.
const ACTIVATIONS: f64 = 30.;

/// Width, blocks and heads, from small to large.
const SIZES: &[(usize, usize, usize)] =
    &[(64, 2, 2), (128, 2, 4), (128, 4, 4), (256, 4, 4), (384, 6, 6), (512, 8, 8), (768, 12, 12)];

/// The machine, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    cores: usize,
    /// Free memory in bytes; `None` where the system does not say.
    memory: Option<u64>,
}

/// What is to be learnt from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub(super) tokens: f64,
    pub(super) vocab_size: usize,
    pub(super) seq_len: usize,
    pub(super) batch_size: usize,
}

/// The size of a model, and how long it is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size {
    pub(super) d_model: usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    pub(super) steps: u64,
    parameters: f64,
    epochs: f64,
    seconds: f64,
    bytes: f64,
}

/// A model and its examples, as far as the time of a step depends on them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) d_model: usize,
    pub(super) n_layers: usize,
    /// Of an example, on average.
    pub(super) n_tokens: f64,
}

/// About how many tokens each of `n` texts has, of so many characters together, if it is cut off after `longest`: four or
/// five characters make a token of English, and there are special tokens.
pub(super) fn n_tokens(n_characters: f64, n: usize, longest: usize) -> f64 {
    const SPECIAL: f64 = 2.;
    (n_characters / n.max(1) as f64 / 4. + SPECIAL).min(longest as f64)
}

impl Machine {
    /// This one.
    pub(super) fn this() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self { cores, memory: memory::available() }
    }

    /// About the seconds of a step of `batch_size` examples.
    pub(super) fn step(self, Work { d_model, n_layers, n_tokens }: Work, batch_size: u64) -> f64 {
        let (width, blocks) = (d_model as f64, n_layers as f64);
        let operations = 72. * blocks * width * width + 12. * blocks * width * n_tokens;
        batch_size as f64 * n_tokens * operations / self.rate()
    }

    /// Operations per second of all cores.
    fn rate(self) -> f64 {
        RATE * self.cores as f64
    }

    /// `very roughly 7 min on 2 cores`
    pub(super) fn time(self, seconds: f64) -> String {
        format!("very roughly {} on {} cores", duration(seconds), self.cores)
    }

    /// The largest model that the data can teach and this machine can train; the smallest one, for fewer steps, if
    /// there is none.
    pub(super) fn size(self, data: Data) -> Size {
        let sizes = SIZES.iter().map(|&size| self.size_of(size, data));
        let fits = |size: &Size| {
            let memory = self.memory.map_or(f64::INFINITY, |bytes| bytes as f64 / 2.);
            size.seconds <= SECONDS && size.bytes <= memory && size.epochs < MAX_EPOCHS
        };
        sizes.rev().find(fits).unwrap_or_else(|| self.size_of(SIZES[0], data))
    }

    fn size_of(self, (d_model, n_layers, n_heads): (usize, usize, usize), data: Data) -> Size {
        let Data { tokens, vocab_size, seq_len, batch_size } = data;
        let (width, blocks) = (d_model as f64, n_layers as f64);
        let blocks_only = 12. * blocks * width * width;
        let parameters = blocks_only + vocab_size as f64 * width;
        let per_step = (seq_len * batch_size) as f64;
        let seen = (TOKENS_PER_PARAMETER * blocks_only).min(MAX_EPOCHS * tokens);
        let steps = (seen / per_step).clamp(200., 1e6).round();
        // Six operations per parameter and token, and the scores of attention.
        let operations = 6. * parameters + 12. * blocks * width * seq_len as f64;
        let seconds = steps * per_step * operations / self.rate();
        let activations = per_step * (ACTIVATIONS * width * blocks + vocab_size as f64);
        let bytes = BytesPerScalar::F32.total(parameters, activations);
        let epochs = steps * per_step / tokens;
        Size { d_model, n_layers, n_heads, steps: steps as u64, parameters, epochs, seconds, bytes }
    }

    /// The reasons for a size, as comments.
    pub(super) fn reasons(self, size: &Size) -> String {
        let Size { parameters, epochs, seconds, bytes, .. } = size;
        let free =
            self.memory.map_or(String::new(), |free| format!(" of {}", format_bytes(free as f64)));
        format!(
            "# About {} parameters. On {} cores the steps below take very roughly {}, and training needs about\n\
             # {}{free} of memory. The text is read {} over the run.\n",
            about(*parameters),
            self.cores,
            duration(*seconds),
            format_bytes(*bytes),
            times(*epochs)
        )
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        ..120. => format!("{:.0} s", seconds.max(1.)),
        ..7200. => format!("{:.0} min", seconds / 60.),
        _ => format!("{:.0} h", seconds / 3600.),
    }
}

fn times(epochs: f64) -> String {
    if epochs < 1. { format!("to {:.0} %", 100. * epochs) } else { format!("{epochs:.0} times") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Data = Data { tokens: 1e6, vocab_size: 65, seq_len: 128, batch_size: 16 };

    fn machine(cores: usize, gib: u64) -> Machine {
        Machine { cores, memory: Some(gib << 30) }
    }

    #[test]
    fn more_cores_and_more_data_make_larger_models() {
        let small = machine(2, 16).size(DATA);
        assert!(small.seconds <= SECONDS && small.d_model >= 64);
        let large = machine(64, 256).size(Data { tokens: 1e9, ..DATA });
        assert!(large.parameters > small.parameters, "{large:?} {small:?}");
        let without_memory = machine(64, 0).size(Data { tokens: 1e9, ..DATA });
        assert_eq!(without_memory.d_model, SIZES[0].0);
    }

    #[test]
    fn time_grows_with_width_blocks_and_tokens() {
        let work = Work { d_model: 384, n_layers: 6, n_tokens: 30. };
        let step = machine(2, 16).step(work, 16);
        assert!((0.5..2.).contains(&step), "{step}");
        for larger in [
            Work { d_model: 768, ..work },
            Work { n_layers: 12, ..work },
            Work { n_tokens: 60., ..work },
        ] {
            assert!(machine(2, 16).step(larger, 16) >= 2. * step, "{larger:?}");
        }
        assert_eq!(machine(2, 16).time(5400.), "very roughly 90 min on 2 cores");
    }

    #[test]
    fn little_data_are_not_repeated_for_ever() {
        let size = machine(64, 256).size(Data { tokens: 3000., ..DATA });
        assert_eq!((size.d_model, size.steps), (64, 200));
    }
}
