//! This program run once more, as a process of its own: what ends it ends nothing else, and the
//! memory that it takes is counted for it alone.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};

/// Where Linux keeps a running program whose file was replaced, as by another build.
const RUNNING: &str = "/proc/self/exe";

/// A command that runs this program and reads nothing.
pub(crate) fn this_program() -> Result<Command> {
    let file = env::current_exe().context("the program does not find itself")?;
    let is_gone = !file.exists() && Path::new(RUNNING).exists();
    let mut command = Command::new(if is_gone { PathBuf::from(RUNNING) } else { file });
    command.stdin(Stdio::null());
    Ok(command)
}

/// Why a process failed: what it said last, and how it ended where it had no time to say more.
pub(crate) fn complaint(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = stderr.trim().trim_start_matches("error: ").to_owned();
    let end = match output.status.code() {
        Some(_) if !said.is_empty() => return said,
        Some(code) => format!("ended with code {code}"),
        None => format!("ended by {}, as when memory runs out", output.status),
    };
    if said.is_empty() { end } else { format!("{said}\n{end}") }
}

/// The first line of a message, for a place with one line.
pub(crate) fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}
