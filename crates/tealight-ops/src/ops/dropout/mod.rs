//! Dropout (Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>).
//!
//! ```text
//! y_i = x_i / (1 − rate)  if u_i ≥ rate,  else 0          dx_i = g_i / (1 − rate) or 0, alike
//! ```
//!
//! "Inverted": the scale is applied in training, where the paper scales the weights at test time,
//! so that evaluation is the identity. `u_i` is word i mod 4 of block ⌊i/4⌋ of the stream, as a
//! fraction of 2³²: the mask is a function of the stream alone, whatever the device, the dtype or
//! the number of threads. Nothing is kept for the backward, which draws the same mask again.

mod cpu;
pub(crate) mod cuda;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened};
use crate::rng::Stream;
pub(crate) use cpu::{Dropout, scaled_or_zero};

/// One draw of a dropout mask. It says which elements are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The probability, in [0, 1).
    pub rate: f64,
    /// The random numbers.
    pub stream: Stream,
}

impl Draw {
    pub(crate) fn check(self) -> Result<()> {
        if !(0. ..1.).contains(&self.rate) {
            bail!("dropout rate {} is not in [0, 1)", self.rate)
        }
        Ok(())
    }
}

/// Drops elements of `x`, of any shape, with probability `rate`. A rate of 0 is the identity.
///
/// Two calls with one stream drop the same elements: fork it for every layer and step.
///
/// # Errors
/// If `rate` is not in [0, 1).
pub fn dropout(x: &Tensor, rate: f64, stream: Stream) -> Result<Tensor> {
    let draw = Draw { rate, stream };
    draw.check()?;
    if rate == 0. {
        return Ok(x.clone());
    }
    dispatch!(match [x] {
        Cpu(T) => fused("dropout", [x], x.shape(), Saved::Nothing, |[x]| {
            let dropout = Dropout::<T>::new(draw);
            (dropout.apply(x, None), move |_, _, g| [dropout.apply(g, None)])
        }),
        Cuda => cuda::dropout(x, draw),
        Reference => widened(x, |x| reference::dropout(x, rate, stream)),
    })
}

/// The factor of element `i`: 0 or 1 / (1 − rate).
pub(crate) fn factor(Draw { rate, stream }: Draw, i: u64) -> f64 {
    let is_kept = stream.block(i / 4)[(i % 4) as usize] >= threshold(rate);
    if is_kept { 1. / (1. - rate) } else { 0. }
}

/// The smallest random word whose element is kept: ⌈rate · 2³²⌉.
pub(crate) fn threshold(rate: f64) -> u32 {
    (rate * 2_f64.powi(32)).ceil() as u32
}
