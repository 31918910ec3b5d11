//! `tealight completions SHELL`

use anyhow::{Context, Result};
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::args::complete;
use crate::terminal::output::print;

/// Prints the script that makes a shell ask the program for completions.
pub(crate) fn run(shell: Shell) -> Result<()> {
    const PROGRAM: &str = "tealight";
    let shells = Shells::builtins();
    let script = shells.completer(&shell.to_string()).context("a shell without completions")?;
    let mut text = Vec::new();
    script.write_registration(complete::VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut text)?;
    print(&String::from_utf8_lossy(&text))
}
