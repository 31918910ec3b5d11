//! What the model decides for an attention layer, and the errors by which a kind refuses it.

use candle_core::Result;
use candle_nn::VarBuilder;
use tealight_ops::Reach;

use crate::error::{self, BuildError, BuildResult};
use crate::layers::linear::{Bias, Linear};
use crate::params::init::Initializer;
use crate::position::AttentionNeeds;
use crate::position::rotary::Rotary;

/// What the model decides for the layer.
#[derive(Clone, Debug)]
pub struct AttentionSpec<'a> {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of heads; divides `d_model`, unless `head_dim` is set.
    pub n_heads: usize,
    /// Width of one head; d_model / n_heads when absent.
    pub head_dim: Option<usize>,
    /// The longest sequence of queries.
    pub max_q_len: usize,
    /// The longest sequence of keys: the same, except in cross-attention.
    pub max_kv_len: usize,
    /// Which keys a query may read.
    pub reads: Reads,
    /// Dropout on the attention weights or, in kinds that never form them, on the context.
    pub dropout: f64,
    /// Whether the projections add a bias.
    pub bias: Bias,
    /// What the position scheme does inside the layer.
    pub position: AttentionNeeds,
    /// Whether a sequence holds several documents, kept apart by
    /// [`Mask::with_segments`](crate::mask::Mask::with_segments).
    pub packed: bool,
    /// Tokens that convolutions behind the maps read; 0: there are none. [`AttentionConfig::build`] sets it by the settings of
    /// the kind.
    ///
    /// [`AttentionConfig::build`]: super::AttentionConfig::build
    pub conv_size: usize,
    /// Where the layer is in its stack.
    pub layer: LayerPlace,
    /// The initial values of the weights.
    pub init: &'a Initializer,
    /// The TOML table of the layer's settings, such as `model.attention`, for error messages.
    pub key: &'a str,
}

/// The place of a layer in its stack, for kinds whose constants, parameters or initial values depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// The layers before it.
    pub index: usize,
    /// All layers of the stack.
    pub count: usize,
    /// Whether no earlier layer of the stack has the same kind of attention.
    pub is_first: bool,
}

impl LayerPlace {
    /// The layer of a stack of one.
    pub const ONLY: Self = Self { index: 0, count: 1, is_first: true };
}

/// Which keys a query may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// All positions of its own sequence.
    Everything,
    /// Position i reads j ≤ i.
    Past,
    /// All positions of another sequence, the memory.
    Memory,
}

impl Reads {
    /// The keys that an operation lets a query read; those of a memory are all that it is given.
    pub(super) fn reach(self) -> Reach {
        if self == Self::Past { Reach::Past } else { Reach::Everything }
    }
}

/// How refusals name the setting that makes a layer causal. An encoder-decoder removes it from messages: it
/// does not follow `model.causal`.
pub(crate) const BY_CAUSAL: &str = " (`model.causal` = true)";

