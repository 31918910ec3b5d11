//! Errors as a person sees them: one screen on stderr, and an exit code that is not 0.

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;

use tealight_train::config::{ConfigError, ConfigSource};

/// How the process ends: as it says itself, or with an error on stderr.
pub(crate) fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| report(&error))
}

/// Prints an error with its causes.
fn report(error: &anyhow::Error) -> ExitCode {
    let text = match config_error(error) {
        Some(error) if stderr().is_terminal() => error.in_color(),
        Some(error) => error.to_string(),
        None => format!("error: {}", causes(error)),
    };
    // Where stderr is closed there is nobody left to tell.
    let _ = writeln!(stderr(), "{}", text.trim_end());
    ExitCode::FAILURE
}

/// An error and what caused it, on one line.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join(": ")
}

/// The error about a file of settings that this is, if it is one.
fn config_error(error: &anyhow::Error) -> Option<&ConfigError> {
    match error.downcast_ref() {
        Some(tealight_train::Error::Source(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// Shows a broken rule at the place in the file, or on the command line, where it was broken.
pub(crate) fn at_its_place(error: tealight_train::Error, source: &ConfigSource) -> anyhow::Error {
    match error {
        tealight_train::Error::Config(fault) => {
            let keys: Vec<&str> = fault.keys.iter().map(String::as_str).collect();
            source.conflict_error(&keys, &fault.message).into()
        }
        tealight_train::Error::Source(error) => error.into(),
        other => other.into(),
    }
}
