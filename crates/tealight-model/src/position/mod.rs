//! How a position says where it is: one file per kind.
//!
//! A scheme acts in one of three places. Most add a vector to the embedding; rotary turns queries
//! and keys inside the attention; ALiBi and T5's relative bias are added to its scores. The last two
//! need an attention that can take them: [`AttentionNeeds`] is checked when the model is built.

pub mod alibi;
pub mod learned;
pub mod relative;
pub mod rotary;
pub mod scalar;
pub mod sinusoidal;

use std::fmt;
use std::ops::Range;

use candle_core::{DType, Result, Tensor};
use candle_nn::VarBuilder;

use crate::choice::choice;
use crate::error::{BuildError, BuildResult};
use rotary::Rotary;

choice! {
    /// `[model.position]`: how a position says where it is.
    pub enum PositionConfig {
        /// No positions: the model sees a bag of inputs.
        "none" => None,
        /// One number t/length, mapped to d_model by a learnt vector.
        "scalar" => Scalar(scalar::Config),
        /// Sines and cosines of geometric wavelengths (Vaswani et al. 2017).
        "sinusoidal" => Sinusoidal(sinusoidal::Config),
        /// A learnt vector for each position (Gehring et al. 2017; BERT, GPT-2).
        "learned" => Learned(learned::Config),
        /// Queries and keys rotated by their position (Su et al. 2021).
        "rotary" => Rotary(rotary::Config),
        /// Scores lowered in proportion to distance (Press et al. 2022).
        "alibi" => Alibi,
        /// A learnt bias for each bucket of distances (Raffel et al. 2020).
        "relative" => Relative(relative::Config),
    }
}

impl Default for PositionConfig {
    fn default() -> Self {
        Self::Learned(learned::Config::default())
    }
}

/// What the surrounding model decides for the positions.
#[derive(Clone, Copy, Debug)]
pub struct PositionSpec {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of attention heads.
    pub n_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// The longest sequence.
    pub max_seq_len: usize,
    /// Whether position i sees only j ≤ i.
    pub causal: bool,
    /// Whether the inputs are tokens of which one is known to be padding.
    pub has_padding: bool,
}

/// Of so many positions, at most, constants are kept; of later ones they are made when they are asked for.
const MOST_KEPT: usize = 8192;

/// Where the inputs of one call stand.
#[derive(Clone, Debug)]
pub struct Places<'a> {
    /// Their positions, the same in every sequence.
    pub positions: Range<usize>,
    /// Where they are tokens and one of those is padding.
    pub padded: Option<PaddedTokens<'a>>,
}

/// Token ids, and which of them is padding.
#[derive(Clone, Copy, Debug)]
pub struct PaddedTokens<'a> {
    /// `(batch, positions)` of any integer dtype.
    pub input_ids: &'a Tensor,
    /// The id of padding.
    pub pad_id: u32,
}

/// A scheme that adds a vector to each embedding.
pub trait EmbeddingPosition: fmt::Debug + Send + Sync {
    /// `(positions, d_model)`, to be added to every sequence, or `(batch, positions, d_model)`.
    fn vectors(&self, places: &Places<'_>) -> Result<Tensor>;
}

/// A scheme that adds a number to each attention score.
pub trait ScoreBias: fmt::Debug + Send + Sync {
    /// `(n_heads, q_len, kv_len)`, to be added to the scores of every sequence and layer. The
    /// queries are the last of the `kv_len` positions.
    fn bias(&self, q_len: usize, kv_len: usize) -> Result<Tensor>;
}

/// A built position scheme: at most one of the three places is taken.
#[derive(Debug, Default)]
pub struct Position {
    /// Added to the embedding.
    pub embedding: Option<Box<dyn EmbeddingPosition>>,
    /// Applied to queries and keys inside each attention layer.
    pub rotary: Option<Rotary>,
    /// Added to the scores of each attention layer.
    pub score_bias: Option<Box<dyn ScoreBias>>,
}

/// What a position scheme asks of every attention layer.
#[derive(Clone, Debug)]
pub enum AttentionNeeds {
    /// Nothing.
    Nothing,
    /// Queries and keys that can be rotated.
    Rotary(Rotary),
    /// Scores that a bias can be added to.
    ScoreBias,
}

impl Position {
    /// What the attention layers must be able to do.
    pub fn needs(&self) -> AttentionNeeds {
        match (&self.rotary, &self.score_bias) {
            (Some(rotary), _) => AttentionNeeds::Rotary(rotary.clone()),
            (None, Some(_)) => AttentionNeeds::ScoreBias,
            (None, None) => AttentionNeeds::Nothing,
        }
    }
}

impl PositionConfig {
    /// Builds the scheme.
    pub fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        let mut position = Position::default();
        match self {
            Self::None => {}
            Self::Scalar(config) => position.embedding = Some(Box::new(config.build(spec, vb)?)),
            Self::Sinusoidal(config) => {
                position.embedding = Some(Box::new(config.build(spec, vb)?));
            }
            Self::Learned(config) => position.embedding = Some(Box::new(config.build(spec, vb)?)),
            Self::Rotary(config) => position.rotary = Some(config.build(spec, vb)?),
            Self::Alibi => position.score_bias = Some(Box::new(alibi::Alibi::build(spec, vb))),
            Self::Relative(config) => position.score_bias = Some(Box::new(config.build(spec, vb)?)),
        }
        Ok(position)
    }
}

/// A setting that must be a positive number.
fn positive(key: &str, value: f64) -> BuildResult<()> {
    if value.is_finite() && value > 0. {
        return Ok(());
    }
    Err(BuildError::config([key], format!("`{key}` = {value} must be positive")))
}

/// What constants are kept in, where half precision is computed with: not in that.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}