impl AttentionSpec<'_> {
    /// Width of one head; 0 if `n_heads` is 0, which an estimate may ask for and no model has.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or_else(|| self.d_model.checked_div(self.n_heads).unwrap_or(0))
    }

    /// Width of all heads together: d_model, unless the heads have a width of their own.
    pub fn d_heads(&self) -> usize {
        match self.head_dim {
            Some(head_dim) => head_dim.saturating_mul(self.n_heads),
            None => self.d_model,
        }
    }

    /// The error of a setting that is out of range: `invalid("window", "= 0 must be positive")`.
    pub fn invalid(&self, setting: &str, rule: &str) -> BuildError {
        let key = format!("{}.{setting}", self.key);
        BuildError::config([key.as_str()], format!("`{key}` {rule}"))
    }

    /// Refuses a `value` of 0.
    pub fn positive(&self, setting: &str, value: usize) -> BuildResult<()> {
        error::positive(&format!("{}.{setting}", self.key), value as f64)
    }

    /// A linear map from the residual stream to `width` features, at `name`.
    pub(super) fn linear(&self, name: &str, width: usize, vb: &VarBuilder<'_>) -> Result<Linear> {
        let weight = self.init.weight(self.d_model);
        Linear::build([self.d_model, width], self.bias, weight, &vb.pp(name))
    }

    /// The rotation of queries and keys, if positions are rotary.
    pub fn rotary(&self) -> Option<Rotary> {
        match &self.position {
            AttentionNeeds::Rotary(rotary) => Some(rotary.clone()),
            AttentionNeeds::Nothing | AttentionNeeds::ScoreBias => None,
        }
    }

    /// The same for a part of a head, `width` features.
    ///
    /// # Errors
    /// If the width is odd or does not divide that of a head, or if the angles follow no base.
    pub(super) fn rotary_of(
        &self,
        kind: &str,
        setting: &str,
        width: usize,
    ) -> BuildResult<Option<Rotary>> {
        let Some(rotary) = self.rotary() else { return Ok(None) };
        if let Some(rotary) = rotary.of_width(width)? {
            return Ok(Some(rotary));
        }
        let cannot = format!(
            "cannot rotate {width} features ({setting}) with the angles of a head of {}",
            self.head_dim()
        );
        let why = "they are odd in number, do not divide it, or the angles are of rows and columns";
        let keys = ["model.position.kind", "model.head_dim", &self.kind_key()];
        self.require(false, keys, [kind, &cannot, why])?;
        Ok(None)
    }

    /// Refuses a causal layer of `kind`. Here and below, `why` completes the message "… cannot …, because".
    pub fn refuse_causal(&self, kind: &str, why: &str) -> BuildResult<()> {
        let (key, cannot) = (self.kind_key(), format!("cannot be causal{BY_CAUSAL}"));
        self.require(self.reads != Reads::Past, [&key, "model.causal"], [kind, &cannot, why])
    }

    /// Refuses a layer of `kind` that is not causal.
    pub fn require_causal(&self, kind: &str, why: &str) -> BuildResult<()> {
        self.refuse_memory(kind, why)?;
        let (key, must) = (self.kind_key(), format!("must be causal{BY_CAUSAL}"));
        self.require(self.reads == Reads::Past, [&key, "model.causal"], [kind, &must, why])
    }

    /// Refuses `kind` as cross-attention.
    pub fn refuse_memory(&self, kind: &str, why: &str) -> BuildResult<()> {
        let sentence = [kind, "cannot read another sequence", why];
        self.require(self.reads != Reads::Memory, [&self.kind_key()], sentence)
    }

    /// Refuses heads whose widths do not add up to d_model.
    pub fn refuse_head_dim(&self, kind: &str, why: &str) -> BuildResult<()> {
        let (d_heads, d_model) = (self.d_heads(), self.d_model);
        let cannot = format!(
            "cannot have {d_heads} features in all heads (`model.head_dim`) and {d_model} in the stream \
             (`model.d_model`)"
        );
        let keys = ["model.head_dim", &self.kind_key()];
        self.require(d_heads == d_model, keys, [kind, &cannot, why])
    }

    /// Refuses rotary positions, which rotate queries and keys.
    pub fn refuse_rotary(&self, kind: &str, why: &str) -> BuildResult<()> {
        let cannot = "cannot take positions that rotate queries and keys (`model.position.kind`)";
        let is_rotary = matches!(self.position, AttentionNeeds::Rotary(_));
        self.require(!is_rotary, ["model.position.kind", &self.kind_key()], [kind, cannot, why])
    }

    /// Refuses positions that add a bias to the scores.
    pub fn refuse_score_bias(&self, kind: &str, why: &str) -> BuildResult<()> {
        let cannot = "cannot take positions that add to the scores (`model.position.kind`)";
        let is_bias = matches!(self.position, AttentionNeeds::ScoreBias);
        self.require(!is_bias, ["model.position.kind", &self.kind_key()], [kind, cannot, why])
    }

    /// Refuses packed sequences: without scores, `kind` cannot mask other documents.
    pub fn refuse_segments(&self, kind: &str, why: &str) -> BuildResult<()> {
        let cannot = "cannot keep packed documents apart (`task.sequences` = \"packed\")";
        let key = self.kind_key();
        self.require(!self.packed, [&key, "task.sequences"], [kind, cannot, why])
    }

    /// Unless the rule `holds`, the error that `kind` `cannot`, because `why`.
    fn require<const N: usize>(
        &self,
        holds: bool,
        keys: [&str; N],
        [kind, cannot, why]: [&str; 3],
    ) -> BuildResult<()> {
        if holds {
            return Ok(());
        }
        let message = format!("`{}` = \"{kind}\" {cannot}, because {why}", self.kind_key());
        Err(BuildError::config(keys, message))
    }

    fn kind_key(&self) -> String {
        format!("{}.kind", self.key)
    }
}
