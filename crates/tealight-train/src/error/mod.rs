//! Errors. Each message names the file, key or tensor, and the rule.

mod bad_step;
mod communication;

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};

use candle_core::Shape;
use tealight_model::generation::GenerationError;
use tealight_model::{BuildError, ConfigFault};

use crate::settings::ConfigError;

pub use bad_step::{BadStepReport, StepFault, StepQuantity};
pub use communication::CommunicationError;

/// A result whose error is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Training, or reading and writing what it produced, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting, or a combination of settings, is invalid.
    #[error("{0}")]
    Config(ConfigFault),
    /// What a user or a caller gives cannot be used, such as an empty text, an unknown name or a number that is too
    /// large. The message says what it is.
    #[error("{0}")]
    Input(String),
    /// A configuration file cannot be read or has an invalid setting. The message has several lines and shows the
    /// place.
    #[error(transparent)]
    Source(#[from] ConfigError),
    /// A tensor operation failed: a shape is wrong, or memory ran out.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A file of weather cannot be used.
    #[error("{0}")]
    Weather(String),
    /// A score is better than any model can have.
    #[error(
        "{0}. No model can do that: it is a fault of Tealight, and not of this run. Please report it with `config.toml`"
    )]
    AboveLimit(String),
    /// A line of a file cannot be used.
    #[error("`{}`, line {line}: {rule}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        rule: String,
    },
    /// A text cannot be used as model input.
    #[error("`{}`: {rule}", shortened(.text))]
    Text {
        /// The text.
        text: String,
        /// What is wrong with it.
        rule: String,
    },
    /// A path contains no model.
    #[error(
        "`{}` is no model: neither a run or a checkpoint of Tealight, nor a folder with `tealight.json` \
         or `config.json`{}",
        .path.display(),
        .inner.as_ref().map_or_else(String::new, |inner| format!("; did you mean `{}`?", inner.display()))
    )]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// A folder in it that is a model.
        inner: Option<PathBuf>,
    },
    /// A model is neither a path nor in the cache of Hugging Face.
    #[error(
        "cannot open `{name}`: there is no such file or folder, and {} has no model of this name; if it is a model \
         of Hugging Face, download it by `hf download {name}`",
        cache_name(.cache.as_deref())
    )]
    NotDownloaded {
        /// The name.
        name: String,
        /// The folder of the cache, if there is one.
        cache: Option<PathBuf>,
    },
    /// A model is of another kind.
    #[error("`{}` is {found}, and this needs {wanted}", .path.display())]
    OtherKind {
        /// Where the model is.
        path: PathBuf,
        /// What is needed, with its article.
        wanted: &'static str,
        /// What it is, with its article.
        found: String,
    },
    /// A model computes numbers that are NaN or infinite.
    #[error("the outputs of the model are not finite, because its weights diverged")]
    NotFinite,
    /// The language model at this path has no tokenizer.
    #[error("`{}` has no tokenizer: neither `tokenizer.json` nor a vocabulary", .0.display())]
    NoTokenizer(PathBuf),
    /// Parameters have no gradient, a gradient of zeros, or one that is not finite.
    #[error(
        "the gradient audit failed, nothing was trained: {}; a parameter that may go without is \
         listed in `training.gradient_audit_exceptions`",
        .0.join("; ")
    )]
    GradientAudit(Vec<String>),
    /// A step was bad, and `training.bad_step` ends the run.
    #[error(
        "{0}; the update was not made. Try a lower `optimizer.lr`, or see what `training.bad_step` can \
         do about it"
    )]
    BadStep(BadStepReport),
    /// The program panicked in a step: a bug.
    #[error("step {step}: the program failed, which is a bug: {message}; the update was not made")]
    Panicked {
        /// The number of the update, counted from 1.
        step: u64,
        /// The message of the panic.
        message: String,
    },
    /// Ranks that train together cannot communicate.
    #[error(transparent)]
    Communication(#[from] CommunicationError),
    /// A message between ranks cannot be written or read.
    #[error("a message between ranks cannot be read")]
    Message(#[source] postcard::Error),
    /// Another rank failed; all ranks ended.
    #[error("rank {rank} on {host}: {message}")]
    OnRank {
        /// The rank that failed.
        rank: usize,
        /// Its host.
        host: String,
        /// Its error, with the causes.
        message: String,
    },
    /// The ranks of a job differ in something that has to be the same.
    #[error("{0}")]
    UnlikeRanks(String),
    /// A file or directory could not be reached.
    #[error("cannot {action} `{}`", .path.display())]
    Io {
        /// What was tried, such as `create`.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file, or a line of it, is not the expected JSON.
    #[error("`{}` is not the JSON that it should be", .path.display())]
    Json {
        /// The file, with `:line` where there are many.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// A safetensors file has an invalid header, or one that does not match its data.
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
    /// The tokenizer failed to encode or decode.
    #[error("the tokenizer fails: {0}")]
    Tokenize(String),
    /// A file is shorter or longer than when it was written.
    #[error("`{}` has {actual} bytes and should have {expected}: it was cut off or changed", .path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes when it was written.
        expected: u64,
        /// Bytes now.
        actual: u64,
    },
    /// The content of a file is not what was written.
    #[error("`{}` is damaged: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The evidence.
        what: String,
    },
    /// Every checkpoint of a run is damaged.
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
    /// Another process is writing to the directory.
    #[error(
        "`{}` is in use by {}; two processes cannot write one run", .path.display(), holder(*.pid, .host.as_deref())
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process id of the other process, if known.
        pid: Option<u32>,
        /// Its host, if it is not this one.
        host: Option<String>,
    },
    /// The directory may be in use by a process that cannot be seen from here.
    #[error(
        "`{}` is in use by {}, which cannot be seen from here, and this file system has no locks; if that process has \
         ended, remove `{}`", .path.display(), holder(*.pid, .host.as_deref()), .path.join(".lock").display()
    )]
    PerhapsLocked {
        /// The directory.
        path: PathBuf,
        /// The process id of the other process, if known.
        pid: Option<u32>,
        /// Its host, if it is not this one.
        host: Option<String>,
    },
    /// The content of a file cannot be used.
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
    /// A picture for TensorBoard could not be drawn.
    #[error("a picture for TensorBoard cannot be drawn")]
    Picture(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A path is neither a run's directory nor inside one.
    #[error("`{}` is not a run{}", .path.display(), in_place_of_a_run(.path, .missing))]
    NotARun {
        /// The path.
        path: PathBuf,
        /// The missing file, which every run has.
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
    #[error(
        "`{}` has no checkpoint `{wanted}`; there are: {}{}",
        .path.display(),
        list(.present),
        in_place_of_the_best(.wanted, .present)
    )]
    NoCheckpoint {
        /// The run's `checkpoints` directory.
        path: PathBuf,
        /// `latest`, `best` or the name of a step.
        wanted: String,
        /// The names of the steps that are there.
        present: Vec<String>,
    },
    /// A required tensor is missing.
    #[error("the {origin} has no tensor `{name}` of shape {}", axes(.expected))]
    MissingTensor {
        /// Where it was looked for, such as `model`.
        origin: &'static str,
        /// The tensor.
        name: String,
        /// The expected shape.
        expected: Shape,
    },
    /// A tensor has an unknown name.
    #[error("the {origin} has a tensor `{name}` of shape {} that is not known here", axes(.actual))]
    UnexpectedTensor {
        /// Where it is, such as `model`.
        origin: &'static str,
        /// The tensor.
        name: String,
        /// Its shape.
        actual: Shape,
    },
    /// A tensor has the wrong shape.
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
        /// The expected shape.
        expected: Shape,
        /// The actual shape.
        actual: Shape,
    },
}

