//! A CONFIG argument: a file, the name of a shipped configuration, or `-` for standard input.

use std::io::{Read, Seek, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tealight_train::communicator::mpi;
use tealight_train::config::{ConfigSource, RunConfig};

use crate::shipped::{self, Shipped};
use crate::terminal::escape::shell_path;

/// The argument that stands for standard input.
pub(crate) const STDIN: &str = "-";

/// The file of a run that has its configuration as the user wrote it.
const CONFIG_OF_RUN: &str = "config.toml";

/// Where a configuration was read from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    File,
    Shipped(&'static Shipped),
    Stdin,
}

impl Origin {
    /// The name of the configuration in messages.
    pub(crate) fn label(self, typed: &Path) -> PathBuf {
        match self {
            Self::File => typed.to_owned(),
            Self::Shipped(shipped) => PathBuf::from(format!("<{}>", shipped.name)),
            Self::Stdin => PathBuf::from("<stdin>"),
        }
    }

    /// The name of a run of `config`, which was read from the argument `typed`: that of the file, or of the shipped
    /// configuration, without folder and extension; of standard input, the kind of the task.
    pub(crate) fn run_name(self, typed: &Path, config: &RunConfig) -> String {
        match self {
            Self::File => typed.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Shipped(shipped) => {
                shipped.name.rsplit('/').next().unwrap_or(shipped.name).to_owned()
            }
            Self::Stdin => config.task.kind().to_owned(),
        }
    }
}

/// Reads the configuration that a CONFIG argument stands for. A file is preferred to a shipped configuration.
pub(crate) fn read(typed: &Path, overrides: &[String]) -> Result<(ConfigSource, Origin)> {
    if typed.as_os_str() == STDIN {
        let label = Origin::Stdin.label(typed);
        return Ok((ConfigSource::from_bytes(&label, &read_stdin()?, overrides)?, Origin::Stdin));
    }
    let of_run = typed.join(CONFIG_OF_RUN);
    if typed.is_dir() && of_run.is_file() {
        bail!("`{}` is a run; its configuration is `{}`", typed.display(), of_run.display());
    }
    if typed.is_dir() {
        bail!(
            "`{}` is a folder, and a configuration is a TOML file; `tealight inspect {}` shows the model in it",
            typed.display(),
            shell_path(typed)
        );
    }
    if typed.exists() {
        return Ok((ConfigSource::read(typed, overrides)?, Origin::File));
    }
    if let Some(shipped) = shipped::find(typed) {
        let origin = Origin::Shipped(shipped);
        let source = ConfigSource::parse(&origin.label(typed), shipped.text, overrides)?;
        return Ok((source, origin));
    }
    ConfigSource::read(typed, overrides).map(|source| (source, Origin::File)).map_err(|error| {
        let near: Vec<_> = shipped::near(typed).iter().map(|name| format!("`{name}`")).collect();
        let near = match near.as_slice() {
            [] => String::new(),
            near => format!("; did you mean the shipped configuration {}?", near.join(" or ")),
        };
        let message = error.message();
        anyhow::anyhow!("{message}{near}; `tealight init --list` lists the shipped configurations")
    })
}

fn read_stdin() -> Result<Vec<u8>> {
    if let Some(launcher) = mpi::launched_together() {
        bail!(
            "{launcher}, and standard input reaches only one of them: name a file instead of `-`"
        );
    }
    let mut bytes = Vec::new();
    stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}

/// Adds the CONFIG argument `typed` to a command of this program. If it is standard input, which has been read, the
/// command reads `text` there.
pub(crate) fn pass_on(command: &mut Command, typed: &Path, text: &str) -> Result<()> {
    command.arg(typed);
    if typed.as_os_str() == STDIN {
        let mut file = tempfile::tempfile().context("cannot create a temporary file")?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.rewind())
            .context("cannot write a temporary file")?;
        command.stdin(file);
    }
    Ok(())
}
