//! The patches of pictures: the numbers under each place of a sliding window, as rows of a matrix.
//!
//! ```text
//! y_(r,c),(i,j,k) = x_(r·stride + i − padding, c·stride + j − padding),k      0 outside of the picture
//! dx_(v,w),k      = Σ g_(r,c),(i,j,k)   over all places (r, c, i, j) that read pixel (v, w)
//! ```
//!
//! A linear map of the patches is the patch embedding of a Vision Transformer (Dosovitskiy et al. 2021,
//! <https://arxiv.org/abs/2010.11929>), and also a [`convolution`](mod@crate::convolution), which computes them block
//! by block.
//!
//! Cost: one copy; patches that overlap repeat numbers.

pub(crate) mod cpu;
pub mod reference;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::dispatch;
pub use crate::ops::window::Window;
use cpu::Slide;

const NAME: &str = "patches";

/// `x (batch, height, width, channels)` → `(batch, rows, columns, size·size·channels)`
///
/// # Errors
/// If `x` has other axes, or the window does not fit.
pub fn patches(x: &Tensor, window: Window) -> Result<Tensor> {
    let slide = Slide::from_pictures(x, window)?;
    dispatch!(match [x] {
        Cpu(T) => fused(NAME, [x], slide.shape(), Saved::Nothing, |[x]: [&[T]; 1]| {
            (slide.patches(x), move |_, _, g| [slide.sums(g)])
        }),
        Cuda | Reference => reference::patches(x, window),
    })
}
