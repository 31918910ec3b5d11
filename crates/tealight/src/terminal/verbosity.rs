//! `--quiet` and `--verbose`: how much is said beside results, warnings and errors.

use std::sync::OnceLock;

/// How much the program says on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(crate) enum Verbosity {
    /// Warnings and errors.
    Quiet,
    /// Also what a command does: its progress, its notes, the files that it writes.
    #[default]
    Normal,
    /// Also what it computes with, every logged step, its time and its memory.
    Verbose,
}

static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

impl Verbosity {
    /// Fixes the verbosity of this process; the first call counts.
    pub(crate) fn choose(self) {
        VERBOSITY.get_or_init(|| self);
    }

    /// That of this process.
    pub(crate) fn current() -> Self {
        VERBOSITY.get().copied().unwrap_or_default()
    }
}

/// Whether only warnings and errors are printed on stderr.
pub(crate) fn is_quiet() -> bool {
    Verbosity::current() == Verbosity::Quiet
}

/// Whether more than usual is printed on stderr.
pub(crate) fn is_verbose() -> bool {
    Verbosity::current() == Verbosity::Verbose
}
