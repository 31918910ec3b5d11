//! What a model decides for a stack of blocks.

use std::borrow::Cow;

use crate::attention::{AttentionConfig, LayerPlace, Reads};
use crate::config::{LayerConfig, ModelConfig};

/// An attention's settings, and the TOML table that holds them.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The attention's settings.
    pub config: &'a AttentionConfig,
    /// Their table, such as `model.attention`, for error messages.
    pub key: &'a str,
}

/// What a model decides for its blocks.
#[derive(Clone, Copy, Debug)]
pub struct StackSpec<'a> {
    /// Self-attention, unless an entry of `layers` has its own.
    pub attention: Place<'a>,
    /// Layers that differ. Entry i mod (number of entries) is that of layer i.
    pub layers: &'a [LayerConfig],
    /// Which keys self-attention reads: all, or those of the past.
    pub reads: Reads,
    /// Cross-attention and the longest memory, in a decoder that reads an encoder.
    pub cross_attention: Option<(Place<'a>, usize)>,
    /// The longest sequence.
    pub max_seq_len: usize,
    /// Whether a sequence holds several documents, kept apart by
    /// [`Mask::with_segments`](crate::mask::Mask::with_segments).
    pub packed: bool,
    /// Number of blocks.
    pub n_layers: usize,
}

impl<'a> StackSpec<'a> {
    /// A stack without an encoder: `[model.attention]` and `[[model.layers]]`, causal under `model.causal`.
    pub fn single(config: &'a ModelConfig, max_seq_len: usize) -> Self {
        let attention = Place { config: &config.attention, key: "model.attention" };
        let (reads, n_layers) = (config.reads(), config.n_layers);
        Self {
            attention,
            layers: &config.layers,
            reads,
            cross_attention: None,
            max_seq_len,
            packed: false,
            n_layers,
        }
    }

    /// The number of layers after which their settings repeat.
    pub fn period(&self) -> usize {
        self.layers.len().max(1)
    }

    /// The place of layer `i`.
    pub fn place(&self, i: usize) -> LayerPlace {
        let kind = |i| self.attention_of(i).0.kind();
        // Kinds repeat after a period, so the layers before it are among the first ones.
        let is_first = (0..i.min(self.period())).all(|earlier| kind(earlier) != kind(i));
        LayerPlace { index: i, count: self.n_layers, is_first }
    }

    /// The self-attention of layer `i`, and the TOML table of its settings.
    pub fn attention_of(&self, i: usize) -> (&'a AttentionConfig, Cow<'a, str>) {
        let entry = i % self.period();
        match self.layers.get(entry).and_then(|layer| layer.attention.as_ref()) {
            Some(own) => (own, format!("model.layers[{entry}].attention").into()),
            None => (self.attention.config, self.attention.key.into()),
        }
    }
}
