//! Errors of a model's configuration, which are detected when the model is built.

/// The model that a configuration describes cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A value, or a combination of values, that is not supported.
    #[error("{0}")]
    Config(ConfigFault),
    /// A tensor operation failed: a parameter's shape is wrong, or memory ran out.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A rule that the configuration breaks, with the keys involved, the most likely cause first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigFault {
    /// Dotted paths of the TOML keys, such as `model.n_heads`.
    pub keys: Vec<String>,
    /// The values and the rule, as a lower-case sentence.
    pub message: String,
}

/// A built part of a model, or a [`BuildError`].
pub type BuildResult<T> = std::result::Result<T, BuildError>;

impl BuildError {
    /// A broken rule: `keys` are the dotted TOML paths, the most likely cause first.
    pub fn config<const N: usize>(keys: [&str; N], message: impl Into<String>) -> Self {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        Self::Config(ConfigFault { keys, message: message.into() })
    }
}

/// Refuses a setting that is not finite and positive.
pub(crate) fn positive(key: &str, value: f64) -> BuildResult<()> {
    if value.is_finite() && value > 0. {
        return Ok(());
    }
    Err(BuildError::config([key], format!("`{key}` = {value} must be positive")))
}
