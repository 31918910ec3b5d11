//! Rotary positions (Su et al. 2021, eq. (15), <https://arxiv.org/abs/2104.09864>).
//!
//! ```text
//! (q₁, q₂) ← (q₁ cos tθᵢ − q₂ sin tθᵢ, q₁ sin tθᵢ + q₂ cos tθᵢ),   θᵢ = base^(−2i/head_dim)
//! ```
//!
//! Keys are rotated likewise, so that a score depends only on the distance of the positions.
//! [`scaling`](super::scaling) may change the frequencies θᵢ.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::rotary;

use super::scaling::Scaling;
use super::{Position, PositionKind, PositionSpec, constant_dtype};
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};

settings! {
    /// `[model.position] kind = "rotary"`
    pub struct Config {
        /// The longest wavelength is 2π·base.
        pub base: f64 = 10_000.,
        /// Which features form a pair.
        pub layout: Layout = Layout::Interleaved,
        /// `[model.position.scaling]`
        #[serde(skip_serializing_if = "Scaling::is_none")]
        pub scaling: Scaling = Scaling::None,
    }
}

names! {
    /// Which two features are rotated together.
    pub enum Layout as rotary::Layout {
        /// Features 2i and 2i + 1: the paper, GPT-J.
        "interleaved" => Interleaved,
        /// Features i and i + head_dim/2: GPT-NeoX, Llama.
        "half" => Half,
    }
}

/// The most angles whose sines and cosines are computed in advance: 65,536 positions of a head of 128 features.
/// Those of later positions are computed on demand.
const MAX_ANGLES: usize = 1 << 22;
/// The widest head; published ones have up to 256 features.
const MAX_HEAD_DIM: usize = 1 << 16;

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        positive("model.position.base", self.base)?;
        self.scaling.validate()?;
        let head_dim = spec.head_dim;
        let refused = |message| {
            let keys = ["model.position.kind", "model.head_dim", "model.n_heads", "model.d_model"];
            Err(BuildError::config(keys, message))
        };
        if !head_dim.is_multiple_of(2) {
            return refused(format!(
                "rotary positions rotate pairs of features, but head_dim = {head_dim} is odd"
            ));
        }
        if head_dim > MAX_HEAD_DIM {
            return refused(format!(
                "`model.head_dim` = {head_dim} must be at most {MAX_HEAD_DIM} for rotary positions"
            ));
        }
        let frequencies = rotary::frequencies(head_dim, self.base)?;
        let frequencies: Arc<[f64]> =
            frequencies.into_iter().map(|theta| self.scaling.apply(theta)).collect();
        let n_rows = spec.max_seq_len.min(MAX_ANGLES / frequencies.len().max(1));
        let dtype = constant_dtype(vb.dtype());
        let (cos, sin) = rotary::tables(0..n_rows, &frequencies, dtype, vb.device())?;
        let layout = self.layout.into();
        Ok(Position::from_rotary(Rotary { frequencies: Some(frequencies), cos, sin, layout }))
    }
}

/// The cosines and sines of tθᵢ of the first positions, `(positions, head_dim/2)` each, shared by all layers.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// θᵢ, from which the angles of positions beyond the tables are computed; `None` if there are none.
    frequencies: Option<Arc<[f64]>>,
    cos: Tensor,
    sin: Tensor,
    layout: rotary::Layout,
}

impl Rotary {
    /// Rotates position t by the angles in row t of `cos` and `sin (positions, head_dim/2)`, and no other position.
    pub(super) fn of_tables(cos: Tensor, sin: Tensor, layout: Layout) -> Self {
        Self { frequencies: None, cos, sin, layout: layout.into() }
    }

    /// The rotation of vectors of `width` features with the same base, for a `width` of which the heads' is a multiple:
    /// base^(−2i / width) is the angle of every (head_dim / width)-th pair. `None` for other widths, and if the angles
    /// follow no base.
    pub(crate) fn of_width(&self, width: usize) -> Result<Option<Self>> {
        let head_dim = 2 * self.cos.dim(1)?;
        let fits = width > 0 && width.is_multiple_of(2) && head_dim.is_multiple_of(width);
        let Some(frequencies) = self.frequencies.as_ref().filter(|_| fits) else { return Ok(None) };
        let pairs: Vec<u32> = (0..head_dim as u32 / 2).step_by(head_dim / width).collect();
        let at = Tensor::from_vec(pairs.clone(), width / 2, self.cos.device())?;
        Ok(Some(Self {
            frequencies: Some(pairs.iter().map(|&pair| frequencies[pair as usize]).collect()),
            cos: self.cos.index_select(&at, 1)?,
            sin: self.sin.index_select(&at, 1)?,
            layout: self.layout,
        }))
    }

    /// Rotates queries or keys: `(batch, n_heads, seq_len, head_dim)` → the same shape. `start` is the
    /// first position.
    pub fn forward(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let (_batch, _n_heads, seq_len, _head_dim) = x.dims4()?;
        let (cos, sin) = self.tables(start, seq_len)?;
        rotary::rotate(x, &cos, &sin, self.layout)
    }

    /// As [`forward`](Self::forward), for the layout `(batch, seq_len, n_heads, head_dim)`.
    pub fn forward_heads_last(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let (_batch, seq_len, _n_heads, _head_dim) = x.dims4()?;
        let (cos, sin) = self.tables(start, seq_len)?;
        rotary::rotate_heads_last(x, &cos, &sin, self.layout)
    }

    /// Cosines and sines of the first positions, `(max_seq_len, head_dim/2)` each, and the pairs that they rotate.
    pub(crate) fn constants(&self, max_seq_len: usize) -> Result<(Tensor, Tensor, rotary::Layout)> {
        let (cos, sin) = self.tables(0, max_seq_len)?;
        Ok((cos, sin, self.layout))
    }

    /// Cosines and sines of `seq_len` positions from `start` on.
    fn tables(&self, start: usize, seq_len: usize) -> Result<(Tensor, Tensor)> {
        let (Self { frequencies, cos, .. }, end) = (self, start + seq_len);
        if end > cos.dim(0)? {
            let Some(frequencies) = frequencies else {
                bail!("position {} of {} that have angles", end - 1, cos.dim(0)?)
            };
            return rotary::tables(start..end, frequencies, cos.dtype(), cos.device());
        }
        Ok((self.cos.narrow(0, start, seq_len)?, self.sin.narrow(0, start, seq_len)?))
    }
}
