//! What can go wrong while training: each message names the file, key or tensor, and the rule.

mod bad_step;

use std::io;
use std::path::{Path, PathBuf};

use candle_core::Shape;
use tealight_model::{BuildError, ConfigFault};

use crate::settings::ConfigError;

pub use bad_step::{BadStepReport, Fault};

/// A result whose error is [`Error`], unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Training, or reading and writing what it produced, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value, or a combination of values, that no run can have.
    #[error("{0}")]
    Config(ConfigFault),
    /// A file of settings cannot be read, or what it says is no setting: the whole message, over several
    /// lines.
    #[error(transparent)]
    Source(#[from] ConfigError),
    /// A tensor operation failed: a shape is wrong, or memory ran out.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A file of weather cannot be used.
    #[error(transparent)]
    Weather(Box<dyn std::error::Error + Send + Sync>),
    /// A line of a file of pairs cannot be used.
    #[error("`{}`, line {line}: {rule}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        rule: String,
    },
    /// A text that a model cannot be asked about.
    #[error("`{}`: {rule}", shortened(.text))]
    Text {
        /// The text.
        text: String,
        /// What is wrong with it.
        rule: String,
    },
    /// A path leads to no model.
    #[error(
        "`{}` is no model: neither a run or a checkpoint of Tealight, nor a folder with `tealight.json` \
         or `config.json`",
        .path.display()
    )]
    NotAModel {
        /// The path.
        path: PathBuf,
    },
    /// A model was trained for something else.
    #[error("`{}` is {found}, and this needs {wanted}", .path.display())]
    OtherPurpose {
        /// Where the model is.
        path: PathBuf,
        /// What is needed, with its article.
        wanted: &'static str,
        /// What it is, with its article.
        found: String,
    },
    /// A model of text came without a tokenizer.
    #[error("`{}` has no tokenizer: neither `tokenizer.json` nor a vocabulary", .path.display())]
    NoTokenizer {
        /// Where the model is.
        path: PathBuf,
    },
    /// Parameters that training would never move, or would ruin.
    #[error(
        "the gradient audit failed, nothing was trained: {}; a parameter that may go without is \
         listed in `training.gradient_audit_exceptions`",
        .faults.join("; ")
    )]
    GradientAudit {
        /// What is wrong with which parameter.
        faults: Vec<String>,
    },
    /// The loss or a gradient is no longer a number, or the loss has leapt.
    #[error(
        "{0}; the update was not made. Try a lower `optimizer.lr`, or see what `training.bad_step` can \
         do about it"
    )]
    BadStep(BadStepReport),
    /// Something that should never fail did.
    #[error("step {step}: the program failed, which is a bug: {message}; the update was not made")]
    Panicked {
        /// The update that would have been made, counted from 1.
        step: u64,
        /// What was said.
        message: String,
    },
    /// A file or directory could not be reached.
    #[error("cannot {action} `{}`", .path.display())]
    Io {
        /// What was tried, such as `create`.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A file, or a line of it, is not the JSON it should be.
    #[error("`{}` is not the JSON that it should be", .path.display())]
    Json {
        /// The file, with `:line` where there are many.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// A file of tensors has no valid header, or one that does not match what follows it.
    #[error("`{}` is not a safetensors file", .path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: safetensors::SafeTensorError,
    },
    /// A file of a tokenizer cannot be used.
    #[error("`{}` cannot be used as a tokenizer: {rule}", .path.display())]
    Tokenizer {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        rule: String,
    },
    /// A text has no tokens, or tokens no text.
    #[error("the tokenizer fails: {0}")]
    Tokenize(String),
    /// A file is shorter, or longer, than it was when it was written.
    #[error("`{}` has {actual} bytes and should have {expected}: it was cut off or changed", .path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes when it was written.
        expected: u64,
        /// Bytes now.
        actual: u64,
    },
    /// A file does not hold what was written into it.
    #[error("`{}` is damaged: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How that is known.
        what: String,
    },
    /// No checkpoint of a run is as it was written.
    #[error(
        "no checkpoint in `{}` is whole: {}; a new run begins without `--resume`",
        .path.display(),
        .damages.join("; ")
    )]
    NoWholeCheckpoint {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// What is wrong with each.
        damages: Vec<String>,
    },
    /// A directory belongs to another process.
    #[error(
        "`{}` is in use by {}; two processes cannot write one run", .path.display(), holder(*.pid)
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process, where it is known.
        pid: Option<u32>,
    },
    /// A file says what cannot be used here.
    #[error("`{}`: {rule}", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        rule: String,
    },
    /// A file was written in a format that this version does not read.
    #[error("`{}` has format version {found}, and this version reads up to {supported}", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that it states.
        found: u64,
        /// The newest version that can be read.
        supported: u64,
    },
    /// What was to be seen in TensorBoard could not be drawn.
    #[error("a picture for TensorBoard cannot be drawn")]
    Picture {
        /// What stood in the way.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A path is neither a run's directory nor inside one.
    #[error("`{}` is not a run: there is no `{missing}`", .path.display())]
    NotARun {
        /// The path.
        path: PathBuf,
        /// The file that every run has and this one lacks.
        missing: &'static str,
    },
    /// A directory is not a checkpoint.
    #[error("`{}` is not a checkpoint: there is no `{missing}`", .path.display())]
    NotACheckpoint {
        /// The directory.
        path: PathBuf,
        /// The file that it lacks.
        missing: String,
    },
    /// A run has no such checkpoint.
    #[error("`{}` has no checkpoint `{wanted}`; there are: {}", .path.display(), list(.present))]
    NoCheckpoint {
        /// The run's `checkpoints` directory.
        path: PathBuf,
        /// `latest`, `best` or the name of a step.
        wanted: String,
        /// The names of the steps that are there.
        present: Vec<String>,
    },
    /// A tensor is needed and absent.
    #[error("the {origin} has no tensor `{name}` of shape {}", axes(.expected))]
    MissingTensor {
        /// Where it was looked for, such as `model`.
        origin: &'static str,
        /// The tensor.
        name: String,
        /// The shape it should have.
        expected: Shape,
    },
    /// A tensor is there that nothing asks for.
    #[error("the {origin} has a tensor `{name}` of shape {} that is not known here", axes(.actual))]
    UnexpectedTensor {
        /// Where it is, such as `model`.
        origin: &'static str,
        /// The tensor.
        name: String,
        /// Its shape.
        actual: Shape,
    },
    /// A tensor has another shape than it should.
    #[error(
        "tensor `{name}` of the {origin} has shape {} and should have {}",
        axes(.actual),
        axes(.expected)
    )]
    MisshapenTensor {
        /// Where it is, such as `model`.
        origin: &'static str,
        /// The tensor.
        name: String,
        /// The shape it should have.
        expected: Shape,
        /// The shape it has.
        actual: Shape,
    },
}

