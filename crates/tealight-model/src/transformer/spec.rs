//! What a model decides for a stack of blocks.

use crate::attention::{AttentionConfig, Reads};
use crate::config::ModelConfig;

/// Which attention stands in a place, and the table in the TOML that says so.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The attention's settings.
    pub config: &'a AttentionConfig,
    /// Their table, such as `model.attention`.
    pub key: &'a str,
}

/// What the surrounding model decides for its blocks.
#[derive(Clone, Copy, Debug)]
pub struct StackSpec<'a> {
    /// How a position reads its own sequence.
    pub attention: Place<'a>,
    /// What of it: everything or the past.
    pub reads: Reads,
    /// How a position reads the memory, and the longest memory, where there is one.
    pub cross_attention: Option<(Place<'a>, usize)>,
    /// The longest sequence.
    pub max_seq_len: usize,
    /// Whether a sequence holds several documents, which [`Mask::with_segments`] keeps apart.
    pub packed: bool,
    /// Number of blocks.
    pub n_layers: usize,
}

impl<'a> StackSpec<'a> {
    /// A stack on its own: `[model.attention]`, as causal as `model.causal`.
    pub fn alone(config: &'a ModelConfig, max_seq_len: usize) -> Self {
        let attention = Place { config: &config.attention, key: "model.attention" };
        let (reads, n_layers) = (config.reads(), config.n_layers);
        Self { attention, reads, cross_attention: None, max_seq_len, packed: false, n_layers }
    }
}
