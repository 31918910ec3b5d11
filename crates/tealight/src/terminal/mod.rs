//! Standard input, output and error: tables, progress, error messages.

pub(crate) mod escape;
pub(crate) mod failure;
pub(crate) mod input;
pub(crate) mod numbers;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod style;
pub(crate) mod verbosity;
