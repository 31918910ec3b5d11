//! How a position reads from the others: one file per kind.
//!
//! The seam is the whole layer, projections included. A kind is a file with a `Config`, a `build`
//! and an `impl Attention`, and three adjacent lines here: `pub mod`, variant, match arm.

pub mod projection;
pub mod softmax;

use std::fmt;

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::linear::Bias;
use crate::position::AttentionNeeds;
use crate::{BuildResult, Initializer, Mask, Mode, choice};

choice! {
    /// `[model.attention]`: how a position reads from the others.
    pub enum AttentionConfig {
        /// Multi-head scaled dot-product attention, O(seq_len²) (Vaswani et al. 2017).
        "softmax" => Softmax(softmax::Config),
    }
}

impl Default for AttentionConfig {
    fn default() -> Self {
        Self::Softmax(softmax::Config::default())
    }
}

impl AttentionConfig {
    /// Builds one layer, or says by key why it cannot be built.
    pub fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        Ok(match self {
            Self::Softmax(config) => Box::new(config.build(spec, vb)?),
        })
    }
}

/// A built attention layer.
pub trait Attention: fmt::Debug + Send + Sync {
    /// `x (batch, q_len, d_model)` → `(batch, q_len, d_model)`
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor>;

    /// What each position read from: `(batch, n_maps, q_len, kv_len)`, for the heat maps.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor>;

    /// Multiply-adds (counted as two) of one sequence's forward pass, beyond the linear maps.
    fn flops(&self, q_len: usize, kv_len: usize) -> u64;
}

/// What the surrounding model decides for the layer.
#[derive(Clone, Debug)]
pub struct AttentionSpec<'a> {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of heads; divides `d_model`.
    pub n_heads: usize,
    /// The longest sequence.
    pub max_seq_len: usize,
    /// Which positions a layer reads.
    pub reads: Reads,
    /// Dropout on the attention weights.
    pub dropout: f64,
    /// Whether the projections add a bias.
    pub bias: Bias,
    /// What the position scheme asks of the layer.
    pub position: AttentionNeeds,
    /// How the weights begin.
    pub init: &'a Initializer,
}

/// Which positions a layer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// All positions of its own sequence.
    Everything,
    /// Position i reads j ≤ i.
    Past,
    /// All positions of another sequence, the memory.
    Memory,
}

/// What varies from call to call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// The sequence that asks, `(batch, q_len, d_model)`.
    pub x: &'a Tensor,
    /// The sequence that is read, `(batch, kv_len, d_model)`, exactly where the layer was built
    /// with [`Reads::Memory`].
    pub memory: Option<&'a Tensor>,
    /// Padding and additive masks on what is read.
    pub mask: &'a Mask,
    /// Training or evaluation.
    pub mode: Mode,
}

impl<'a> AttentionInput<'a> {
    /// The sequence that a layer built with `reads` reads: the memory, or `x` itself. Every kind
    /// comes here.
    ///
    /// # Errors
    /// If there is no memory where one is read, or one where it would be left unread.
    pub fn source(&self, reads: Reads) -> Result<&'a Tensor> {
        match (reads, self.memory) {
            (Reads::Memory, Some(memory)) => Ok(memory),
            (Reads::Everything | Reads::Past, None) => Ok(self.x),
            (Reads::Memory, None) => bail!("an attention that reads a memory was given no memory"),
            (Reads::Everything | Reads::Past, Some(_)) => {
                bail!("an attention that reads its own sequence was given a memory")
            }
        }
    }
}
