//! Lines on stdout and stderr.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Writes the paths of pictures to stdout, a line each.
pub(crate) fn print_paths(paths: &[PathBuf]) -> Result<()> {
    let lines = paths.iter().map(|path| format!("{}\n", path.display()));
    print(&lines.collect::<String>())
}

/// Writes a result to stdout. A reader that has seen enough and left is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the result"),
    }
}

/// A log on stderr, which a closed pipe silences.
pub(crate) fn log(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
