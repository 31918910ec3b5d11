//! Errors of the conversion from and to `transformers`.

use super::Family;
use crate::error::ConfigFault;

/// A model cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// A setting in `config.json`: its key, value and the rule that it breaks.
    #[error("{0}")]
    Config(String),
    /// A tensor in the file: its name and the fault.
    #[error("{0}")]
    Tensor(String),
    /// A model that no class of `transformers` can represent.
    #[error("{} cannot represent this model: {}", .architecture, reasons(.faults))]
    Inexpressible {
        /// The family with the fewest faults.
        family: Family,
        /// Its class.
        architecture: &'static str,
        /// Every fault, with the keys of the TOML.
        faults: Vec<ConfigFault>,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A result whose error is [`HfError`].
pub type HfResult<T> = Result<T, HfError>;

fn reasons(faults: &[ConfigFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
