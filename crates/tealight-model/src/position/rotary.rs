//! Rotary positions (Su et al. 2021, eq. (15), <https://arxiv.org/abs/2104.09864>).
//!
//! ```text
//! (q₁, q₂) ← (q₁ cos tθᵢ − q₂ sin tθᵢ, q₁ sin tθᵢ + q₂ cos tθᵢ),   θᵢ = base^(−2i/head_dim)
//! ```
//!
//! Keys are rotated likewise, so that a score depends only on the distance of the positions.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::rotary;

use super::{PositionSpec, constant_dtype};
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

impl Config {
    pub(super) fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Rotary> {
        positive("model.position.base", self.base)?;
        let head_dim = spec.head_dim;
        if !head_dim.is_multiple_of(2) {
            return Err(BuildError::config(
                ["model.position.kind", "model.head_dim", "model.n_heads", "model.d_model"],
                format!(
                    "rotary positions rotate pairs of features, but head_dim = {head_dim} is odd"
                ),
            ));
        }
        let (cos, sin) = rotary::tables(
            0..spec.max_seq_len,
            head_dim,
            self.base,
            constant_dtype(vb.dtype()),
            vb.device(),
        )?;
        Ok(Rotary { cos, sin, layout: self.layout.into() })
    }
}

/// The cosines and sines of tθᵢ, `(max_seq_len, head_dim/2)` each, shared by all layers.
#[derive(Clone, Debug)]
pub struct Rotary {
    cos: Tensor,
    sin: Tensor,
    layout: rotary::Layout,
}

impl Rotary {
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

    /// Cosines and sines of all positions, `(max_seq_len, head_dim/2)` each, and the pairs that they rotate.
    pub(crate) fn constants(&self) -> (&Tensor, &Tensor, rotary::Layout) {
        (&self.cos, &self.sin, self.layout)
    }

    /// Cosines and sines of `seq_len` positions from `start` on.
    fn tables(&self, start: usize, seq_len: usize) -> Result<(Tensor, Tensor)> {
        Ok((self.cos.narrow(0, start, seq_len)?, self.sin.narrow(0, start, seq_len)?))
    }
}
