//! What keeps a model from being one of ours, or of `transformers`.

use std::fmt::Write as _;

use super::Family;
use crate::error::ConfigFault;

/// A model cannot be brought over.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// The `config.json`: its key, the value and the rule.
    #[error("{0}")]
    Config(String),
    /// A tensor of the file: its name and what is wrong with it.
    #[error("{0}")]
    Tensor(String),
    /// A model that no class of `transformers` can express.
    #[error("no {} can be this model: {}", .family.architecture(), reasons(.faults))]
    Inexpressible {
        /// The family that comes nearest.
        family: Family,
        /// Every reason, with the keys of the TOML.
        faults: Vec<ConfigFault>,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A result whose error is [`HfError`].
pub type HfResult<T> = Result<T, HfError>;

fn reasons(faults: &[ConfigFault]) -> String {
    faults.iter().fold(String::new(), |mut text, fault| {
        let separator = if text.is_empty() { "" } else { "; " };
        write!(text, "{separator}{fault}").expect("invariant: a string takes what is written");
        text
    })
}
