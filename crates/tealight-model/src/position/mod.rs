//! Position encodings: one file per kind.
//!
//! An encoding acts in one of three places. Most add a vector to the embedding; rotary positions
//! rotate queries and keys inside the attention; ALiBi and T5's relative bias are added to its scores.
//! The last two need support from the attention: [`AttentionNeeds`] is checked when the model is built.

pub mod alibi;
pub mod learned;
pub mod relative;
pub mod rotary;
pub mod rotary_2d;
pub mod scalar;
pub mod scaling;
pub mod sinusoidal;
pub mod sinusoidal_2d;

use std::fmt;
use std::ops::{Range, RangeInclusive};

use candle_core::{DType, Result, Tensor};
use candle_nn::VarBuilder;

use crate::choice::choice;
use crate::error::{BuildError, BuildResult};
use crate::patches::Grid;
use rotary::Rotary;

choice! {
    /// `[model.position]`: the position encoding.
    pub enum PositionConfig = "learned" {
        /// No positions: the model treats its inputs as a set.
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
        /// Sines and cosines of the row and of the column of a patch, for pictures (He et al. 2022).
        "sinusoidal_2d" => Sinusoidal2d(sinusoidal_2d::Config),
        /// Queries and keys rotated by the row and the column of their patch, for pictures (Heo et al. 2024).
        "rotary_2d" => Rotary2d(rotary_2d::Config),
    }
}

/// Settings of the position encoding that the surrounding model determines.
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
    /// Whether position i attends only to j ≤ i.
    pub causal: bool,
    /// Whether the inputs are tokens with a padding id.
    pub has_padding: bool,
    /// Where the patches of a picture are among the positions; `None` for other inputs.
    pub grid: Option<Grid>,
}

impl PositionSpec {
    /// Where the patches are among the positions.
    ///
    /// # Errors
    /// If the inputs are no pictures, which have no positions of this `kind`.
    fn grid_of(&self, kind: &str) -> BuildResult<Grid> {
        self.grid.ok_or_else(|| {
            let key = "model.position.kind";
            let message = format!(
                "`{key}` = \"{kind}\" needs pictures: the inputs of this task have no rows and columns"
            );
            BuildError::config([key], message)
        })
    }
}

/// The most positions whose constants are precomputed; those of later positions are computed on demand.
const MAX_TABLE_LEN: usize = 8192;

/// The positions of the inputs of one call.
#[derive(Clone, Debug)]
pub struct TokenPositions<'a> {
    /// The range of positions, the same in every sequence of the batch.
    pub positions: Range<usize>,
    /// The token ids, if the model has a padding id.
    pub padded: Option<PaddedTokens<'a>>,
}

/// Token ids and the padding id.
#[derive(Clone, Copy, Debug)]
pub struct PaddedTokens<'a> {
    /// `(batch, positions)` of any integer dtype.
    pub input_ids: &'a Tensor,
    /// The padding id.
    pub pad_id: u32,
}

/// An encoding that adds a vector to each embedding.
pub trait EmbeddingPosition: fmt::Debug + Send + Sync {
    /// The vectors to add: `(positions, d_model)`, the same for every sequence, or `(batch, positions,
    /// d_model)`.
    fn vectors(&self, places: &TokenPositions<'_>) -> Result<Tensor>;
}

/// An encoding that adds a number to each attention score.
pub trait ScoreBias: fmt::Debug + Send + Sync {
    /// The bias `(n_heads, q_len, kv_len)`, added to the scores of every sequence and layer. The
    /// queries are the last `q_len` of the `kv_len` positions.
    fn bias(&self, q_len: usize, kv_len: usize) -> Result<Tensor>;

    /// The bias for each distance i − j of a query i from a key j: `(n_heads, distances)`.
    fn of_distances(&self, distances: RangeInclusive<i64>) -> Result<Tensor>;
}

/// A built position encoding; at most one of the fields is set.
#[derive(Debug, Default)]
pub struct Position {
    /// Added to the embedding.
    pub embedding: Option<Box<dyn EmbeddingPosition>>,
    /// Applied to queries and keys inside each attention layer.
    pub rotary: Option<Rotary>,
    /// Added to the scores of each attention layer.
    pub score_bias: Option<Box<dyn ScoreBias>>,
}

/// What a position encoding requires of every attention layer.
#[derive(Clone, Debug)]
pub enum AttentionNeeds {
    /// Nothing.
    Nothing,
    /// Rotation of queries and keys.
    Rotary(Rotary),
    /// A bias added to the scores.
    ScoreBias,
}

impl Position {
    /// What the encoding requires of the attention layers.
    pub fn needs(&self) -> AttentionNeeds {
        match (&self.rotary, &self.score_bias) {
            (Some(rotary), _) => AttentionNeeds::Rotary(rotary.clone()),
            (None, Some(_)) => AttentionNeeds::ScoreBias,
            (None, None) => AttentionNeeds::Nothing,
        }
    }
}

impl PositionConfig {
    /// Whether the encoding reads rows and columns, which only pictures have.
    pub fn needs_pictures(&self) -> bool {
        matches!(self, Self::Sinusoidal2d(_) | Self::Rotary2d(_))
    }

    /// The kinds that any sequence has, with their default settings.
    pub fn of_sequences() -> impl Iterator<Item = Self> {
        let kinds = Self::KINDS.iter().filter_map(|kind| Self::default_of(kind.name));
        kinds.filter(|kind| !kind.needs_pictures())
    }

    /// Builds the encoding.
    pub fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        let mut built = Position::default();
        match self {
            Self::None => {}
            Self::Scalar(config) => built.embedding = Some(Box::new(config.build(spec, vb)?)),
            Self::Sinusoidal(config) => built.embedding = Some(Box::new(config.build(spec, vb)?)),
            Self::Learned(config) => built.embedding = Some(Box::new(config.build(spec, vb)?)),
            Self::Rotary(config) => built.rotary = Some(config.build(spec, vb)?),
            Self::Alibi => built.score_bias = Some(Box::new(alibi::Alibi::build(spec, vb))),
            Self::Relative(config) => built.score_bias = Some(Box::new(config.build(spec, vb)?)),
            Self::Sinusoidal2d(config) => {
                let grid = spec.grid_of(self.kind())?;
                built.embedding = Some(Box::new(config.build(spec, grid, vb)?));
            }
            Self::Rotary2d(config) => {
                let grid = spec.grid_of(self.kind())?;
                built.rotary = Some(config.build(spec, grid, vb)?);
            }
        }
        Ok(built)
    }
}

/// The dtype of constants: f32 for models that compute in half precision.
fn constant_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}
