//! Depthwise convolution along the sequence: each head has one kernel, which its features share. Nyströmformer (Xiong
//! et al. 2021, <https://arxiv.org/abs/2102.03902>, §3.3) adds the convolution of the values to the context.
//!
//! ```text
//! y_t  = Σⱼ wⱼ x_{t+j−r},    r = (kernel − 1) / 2, x = 0 outside of the sequence and at padding
//!
//! dx_t = Σⱼ wⱼ g_{t−j+r},    0 at padding
//! dwⱼ  = Σ_t g_t · x_{t+j−r}    over the positions and the batch
//! ```
//!
//! As in deep-learning libraries the kernel is not flipped: w₀ belongs to the earliest position read.
//!
//! Cost: O(len·kernel·head_dim) time per head; no memory besides the results, but with padding one copy of
//! a head per thread.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened};
use crate::ops::padding_mask;
use cpu::Convolution;

const NAME: &str = "depthwise convolution";

/// `x (batch, n_heads, len, head_dim)`, `weight (n_heads, 1, kernel, 1)`,
/// `key_padding_mask (batch, len)` of u8 with 1 = padding → `(batch, n_heads, len, head_dim)`
///
/// Padding is read as zeros and has a gradient of zero.
///
/// # Errors
/// If the shapes do not match, or if the size of the kernel is even.
pub fn depthwise_convolution(
    x: &Tensor,
    weight: &Tensor,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (batch, n_heads, len, head_dim) = x.dims4()?;
    let (weight_heads, one, kernel, width) = weight.dims4()?;
    if [weight_heads, one, width] != [n_heads, 1, 1] || kernel.is_multiple_of(2) {
        bail!(
            "a depthwise convolution of {:?} with a weight of {:?}: expected \
             (batch, n_heads, len, head_dim), (n_heads, 1, kernel, 1) with an odd kernel",
            x.shape(),
            weight.shape()
        )
    }
    padding_mask::check(key_padding_mask, batch, len)?;
    dispatch!(match [x, weight] {
        Cpu(T) => {
            let padding = padding_mask::flags(key_padding_mask)?;
            let convolution = Convolution { n_heads, len, head_dim, padding };
            fused(NAME, [x, weight], x.shape(), Saved::Inputs, |[x, weight]: [&[T]; 2]| {
                let y = convolution.forward(x, weight);
                (y, move |[x, weight], _, g| convolution.backward(x, weight, g))
            })
        }
        Cuda => cuda::convolution(x, weight, key_padding_mask),
        Reference => widened(x, |x| reference::depthwise_convolution(x, weight, key_padding_mask)),
    })
}
