//! Convolutions with max-pooling: the tokenizer of the Compact Convolutional Transformer (Hassani et al. 2021,
//! eq. (2), <https://arxiv.org/abs/2104.05704>).
//!
//! ```text
//! x_0 = MaxPool(ReLU(Conv(x)))        once per layer; all but the last have `channels` outputs, the last d_model
//! ```
//!
//! The pictures are padded by (size − 1)/2 on each side, with zeros for a convolution and nothing for the maximum. The
//! maximum is taken before the ReLU here: the two commute, and a ReLU of fewer numbers is cheaper. The convolutions
//! have a bias if `model.bias` says so; the authors' code has none. Weights begin as N(0, √(2/inputs)), as in the
//! authors' code (He et al. 2015, <https://arxiv.org/abs/1502.01852>), unless `model.init` is `normal`.
//!
//! Cost: 2·kernel²·inputs·outputs operations per pixel of each convolution.

use candle_core::{Result, Tensor, bail};
use candle_nn::{VarBuilder, init};
use tealight_ops::activation::relu;
use tealight_ops::convolution::{Steps, convolution};
use tealight_ops::max_pool::{MAX_SIZE, max_pool};
use tealight_ops::patches::Window;
use tealight_ops::reshape;

use super::{LayerCost, PatchesSpec, PictureSize};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};
use crate::layers::linear::Bias;

settings! {
    /// `[model.patches] kind = "convolution"`
    pub struct Config {
        /// Number of convolutions: 1 or 2 in the paper.
        pub layers: usize = 1,
        /// Outputs of all convolutions but the last, which has d_model.
        pub channels: usize = 64,
        /// Rows and columns of a kernel.
        pub kernel: usize = 3,
        /// Pixels from one place of a kernel to the next.
        pub stride: usize = 1,
        /// Rows and columns of the window of the maximum; 1 for none.
        pub pool: usize = 3,
        /// Pixels from one window of the maximum to the next.
        pub pool_stride: usize = 2,
    }
}

/// The most convolutions: each has two windows, and a picture has few sizes.
const MAX_LAYERS: usize = 16;

impl Config {
    /// The windows of each convolution and of the maximum after it.
    pub(crate) fn windows(&self) -> [Window; 2] {
        let &Self { kernel, stride, pool, pool_stride, .. } = self;
        [(kernel, stride), (pool, pool_stride)].map(|(size, stride)| Window {
            size,
            stride,
            padding: size.saturating_sub(1) / 2,
        })
    }

    /// The sizes after each convolution and after each maximum.
    fn sizes(&self, picture: PictureSize) -> BuildResult<Vec<[[usize; 2]; 2]>> {
        self.validate()?;
        let mut size = [picture.height, picture.width];
        let mut next = |window: Window, [key, other]: [&str; 2]| {
            let [height, width] = size.map(|len| window.count(len).ok());
            let (Some(height), Some(width)) = (height, width) else {
                let message = format!(
                    "`{key}` = {} does not fit the {} × {} pixels that a picture of {picture} has there",
                    window.size, size[0], size[1]
                );
                return Err(BuildError::config([key, other, "model.patches.layers"], message));
            };
            size = [height, width];
            Ok(size)
        };
        let [kernel, pool] = self.windows();
        let keys = [
            ["model.patches.kernel", "model.patches.stride"],
            ["model.patches.pool", "model.patches.pool_stride"],
        ];
        (0..self.layers).map(|_| Ok([next(kernel, keys[0])?, next(pool, keys[1])?])).collect()
    }

