//! Output: results to stdout, log lines to stderr.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use super::verbosity::is_quiet;

/// Writes a result to stdout and flushes it. A closed pipe is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// Writes a value to stdout as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string(value)?))
}

/// Writes a value to stdout as indented JSON.
pub(crate) fn print_indented_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
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

/// Writes a line to stderr also under `--quiet`: what a result alone does not show. Errors such as a closed pipe are
/// ignored.
pub(crate) fn warn(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
