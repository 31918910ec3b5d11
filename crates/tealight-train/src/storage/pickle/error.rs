//! Why a pickle cannot be read.

use std::io;

/// A pickle cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PickleError {
    /// A function or class that is not in the list.
    #[error(
        "the pickle asks for `{name}`, which no file of tensors needs: a pickle can run programs, and nothing \
         of this one was run"
    )]
    Global {
        /// Its full name.
        name: String,
    },
    /// The pickle ends before its end mark.
    #[error("the pickle is cut off at byte {at}")]
    CutOff {
        /// Bytes from the beginning of the pickle.
        at: u64,
    },
    /// A rule is broken.
    #[error("byte {at} of the pickle: {rule}")]
    Rule {
        /// Bytes from the beginning of the pickle.
        at: u64,
        /// The rule that the pickle breaks.
        rule: String,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}
