//! This program as a subprocess: a crash ends only the subprocess, and its memory is measured alone.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};

/// On Linux, the running executable, even if its file was replaced since.
const SELF_EXE: &str = "/proc/self/exe";

/// The environment variable that sets the number of threads of a process.
pub(crate) const THREADS: &str = "RAYON_NUM_THREADS";

fn executable() -> Result<PathBuf> {
    let file = env::current_exe().context("cannot find this program's executable")?;
    let is_gone = !file.exists() && Path::new(SELF_EXE).exists();
    Ok(if is_gone { PathBuf::from(SELF_EXE) } else { file })
}

/// The bytes of this program's executable.
pub(crate) fn read_this_program() -> Result<Vec<u8>> {
    let file = executable()?;
    std::fs::read(&file).with_context(|| format!("cannot read `{}`", file.display()))
}

/// A command that runs this program with an empty standard input.
pub(crate) fn this_program() -> Result<Command> {
    let mut command = Command::new(executable()?);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Runs `command` to its end. The inner result is its standard output or its error message, without colours.
pub(crate) fn run(command: &mut Command) -> Result<Result<Vec<u8>, String>> {
    let output =
        command.args(["--color", "never"]).output().context("cannot start a subprocess")?;
    Ok(outcome(output))
}

/// The standard output of a successful process, or the error message of a failed one.
pub(crate) fn outcome(output: Output) -> Result<Vec<u8>, String> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let message = stderr.trim().trim_start_matches("error: ").to_owned();
    let end = match output.status.code() {
        Some(_) if !message.is_empty() => return Err(message),
        Some(code) => format!("exited with code {code}"),
        None => format!("ended by {}, possibly out of memory", output.status),
    };
    Err(if message.is_empty() { end } else { format!("{message}\n{end}") })
}

/// The first line of a message, for a table or list.
pub(crate) fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}
