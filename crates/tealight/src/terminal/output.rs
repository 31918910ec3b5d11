//! Output: results to stdout, log lines to stderr.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use super::escape::{visible, visible_in_json};
use super::verbosity::is_quiet;

/// Writes a result to stdout. On a terminal, characters that act on it are shown as escapes; a file or another program
/// gets the text as it is.
pub(crate) fn print(text: &str) -> Result<()> {
    if io::stdout().is_terminal() { write(&visible(text)) } else { write(text) }
}

/// Writes to stdout and flushes it. A closed pipe is no error.
fn write(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// Writes a value to stdout as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    write_json(&serde_json::to_string(value)?)
}

/// Writes a value to stdout as indented JSON.
pub(crate) fn print_indented_json(value: &impl Serialize) -> Result<()> {
    write_json(&serde_json::to_string_pretty(value)?)
}

/// Writes JSON and a line break, on a terminal as [`print()`] does.
fn write_json(json: &str) -> Result<()> {
    let shown = if io::stdout().is_terminal() { visible_in_json(json) } else { json.into() };
    write(&format!("{shown}\n"))
}

/// Writes paths to stdout, one per line.
pub(crate) fn print_paths(paths: &[PathBuf]) -> Result<()> {
    let lines = paths.iter().map(|path| format!("{}\n", path.display()));
    print(&lines.collect::<String>())
}

/// Writes a line to stderr, unless `--quiet`.
pub(crate) fn log(line: &str) {
    if !is_quiet() {
        warn(line);
    }
}

/// Writes a line to stderr also under `--quiet`: what a result alone does not show. Characters that act on a terminal are
/// shown as escapes. Errors such as a closed pipe are ignored.
pub(crate) fn warn(line: &str) {
    let _ = writeln!(io::stderr(), "{}", visible(line));
}