/// The message of a panic, if it has one.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

impl Error {
    /// An invalid setting: `keys` are dotted TOML paths, the most likely culprit first.
    pub fn config<const N: usize>(keys: [&str; N], message: impl Into<String>) -> Self {
        BuildError::config(keys, message).into()
    }

    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Whether a file of a checkpoint is missing, truncated, changed, or cannot be read because of the disk, so that an
    /// earlier checkpoint should be tried. A newer format version or a missing permission is not damage.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. }
            | Self::Size { .. }
            | Self::Json { .. }
            | Self::Safetensors { .. }
            | Self::NotACheckpoint { .. } => true,
            Self::Io { source, .. } => is_of_the_disk(source),
            _ => false,
        }
    }

    /// Adds the action and the path to an error of the operating system.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn line(path: &Path, line: usize, rule: impl Into<String>) -> Self {
        Self::Line { path: path.to_owned(), line, rule: rule.into() }
    }

    pub(crate) fn text(text: &str, rule: impl Into<String>) -> Self {
        Self::Text { text: text.to_owned(), rule: rule.into() }
    }

    pub(crate) fn unusable(path: &Path, rule: &impl ToString) -> Self {
        Self::Unusable { path: path.to_owned(), rule: rule.to_string() }
    }

    /// Adds the path to an error about the JSON of a file.
    pub(crate) fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        move |source| Self::Json { path: path.to_owned(), source }
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

