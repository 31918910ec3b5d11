//! Error messages.

use std::io::{Write, stderr};
use std::panic;
use std::path::Path;
use std::process::ExitCode;

use tealight_train::config::{ConfigError, ConfigSource, reference};
use tealight_train::data::panics;

use super::escape::{visible, visible_in_color};
use super::style::is_coloured;

/// An error with its causes: `error: …`.
pub(crate) fn text(error: &anyhow::Error) -> String {
    match config_error(error) {
        Some(error) => error.to_string(),
        None => format!("error: {error:#}"),
    }
}

/// Names the `model` of a command in an error about what it computes or how it is described, unless the error names it.
pub(crate) fn naming(model: Option<&Path>, error: anyhow::Error) -> anyhow::Error {
    use tealight_train::Error::{Candle, Config, NotFinite, Tokenize};
    let cause = error.downcast_ref::<tealight_train::Error>();
    let is_of_model = matches!(cause, Some(NotFinite | Candle(_) | Config(_) | Tokenize(_)));
    let Some(model) = model.filter(|_| is_of_model) else { return error };
    let (text, name) = (format!("{error:#}"), format!("`{}", model.display()));
    if text.contains(&format!("{name}`")) || text.contains(&format!("{name}/")) {
        return error;
    }
    error.context(format!("{name}`"))
}

/// Writes an error with its causes to stderr; returns the exit code of a failure. Further lines are indented, so that
/// what a file or a name contains cannot look like a line of Tealight.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let text = match config_error(error) {
        // The renderer replaces control characters of the source.
        Some(error) if is_coloured() => visible_in_color(&error.in_color()).into_owned(),
        Some(error) => visible(&error.to_string()).into_owned(),
        None => indented(&visible(&text(error))),
    };
    // If stderr is closed, the exit code still reports the failure.
    let _ = writeln!(stderr(), "{}", text.trim_end());
    ExitCode::FAILURE
}

/// Prints no message of a panic that becomes an error: some libraries panic on some files.
pub(crate) fn hide_caught_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !panics::are_caught() {
            print(panic);
        }
    }));
}

/// `text` with its lines but the first indented.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n  ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_begins_a_line_of_its_own() {
        let error = anyhow::anyhow!("`a\nbest checkpoint: b` is not a run\n");
        assert_eq!(indented(&text(&error)), "error: `a\n  best checkpoint: b` is not a run");
    }
}