    fn validate(&self) -> BuildResult<()> {
        for (key, value) in [
            ("model.patches.layers", self.layers),
            ("model.patches.channels", self.channels),
            ("model.patches.kernel", self.kernel),
            ("model.patches.stride", self.stride),
            ("model.patches.pool", self.pool),
            ("model.patches.pool_stride", self.pool_stride),
        ] {
            positive(key, value as f64)?;
        }
        for (key, value, most) in [
            ("model.patches.layers", self.layers, MAX_LAYERS),
            ("model.patches.pool", self.pool, MAX_SIZE),
        ] {
            if value > most {
                let message = format!("`{key}` = {value} must be at most {most}");
                return Err(BuildError::config([key], message));
            }
        }
        Ok(())
    }

    pub(super) fn grid(&self, picture: PictureSize) -> BuildResult<[usize; 2]> {
        let sizes = self.sizes(picture)?;
        Ok(sizes.last().map_or([0; 2], |[_, pooled]| *pooled))
    }

    /// Inputs and outputs of convolution `i`.
    fn channels(&self, i: usize, picture: PictureSize, d_model: usize) -> [usize; 2] {
        let inputs = if i == 0 { picture.channels } else { self.channels };
        [inputs, if i + 1 == self.layers { d_model } else { self.channels }]
    }

    pub(super) fn build(
        &self,
        spec: &PatchesSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<ConvolutionPatches> {
        let layer = |i: usize| {
            let [inputs, outputs] = self.channels(i, spec.size, spec.d_model);
            let (shape, vb) = ((outputs, self.kernel, self.kernel, inputs), vb.pp(i));
            let values = spec.init.before_relu(self.kernel * self.kernel * inputs);
            let bias = (spec.bias == Bias::With)
                .then(|| vb.get_with_hints(outputs, "bias", init::ZERO))
                .transpose()?;
            BuildResult::Ok(Layer { weight: vb.get_with_hints(shape, "weight", values)?, bias })
        };
        let layers = (0..self.layers).map(layer).collect::<BuildResult<_>>()?;
        let [Window { stride, padding, .. }, pool] = self.windows();
        let steps = Steps { stride, padding };
        Ok(ConvolutionPatches { size: spec.size, steps, pool, layers })
    }

    pub(super) fn costs(&self, picture: PictureSize, d_model: usize) -> Vec<LayerCost> {
        let sizes = self.sizes(picture).unwrap_or_default();
        let mut read = (picture.height * picture.width) as f64;
        let layer = |(i, [convolved, pooled]): (usize, [[usize; 2]; 2])| {
            let [inputs, outputs] =
                self.channels(i, picture, d_model).map(|channels| channels as f64);
            let area = |[height, width]: [usize; 2]| (height * width) as f64;
            let parameters = (self.kernel * self.kernel) as f64 * inputs * outputs;
            let flops = 2. * area(convolved) * parameters;
            // The input of the convolution, the places of the maxima (a byte each) and the output of the ReLU.
            let activations = read * inputs + 1.25 * area(pooled) * outputs;
            read = area(pooled);
            LayerCost { parameters, flops, activations }
        };
        sizes.into_iter().enumerate().map(layer).collect()
    }
}

/// The convolutions, and the maximum after each.
#[derive(Debug)]
pub(crate) struct ConvolutionPatches {
    size: PictureSize,
    steps: Steps,
    pool: Window,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    /// `(outputs, kernel, kernel, inputs)`
    weight: Tensor,
    /// `(outputs)`
    bias: Option<Tensor>,
}

impl ConvolutionPatches {
    /// `(batch, height, width, channels)` → `(batch, rows·columns, d_model)`
    pub(super) fn forward(&self, pictures: &Tensor) -> Result<Tensor> {
        let Some(first) = self.layers.first() else { bail!("patches without a convolution") };
        self.size.check(pictures)?;
        let mut x = pictures.to_dtype(first.weight.dtype())?;
        for Layer { weight, bias } in &self.layers {
            let y = convolution(&x, weight, bias.as_ref(), self.steps)?;
            x = relu(&max_pool(&y, self.pool)?)?;
        }
        let (batch, rows, columns, d_model) = x.dims4()?;
        reshape(&x, (batch, rows * columns, d_model))
    }
}