impl From<GenerationError> for Error {
    fn from(error: GenerationError) -> Self {
        match error {
            GenerationError::NotFinite => Self::NotFinite,
            GenerationError::Candle(error) => Self::Candle(error),
        }
    }
}

/// `(3, 5)`
fn axes(shape: &Shape) -> String {
    let axes: Vec<String> = shape.dims().iter().map(ToString::to_string).collect();
    format!("({})", axes.join(", "))
}

/// The beginning of a text, on one line.
fn shortened(text: &str) -> String {
    const MAX_SHOWN: usize = 60;
    let shown: String = text.chars().take(MAX_SHOWN).collect();
    let dots = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", shown.replace(char::is_control, " "))
}

fn cache_name(folder: Option<&Path>) -> String {
    let folder = folder.map(|folder| format!(" (`{}`)", folder.display())).unwrap_or_default();
    format!("the local cache of Hugging Face{folder}")
}

/// Whether the disk has lost what a file holds: an input or output error, or a damaged file system.
#[cfg(unix)]
fn is_of_the_disk(error: &io::Error) -> bool {
    use rustix::io::Errno;

    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::BADMSG | Errno::NXIO))
}

/// Whether the disk has lost what a file holds: `ERROR_IO_DEVICE`.
#[cfg(not(unix))]
fn is_of_the_disk(error: &io::Error) -> bool {
    error.raw_os_error() == Some(1117)
}

fn holder(pid: Option<u32>, host: Option<&str>) -> String {
    let process = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    host.map_or_else(|| process.clone(), |host| format!("{process} on `{host}`"))
}

/// What is at the `path` of a run in its place, or which file it lacks.
fn in_place_of_a_run(path: &Path, missing: &str) -> String {
    if path.is_file() && path.extension().is_some_and(|extension| extension == "toml") {
        return ", but a configuration, which `tealight train` trains a run of".to_owned();
    }
    format!(": there is no `{missing}`")
}

/// What to ask for while a run has checkpoints, but no best one.
fn in_place_of_the_best(wanted: &str, present: &[String]) -> &'static str {
    let is_asked_too_early = wanted == "best" && !present.is_empty();
    if is_asked_too_early { "; `--checkpoint latest` takes the newest" } else { "" }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn an_error_of_the_disk_is_damage_and_a_missing_permission_is_not() {
        use rustix::io::Errno;

        let is_damage = |errno: Errno| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            Error::io("read", Path::new("step-000005/state.json"))(error).is_damage()
        };
        assert!(is_damage(Errno::IO) && is_damage(Errno::BADMSG));
        assert!(!is_damage(Errno::ACCESS) && !is_damage(Errno::MFILE));
    }

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
