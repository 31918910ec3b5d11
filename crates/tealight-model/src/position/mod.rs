//! Position encodings: one file per kind, with a `Config` that implements [`PositionKind`]. It is registered here by
//! `pub mod` and a documented variant of [`PositionConfig`].
//!
//! An encoding acts in one of three places. Most add a vector to the embedding; rotary positions
//! rotate queries and keys inside the attention; ALiBi and T5's relative bias are added to its scores.
//! The last two need support from the attention: [`AttentionNeeds`] is checked when the model is built.

pub mod alibi;
pub mod learned;
pub(crate) mod onnx;
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

use crate::choice::{NoSettings, choice};
use crate::error::{BuildError, BuildResult};
use crate::onnx_graph::{OnnxResult, Value};
use crate::patches::Grid;
use onnx::Call;
use rotary::Rotary;

choice! {
    /// `[model.position]`: the position encoding.
    pub enum PositionConfig: PositionKind = "learned" {
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
        "alibi" => Alibi(alibi::Config),
        /// A learnt bias for each bucket of distances (Raffel et al. 2020).
        "relative" => Relative(relative::Config),
        /// Sines and cosines of the row and of the column of a patch, for pictures (He et al. 2022).
        "sinusoidal_2d" => Sinusoidal2d(sinusoidal_2d::Config),
        /// Queries and keys rotated by the row and the column of their patch, for pictures (Heo et al. 2024).
        "rotary_2d" => Rotary2d(rotary_2d::Config),
    }
}

/// The settings of one kind of position encoding.
pub trait PositionKind: fmt::Debug {
    /// Builds the encoding, or refuses settings by their keys.
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position>;

    /// Scalars in its parameters, for an estimate before it is built. In floating point, so that no size overflows.
    fn n_parameters(&self, _d_model: usize, _n_heads: usize, _max_seq_len: usize) -> f64 {
        0.
    }

    /// Whether the encoding reads rows and columns, which only pictures have.
    fn needs_pictures(&self) -> bool {
        false
    }
}

/// The kind `none`.
impl PositionKind for NoSettings {
    fn build(&self, _spec: &PositionSpec, _vb: &VarBuilder<'_>) -> BuildResult<Position> {
        Ok(Position::default())
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
    /// If the inputs are no pictures, which alone have positions of this `kind`, or if `width` numbers for each position
    /// are more than [`MAX_GRID_TABLE`].
    fn grid_of(&self, kind: &str, width: usize) -> BuildResult<Grid> {
        let key = "model.position.kind";
        let refused =
            |rule: String| BuildError::config([key], format!("`{key}` = \"{kind}\" {rule}"));
        let Some(grid) = self.grid else {
            let rule = "needs pictures: the inputs of this task have no rows and columns";
            return Err(refused(rule.to_owned()));
        };
        let n = grid.n_tokens();
        if n.saturating_mul(width) > MAX_GRID_TABLE {
            return Err(refused(format!(
                "needs a table of {n} positions and {width} columns, and at most {MAX_GRID_TABLE} numbers are computed: \
                 larger patches give fewer positions"
            )));
        }
        Ok(grid)
    }
}

/// The most positions whose constants are precomputed; those of later positions are computed on demand.
const MAX_TABLE_LEN: usize = 8192;
/// The most numbers of such a table: 64 MiB in f64, 8192 positions of a model with 1024 features.
const MAX_TABLE: usize = 1 << 23;
/// The most numbers of a table of all patches of a picture, which is computed as a whole: 2 GiB in f64.
const MAX_GRID_TABLE: usize = 1 << 28;

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

    /// Adds the vectors of a call to a graph of ONNX: `(batch or 1, q_len, d_model)`. By default they are rows of a
    /// table of all positions; an encoding that depends on more than the position has its own graph.
    fn onnx(&self, call: &Call<'_>) -> OnnxResult<Value> {
        call.vectors(self)
    }
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
    /// An encoding that is added to the embedding.
    pub fn from_embedding(encoding: impl EmbeddingPosition + 'static) -> Self {
        Self { embedding: Some(Box::new(encoding)), ..Self::default() }
    }

    /// An encoding that rotates queries and keys.
    pub fn from_rotary(rotary: Rotary) -> Self {
        Self { rotary: Some(rotary), ..Self::default() }
    }

    /// An encoding that is added to the scores.
    pub fn from_score_bias(encoding: impl ScoreBias + 'static) -> Self {
        Self { score_bias: Some(Box::new(encoding)), ..Self::default() }
    }

    /// Whether a position is the row of a table, so that a call of an exported model may choose positions. Without such
    /// a table, scores depend on distances alone, or not on positions at all.
    pub(crate) fn is_table(&self) -> bool {
        self.embedding.is_some() || self.rotary.is_some()
    }

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
        self.settings().needs_pictures()
    }

    /// The kinds that any sequence has, with their default settings.
    pub fn of_sequences() -> impl Iterator<Item = Self> {
        let kinds = Self::KINDS.iter().filter_map(|kind| Self::default_of(kind.name));
        kinds.filter(|kind| !kind.needs_pictures())
    }

    /// Builds the encoding.
    pub fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        self.settings().build(spec, vb)
    }
}

/// The dtype of constants: f32 for models that compute in half precision.
fn constant_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_positions_has_a_limit() {
        let grid = |side| Some(Grid { n_prefix: 0, rows: side, columns: side });
        let spec = PositionSpec {
            d_model: 1 << 20,
            n_heads: 1 << 10,
            head_dim: 1 << 10,
            max_seq_len: 1 << 20,
            causal: false,
            has_padding: false,
            grid: grid(1 << 12),
        };
        for kind in ["sinusoidal_2d", "rotary_2d"] {
            let message = spec.grid_of(kind, spec.head_dim).unwrap_err().to_string();
            assert!(message.contains("16777216 positions and 1024 columns"), "{message}");
        }
        let small = PositionSpec { grid: grid(1 << 5), ..spec };
        assert!(small.grid_of("rotary_2d", small.head_dim).is_ok());
        let vb = VarBuilder::zeros(DType::F32, &candle_core::Device::Cpu);
        // 8192 positions would be 64 GiB.
        let config = PositionConfig::default_of("sinusoidal").expect("a kind");
        assert!(config.build(&PositionSpec { grid: None, ..small }, &vb).is_ok());
    }
}
