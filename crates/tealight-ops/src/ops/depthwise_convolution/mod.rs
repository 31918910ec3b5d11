//! Depthwise convolution along the sequence: every head has a kernel of its own, shared by the
//! head's features. Nyströmformer (Xiong et al. 2021, <https://arxiv.org/abs/2102.03902>, §3.3) adds
//! it, over the values, to the context.
//!
//! ```text
//! y_t  = Σⱼ wⱼ x_{t+j−r},    r = (kernel − 1) / 2, x = 0 outside of the sequence and at padding
//!
//! dx_t = Σⱼ wⱼ g_{t−j+r},    0 at padding
//! dwⱼ  = Σ_t g_t · x_{t+j−r}    over the positions and the batch
//! ```
//!
//! As in every deep-learning library the kernel is not turned around: w₀ belongs to the earliest of
//! the positions that are read.
//!
//! Cost: O(len·kernel·head_dim) time per head; besides the results no memory but a copy of the head
//! that a thread works on, if there is padding.

mod cpu;
mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::autograd::graph::apply2;
use crate::backend::buffer::{View, slice, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::ops::padding_mask;

const NAME: &str = "depthwise convolution";

/// `x (batch, n_heads, len, head_dim)`, `weight (n_heads, 1, kernel, 1)`,
/// `key_padding_mask (batch, len)` of u8 with 1 = padding → `(batch, n_heads, len, head_dim)`
///
/// What stands at padding is read as zeros, and has a gradient of zero.
///
/// # Errors
/// If the shapes do not match, or if the kernel is even: it would have no middle.
pub fn depthwise_convolution(
    x: &Tensor,
    weight: &Tensor,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (batch, n_heads, len, _) = x.dims4()?;
    let (weight_heads, one, kernel, width) = weight.dims4()?;
    if [weight_heads, one, width] != [n_heads, 1, 1] || kernel.is_multiple_of(2) {
        bail!("a depthwise convolution of {:?} with a weight of {:?}", x.shape(), weight.shape())
    }
    padding_mask::check(key_padding_mask, batch, len)?;
    match Backend::of(&[x, weight]) {
        Backend::F32 => fused::<f32>(x, weight, key_padding_mask),
        Backend::F64 => fused::<f64>(x, weight, key_padding_mask),
        Backend::Cuda => cuda::convolution(x, weight, key_padding_mask),
        Backend::Reference => {
            widened(x, |x| reference::depthwise_convolution(x, weight, key_padding_mask))
        }
    }
}

fn fused<T: Element>(x: &Tensor, weight: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (_, n_heads, len, head_dim) = x.dims4()?;
    let is_padding = mask.map(padding_mask::rows).transpose()?;
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    apply2(
        &x,
        &weight,
        Convolution::<T> { n_heads, len, head_dim, is_padding, element: PhantomData },
    )
}

struct Convolution<T> {
    n_heads: usize,
    len: usize,
    head_dim: usize,
    /// By row of the batch, then by position.
    is_padding: Option<Vec<Vec<bool>>>,
    element: PhantomData<T>,
}

impl<T: Element> CustomOp2 for Convolution<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (slice(x, x_layout)?, slice(weight, weight_layout)?);
        Ok(stored(cpu::forward(self, x, weight), x_layout.shape()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let (xs, weights, gradient) = (View::of(x)?, View::of(weight)?, View::of(&gradient)?);
        let (dx, dweight) = cpu::backward(self, &xs, &weights, &gradient);
        Ok((Some(tensor(dx, x.shape())?), Some(tensor(dweight, weight.shape())?)))
    }
}
