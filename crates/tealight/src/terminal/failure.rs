//! Error messages.

use std::io::{Write, stderr};
use std::path::Path;
use std::process::ExitCode;

use tealight_train::config::{ConfigError, ConfigSource, reference};

use super::escape::{visible, visible_in_color};
use super::style::is_coloured;

/// An error with its causes: `error: …`.
pub(crate) fn text(error: &anyhow::Error) -> String {
    match config_error(error) {
        Some(error) => error.to_string(),
        None => format!("error: {error:#}"),
    }
}

/// Names the `model` of a command in the error that the outputs of a model are not finite.
pub(crate) fn naming(model: Option<&Path>, error: anyhow::Error) -> anyhow::Error {
    let cause = error.downcast_ref::<tealight_train::Error>();
    let is_of_outputs = matches!(cause, Some(tealight_train::Error::NotFinite));
    match model.filter(|_| is_of_outputs) {
        Some(model) => error.context(format!("`{}`", model.display())),
        None => error,
    }
}

/// Writes an error with its causes to stderr; returns the exit code of a failure.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let text = match config_error(error) {
        // The renderer replaces control characters of the source.
        Some(error) if is_coloured() => visible_in_color(&error.in_color()).into_owned(),
        _ => visible(&text(error)).into_owned(),
    };
    // If stderr is closed, the exit code still reports the failure.
    let _ = writeln!(stderr(), "{}", text.trim_end());
    ExitCode::FAILURE
}

/// The configuration error that `error` wraps, if any, with a hint at what explains the setting.
fn config_error(error: &anyhow::Error) -> Option<ConfigError> {
    let error = match error.downcast_ref() {
        Some(tealight_train::Error::Source(error)) => error,
        _ => error.downcast_ref()?,
    };
    let known = error.key().filter(|key| !reference::find(key).is_empty());
    Some(known.map_or_else(
        || error.clone(),
        |key| error.with_help(format!("`tealight explain {key}` says what it means")),
    ))
}

/// Adds to a configuration error the place in the file or on the command line that caused it.
pub(crate) fn at_its_place(error: tealight_train::Error, source: &ConfigSource) -> anyhow::Error {
    match error {
        tealight_train::Error::Config(fault) => {
            let keys: Vec<&str> = fault.keys.iter().map(String::as_str).collect();
            source.conflict_error(&keys, &fault.message).into()
        }
        other => other.into(),
    }
}
