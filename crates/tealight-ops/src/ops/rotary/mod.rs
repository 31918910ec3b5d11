//! Rotary position embedding (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).
//!
//! ```text
//! (a, b) ← (a cos mθ_i − b sin mθ_i,  a sin mθ_i + b cos mθ_i)                        eq. (34)
//! θ_i = base^(−2i/head_dim)
//! ```
//!
//! for position m and pair i of channels. Scores of rotated queries and keys depend on the
//! difference of their positions alone. The gradient is rotated by `−mθ_i`: the transpose of a
//! rotation is its inverse.

mod cpu;
mod cuda;
pub mod reference;

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor, bail};

use crate::autograd::graph::record_linear;
use crate::backend::buffer::{View, stored, tensor};
use crate::backend::choice::{Backend, dispatch, widened};
use crate::backend::cuda as cuda_ops;
use crate::backend::element::Element;
use crate::backend::profile::{Phase, timed};

const NAME: &str = "rotary";

/// Which two channels form the pair that is rotated by angle i.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Channels 2i and 2i + 1: the paper, GPT-J.
    Interleaved,
    /// Channels i and `i + head_dim/2`: `GPT-NeoX`, and Llama in Hugging Face's order.
    Half,
}

/// `cos mθ_i` and `sin mθ_i` for the given positions m: `(len, head_dim/2)` each.
///
/// The paper's `base` is 10 000. Angles are computed in f64, whatever the dtype.
///
/// # Errors
/// If `head_dim` is odd.
pub fn tables(
    positions: Range<usize>,
    head_dim: usize,
    base: f64,
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    if !head_dim.is_multiple_of(2) {
        bail!("rotary embedding of an odd head_dim {head_dim}")
    }
    let shape = (positions.len(), head_dim / 2);
    let theta = |i| base.powf(-2. * i as f64 / head_dim as f64);
    let angles = positions.flat_map(|m| (0..head_dim / 2).map(move |i| m as f64 * theta(i)));
    let (sin, cos): (Vec<f64>, Vec<f64>) = angles.map(f64::sin_cos).unzip();
    let table =
        |values| Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device);
    Ok((table(cos)?, table(sin)?))
}

/// `x (batch, n_heads, seq_len, head_dim)`, `cos` and `sin (seq_len, head_dim/2)` → the shape of
/// `x`
///
/// The tables are constants: their gradient is not computed.
///
/// # Errors
/// If the shapes do not match.
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, layout: Layout) -> Result<Tensor> {
    let (_, _, seq_len, _) = x.dims4()?;
    turned(x, cos, sin, layout, Rows { len: seq_len, repeated: 1, definition: reference::rotate })
}

/// As [`rotate`] of `x (batch, seq_len, n_heads, head_dim)`, the heads last.
///
/// # Errors
/// As its.
pub fn rotate_heads_last(x: &Tensor, cos: &Tensor, sin: &Tensor, layout: Layout) -> Result<Tensor> {
    let (_, seq_len, n_heads, _) = x.dims4()?;
    turned(
        x,
        cos,
        sin,
        layout,
        Rows { len: seq_len, repeated: n_heads, definition: reference::rotate_heads_last },
    )
}

/// The position of row i of x is ⌊i / repeated⌋ mod len.
#[derive(Clone, Copy, Debug)]
struct Rows {
    len: usize,
    repeated: usize,
    definition: Definition,
}

type Definition = fn(&Tensor, &Tensor, &Tensor, Layout) -> Result<Tensor>;

fn turned(x: &Tensor, cos: &Tensor, sin: &Tensor, layout: Layout, rows: Rows) -> Result<Tensor> {
    let head_dim = x.dim(D::Minus1)?;
    let expected = [rows.len, head_dim / 2];
    if !head_dim.is_multiple_of(2) || cos.dims() != expected || sin.dims() != expected {
        bail!("rotation of {:?} with tables {:?} and {:?}", x.shape(), cos.shape(), sin.shape())
    }
    if Backend::of(&[x]) == Backend::Cuda {
        // Angles are not rounded to half precision, even if x is.
        let wide = |table: &Tensor| table.to_dtype(cuda_ops::wide(x.dtype()));
        return cuda::rotate(x, &wide(cos)?, &wide(sin)?, layout, rows);
    }
    dispatch!(match [x, cos, sin] {
        Cpu(T) => on_cpu::<T>(x, cos, sin, layout, rows),
        Cuda | Reference => widened(x, |x| (rows.definition)(x, cos, sin, layout)),
    })
}

fn on_cpu<T: Element>(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    layout: Layout,
    rows: Rows,
) -> Result<Tensor> {
    let (x, cos, sin) = (x.contiguous()?, cos.detach().contiguous()?, sin.detach().contiguous()?);
    // `x` rotated by `direction` (1 or −1) times the angles.
    let rotated = move |x: &Tensor, direction: T| {
        let half = x.dim(D::Minus1)? / 2;
        let (x, cos, sin) = (View::of(x)?, View::of(&cos)?, View::of(&sin)?);
        let tables = cpu::Tables { cos: &cos, sin: &sin, half, repeated: rows.repeated };
        Result::Ok(match layout {
            Layout::Interleaved => cpu::rotate_interleaved(&x, direction, &tables),
            Layout::Half => cpu::rotate_half(&x, direction, &tables),
        })
    };
    let y = timed(NAME, Phase::Forward, || rotated(&x, T::ONE))?;
    record_linear(NAME, &[&x], stored(y, x.shape()), move |gradient| {
        let dx = rotated(&gradient.contiguous()?, -T::ONE)?;
        Ok(vec![Some(tensor(dx, gradient.shape())?)])
    })
}
