//! What the model decides for an attention layer, and the errors by which a kind refuses it.

use crate::error::{BuildError, BuildResult};
use crate::layers::linear::Bias;
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
    /// The initial values of the weights.
    pub init: &'a Initializer,
    /// The TOML table of the layer's settings, such as `model.attention`, for error messages.
    pub key: &'a str,
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
        if value > 0 {
            return Ok(());
        }
        Err(self.invalid(setting, "= 0 must be positive"))
    }

    /// Refuses a causal layer of `kind`. `why` completes the message "… cannot be causal, because".
    pub fn refuse_causal(&self, kind: &str, why: &str) -> BuildResult<()> {
        if self.reads != Reads::Past {
            return Ok(());
        }
        let key = self.kind_key();
        let message = format!("`{key}` = \"{kind}\" cannot be causal{BY_CAUSAL}, because {why}");
        Err(BuildError::config([key.as_str(), "model.causal"], message))
    }

    /// Refuses a layer of `kind` that is not causal.
    pub fn require_causal(&self, kind: &str, why: &str) -> BuildResult<()> {
        self.refuse_memory(kind, why)?;
        if self.reads == Reads::Past {
            return Ok(());
        }
        let key = self.kind_key();
        let message = format!("`{key}` = \"{kind}\" must be causal{BY_CAUSAL}, because {why}");
        Err(BuildError::config([key.as_str(), "model.causal"], message))
    }

    /// Refuses `kind` as cross-attention.
    pub fn refuse_memory(&self, kind: &str, why: &str) -> BuildResult<()> {
        if self.reads != Reads::Memory {
            return Ok(());
        }
        let key = self.kind_key();
        let message = format!("`{key}` = \"{kind}\" cannot read another sequence, because {why}");
        Err(BuildError::config([key.as_str()], message))
    }

    /// Refuses heads whose widths do not add up to d_model.
    pub fn refuse_head_dim(&self, kind: &str, why: &str) -> BuildResult<()> {
        let (d_heads, d_model) = (self.d_heads(), self.d_model);
        if d_heads == d_model {
            return Ok(());
        }
        let key = self.kind_key();
        let message = format!(
            "`{key}` = \"{kind}\" cannot have {d_heads} features in all heads (`model.head_dim`) and \
             {d_model} in the stream (`model.d_model`), because {why}"
        );
        Err(BuildError::config(["model.head_dim", key.as_str()], message))
    }

    /// The rotation of queries and keys, if positions are rotary.
    pub fn rotary(&self) -> Option<Rotary> {
        match &self.position {
            AttentionNeeds::Rotary(rotary) => Some(rotary.clone()),
            AttentionNeeds::Nothing | AttentionNeeds::ScoreBias => None,
        }
    }

    /// Refuses rotary positions, which rotate queries and keys.
    pub fn refuse_rotary(&self, kind: &str, why: &str) -> BuildResult<()> {
        match self.position {
            AttentionNeeds::Rotary(_) => {
                Err(self.refused_position(kind, "positions that rotate queries and keys", why))
            }
            AttentionNeeds::Nothing | AttentionNeeds::ScoreBias => Ok(()),
        }
    }

    /// Refuses positions that add a bias to the scores.
    pub fn refuse_score_bias(&self, kind: &str, why: &str) -> BuildResult<()> {
        match self.position {
            AttentionNeeds::ScoreBias => {
                Err(self.refused_position(kind, "positions that add to the scores", why))
            }
            AttentionNeeds::Nothing | AttentionNeeds::Rotary(_) => Ok(()),
        }
    }

    /// Refuses packed sequences: without scores, `kind` cannot mask other documents.
    pub fn refuse_segments(&self, kind: &str, why: &str) -> BuildResult<()> {
        if !self.packed {
            return Ok(());
        }
        let key = self.kind_key();
        let message = format!(
            "`{key}` = \"{kind}\" cannot keep packed documents apart (`task.sequences` = \"packed\"), \
             because {why}"
        );
        Err(BuildError::config([key.as_str(), "task.sequences"], message))
    }

    fn refused_position(&self, kind: &str, positions: &str, why: &str) -> BuildError {
        let key = self.kind_key();
        let message = format!(
            "`{key}` = \"{kind}\" cannot take {positions} (`model.position.kind`), because {why}"
        );
        BuildError::config(["model.position.kind", key.as_str()], message)
    }

    fn kind_key(&self) -> String {
        format!("{}.kind", self.key)
    }
}
