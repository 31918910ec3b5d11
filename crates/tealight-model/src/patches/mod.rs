//! Pictures as sequences of tokens: one file per kind.
//!
//! ```text
//! picture (height, width, channels) → (rows, columns) vectors of d_model → rows·columns tokens, row by row
//! ```
//!
//! Dosovitskiy et al. 2021, <https://arxiv.org/abs/2010.11929>; Hassani et al. 2021,
//! <https://arxiv.org/abs/2104.05704>. Each kind states its formula and its cost.

pub mod convolution;
mod grid;
pub mod interpolation;
pub mod linear;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

pub use grid::{Grid, PictureSize};

use crate::choice::choice;
use crate::error::{BuildError, BuildResult};
use crate::layers::linear::Bias;
use crate::params::init::Initializer;

choice! {
    /// `[model.patches]`: how a picture becomes a sequence of tokens.
    pub enum PatchesConfig = "linear" {
        /// A linear map of each patch (Dosovitskiy et al. 2021).
        "linear" => Linear(linear::Config),
        /// Convolutions with max-pooling (Hassani et al. 2021).
        "convolution" => Convolution(convolution::Config),
    }
}

/// What the data and the model determine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PatchesSpec<'a> {
    pub(crate) size: PictureSize,
    pub(crate) d_model: usize,
    pub(crate) bias: Bias,
    pub(crate) init: &'a Initializer,
}

/// The layers that make tokens of a picture.
#[derive(Debug)]
pub(crate) enum Patches {
    Linear(linear::LinearPatches),
    Convolution(convolution::ConvolutionPatches),
}

impl PatchesConfig {
    /// The rows and columns of patches in a picture.
    ///
    /// # Errors
    /// If the patches do not fit the picture, with the sizes or the rule that would.
    pub fn grid(&self, size: PictureSize) -> BuildResult<[usize; 2]> {
        let PictureSize { height, width, channels } = size;
        if height.min(width).min(channels) == 0 {
            let message = format!("pictures of {size} with {channels} channels have no patches");
            return Err(BuildError::config(["model.patches.kind"], message));
        }
        match self {
            Self::Linear(config) => config.grid(size),
            Self::Convolution(config) => config.grid(size),
        }
    }

    pub(crate) fn build(
        &self,
        spec: &PatchesSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Patches> {
        self.grid(spec.size)?;
        Ok(match self {
            Self::Linear(config) => Patches::Linear(config.build(spec, vb)?),
            Self::Convolution(config) => Patches::Convolution(config.build(spec, vb)?),
        })
    }

    /// The layers, as their cost is counted.
    pub(crate) fn costs(&self, size: PictureSize, d_model: usize) -> Vec<LayerCost> {
        match self {
            Self::Linear(config) => config.costs(size, d_model),
            Self::Convolution(config) => config.costs(size, d_model),
        }
    }
}

/// The cost of one layer of the patches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LayerCost {
    /// Scalars in the weight.
    pub(crate) parameters: f64,
    /// Operations for one picture; a multiply-add counts as two.
    pub(crate) flops: f64,
    /// Numbers kept for the backward pass of one picture.
    pub(crate) activations: f64,
}

impl Patches {
    /// `(batch, height, width, channels)` → `(batch, rows·columns, d_model)`
    pub(crate) fn forward(&self, pictures: &Tensor) -> Result<Tensor> {
        match self {
            Self::Linear(patches) => patches.forward(pictures),
            Self::Convolution(patches) => patches.forward(pictures),
        }
    }
}