impl Error {
    /// A broken rule: `keys` are the dotted TOML paths, most guilty first.
    pub fn config<const N: usize>(keys: [&str; N], message: impl Into<String>) -> Self {
        BuildError::config(keys, message).into()
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Whether a checkpoint's file is missing, cut off or changed, so that an earlier checkpoint may
    /// serve; not what another version has written, nor what cannot be read at the moment.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::Size { .. }
                | Self::Json { .. }
                | Self::Safetensors { .. }
                | Self::NotACheckpoint { .. }
        )
    }

    /// Turns the system's answer into an error that says what was tried on which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Config(fault) => Self::Config(fault),
            BuildError::Candle(error) => Self::Candle(error),
        }
    }
}

/// A shape as the documentation writes it: `(3, 5)`.
fn axes(shape: &Shape) -> String {
    let axes: Vec<String> = shape.dims().iter().map(ToString::to_string).collect();
    format!("({})", axes.join(", "))
}

/// A text as messages quote it: its beginning, on one line.
fn shortened(text: &str) -> String {
    const MAX_SHOWN: usize = 60;
    let shown: String = text.chars().take(MAX_SHOWN).collect();
    let dots = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", shown.replace(char::is_control, " "))
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_thing_and_the_rule() {
        let error = Error::MisshapenTensor {
            origin: "model",
            name: "embedding.weight".into(),
            expected: Shape::from((3, 5)),
            actual: Shape::from(7),
        };
        let message = "tensor `embedding.weight` of the model has shape (7) and should have (3, 5)";
        assert_eq!(error.to_string(), message);
        let error = Error::io("create", Path::new("runs/a"))(io::ErrorKind::NotFound.into());
        assert_eq!(error.to_string(), "cannot create `runs/a`");
        assert!(std::error::Error::source(&error).is_some());
    }

    #[test]
    fn a_models_broken_rule_keeps_its_keys() {
        let error = Error::from(BuildError::config(["model.n_heads", "model.d_model"], "no"));
        let Error::Config(fault) = error else { panic!("a config fault") };
        assert_eq!(fault.keys, ["model.n_heads", "model.d_model"]);
    }
}
