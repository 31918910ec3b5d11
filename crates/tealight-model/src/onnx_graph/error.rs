//! Errors of the export to ONNX.

use crate::error::BuildError;

/// A model cannot be written as ONNX.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// A setting that this export does not express: its key with its value, and why.
    #[error("{setting} cannot be written as ONNX: {reason}")]
    Unsupported {
        /// The key and its value.
        setting: String,
        /// The reason.
        reason: String,
    },
    /// A parameter that the graph needs is missing, or the model has one that the graph does not use.
    #[error("{0}")]
    Parameter(String),
    /// A cache was asked for, and the model has none.
    #[error("{0}")]
    NoCache(&'static str),
    /// The constants do not fit into a file.
    #[error(
        "the parameters take {bytes} bytes, and a file of ONNX, which is one message of protocol buffers, \
         holds less than 2 GiB"
    )]
    TooLarge {
        /// Bytes of all constants.
        bytes: usize,
    },
    /// The settings and parameters are no model.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// A result whose error is [`OnnxError`].
pub type OnnxResult<T> = Result<T, OnnxError>;

impl OnnxError {
    /// `setting` is a key with its value.
    pub(crate) fn unsupported(setting: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { setting: setting.into(), reason: reason.into() }
    }

    /// A `kind` of the setting `key` that defines no graph.
    pub(crate) fn unsupported_kind(key: &str, kind: &str) -> Self {
        Self::unsupported(
            format!("`{key}` = \"{kind}\""),
            "this kind defines no graph of operators",
        )
    }
}

impl From<candle_core::Error> for OnnxError {
    fn from(error: candle_core::Error) -> Self {
        Self::Build(BuildError::Candle(error))
    }
}
