//! A linear map of each patch (Dosovitskiy et al. 2021, eq. (1), <https://arxiv.org/abs/2010.11929>).
//!
//! ```text
//! x_t = E p_t + b,   p_t: the size·size·channels numbers of patch t, row by row, the channels of a pixel together
//! ```
//!
//! With `stride` < `size` the patches overlap. The paper's E counts the numbers of a patch channel by channel; the
//! two orders are a permutation of E's columns.
//!
//! Cost: 2·size²·channels·d_model operations per patch.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::patches::{Window, patches};
use tealight_ops::reshape;

use super::{LayerCost, PatchesSpec, PictureSize};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};
use crate::layers::linear::Linear;

settings! {
    /// `[model.patches] kind = "linear"`
    pub struct Config {
        /// Rows and columns of pixels of a patch. 16 in the paper, for pictures of 224 × 224 pixels.
        pub size: usize = 4,
        /// Pixels from one patch to the next; `size` when absent, so that patches do not overlap.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stride: Option<usize> = None,
    }
}

const SIZE: &str = "model.patches.size";
const STRIDE: &str = "model.patches.stride";

impl Config {
    /// The window that a patch is under.
    pub(crate) fn window(&self) -> Window {
        Window { size: self.size, stride: self.stride.unwrap_or(self.size), padding: 0 }
    }

    pub(super) fn grid(&self, picture: PictureSize) -> BuildResult<[usize; 2]> {
        positive(SIZE, self.size as f64)?;
        positive(STRIDE, self.stride.unwrap_or(1) as f64)?;
        let (window, PictureSize { height, width, .. }) = (self.window(), picture);
        let Window { size, stride, .. } = window;
        if size > height.min(width) {
            let message = format!("`{SIZE}` = {size} is more than pictures of {picture} have");
            return Err(BuildError::config([SIZE], message));
        }
        if stride > size {
            let message = format!(
                "`{STRIDE}` = {stride} is more than `{SIZE}` = {size}: pixels between the patches would be left out"
            );
            return Err(BuildError::config([STRIDE, SIZE], message));
        }
        let covers = |pixels: usize| (pixels - size).is_multiple_of(stride);
        if !covers(height) || !covers(width) {
            return Err(self.does_not_divide(picture));
        }
        Ok([height, width].map(|pixels| (pixels - size) / stride + 1))
    }

    fn does_not_divide(&self, picture: PictureSize) -> BuildError {
        let PictureSize { height, width, .. } = picture;
        let size = self.size;
        if let Some(stride) = self.stride {
            let message = format!(
                "`{STRIDE}` = {stride} leaves out pixels of pictures of {picture}: it must divide height and width \
                 without `{SIZE}`, {} and {}",
                height - size,
                width - size
            );
            return BuildError::config([STRIDE, SIZE], message);
        }
        let divides = |n: &usize| height.is_multiple_of(*n) && width.is_multiple_of(*n);
        let below = (1..size).rev().find(divides);
        let above = (size..=height.min(width)).find(divides);
        let nearest: Vec<String> = below.into_iter().chain(above).map(|n| n.to_string()).collect();
        let message = format!(
            "`{SIZE}` = {size} does not divide pictures of {picture}; the nearest that do: {}",
            nearest.join(", ")
        );
        BuildError::config([SIZE], message)
    }

    fn n_inputs(&self, picture: PictureSize) -> usize {
        self.size * self.size * picture.channels
    }

    pub(super) fn build(
        &self,
        spec: &PatchesSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<LinearPatches> {
        let n_inputs = self.n_inputs(spec.size);
        let weight = spec.init.weight(n_inputs);
        let map = Linear::build([n_inputs, spec.d_model], spec.bias, weight, vb)?;
        Ok(LinearPatches { size: spec.size, window: self.window(), map })
    }

    pub(super) fn costs(&self, picture: PictureSize, d_model: usize) -> Vec<LayerCost> {
        let [rows, columns] = self.grid(picture).unwrap_or_default();
        let (n_patches, n_inputs) = ((rows * columns) as f64, self.n_inputs(picture) as f64);
        let parameters = n_inputs * d_model as f64;
        let flops = 2. * n_patches * parameters;
        vec![LayerCost { parameters, flops, activations: n_patches * n_inputs }]
    }
}

/// E and b.
#[derive(Debug)]
pub(crate) struct LinearPatches {
    size: PictureSize,
    window: Window,
    map: Linear,
}

impl LinearPatches {
    /// `(batch, height, width, channels)` → `(batch, rows·columns, d_model)`
    pub(super) fn forward(&self, pictures: &Tensor) -> Result<Tensor> {
        self.size.check(pictures)?;
        let x = patches(&pictures.to_dtype(self.map.dtype())?, self.window)?; // (batch, rows, columns, inputs)
        let (batch, rows, columns, n_inputs) = x.dims4()?;
        self.map.forward(&reshape(&x, (batch, rows * columns, n_inputs))?)
    }
}
