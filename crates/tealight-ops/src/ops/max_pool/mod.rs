//! The maximum of each channel in a sliding window.
//!
//! ```text
//! y_(r,c),k = max x_(v,w),k    over the pixels (v, w) under the window
//! dx_(v,w),k = Σ g_(r,c),k     over the windows whose first maximum, row by row, is at (v, w)
//! ```
//!
//! Outside of the picture is nothing: padding is never the maximum. A NaN is.
//!
//! Cost: size² comparisons per result; one byte per result is kept for the backward.

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::record_linear;
use crate::backend::buffer::{View, stored, tensor};
use crate::backend::choice::{dispatch, widened};
use crate::backend::element::Element;
use crate::backend::profile::{Phase, timed};
use crate::ops::patches::cpu::Slide;
pub use crate::ops::window::Window;

const NAME: &str = "max-pool";

/// The largest window: the place of a maximum is a byte.
pub const MAX_SIZE: usize = 16;

/// `x (batch, height, width, channels)` → `(batch, rows, columns, channels)`
///
/// # Errors
/// If `x` has other axes, the window does not fit, or is larger than [`MAX_SIZE`].
pub fn max_pool(x: &Tensor, window: Window) -> Result<Tensor> {
    let slide = Slide::from_pictures(x, window)?;
    if window.size > MAX_SIZE {
        bail!("a max-pool of {0} × {0} pixels: at most {MAX_SIZE} are possible", window.size)
    }
    dispatch!(match [x] {
        Cpu(T) => on_cpu::<T>(x, slide),
        Cuda | Reference => widened(x, |x| reference::max_pool(x, window)),
    })
}

fn on_cpu<T: Element>(x: &Tensor, slide: Slide) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (y, places) = timed(NAME, Phase::Forward, || {
        Result::Ok(cpu::forward::<T>(&slide, &View::from_tensor(&x)?))
    })?;
    let shape = (slide.batch, slide.rows, slide.columns, slide.channels);
    record_linear(NAME, &[&x], stored(y, shape), move |gradient| {
        let dx = cpu::backward::<T>(&slide, &places, &View::from_tensor(gradient)?);
        let shape = (slide.batch, slide.height, slide.width, slide.channels);
        Ok(vec![Some(tensor(dx, shape)?)])
    })
}
