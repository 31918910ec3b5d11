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

/// The paper's θ_i of all `head_dim / 2` pairs; its `base` is 10 000.
///
/// # Errors
/// If `head_dim` is odd.
pub fn frequencies(head_dim: usize, base: f64) -> Result<Vec<f64>> {
    if !head_dim.is_multiple_of(2) {
        bail!("rotary embedding of an odd head_dim {head_dim}")
    }
    Ok((0..head_dim / 2).map(|i| base.powf(-2. * i as f64 / head_dim as f64)).collect())
}

/// `cos mθ_i` and `sin mθ_i` for the given positions m and `frequencies` θ_i: `(len, head_dim/2)` each.
///
/// Angles are computed in f64, whatever the dtype.
pub fn tables(
    positions: Range<usize>,
    frequencies: &[f64],
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let shape = (positions.len(), frequencies.len());
    let angles = positions.flat_map(|m| frequencies.iter().map(move |theta| m as f64 * theta));
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
    let (_, _, len, _) = x.dims4()?;
    Rotation::new(cos, sin, layout, len, 1).apply(x, reference::rotate)
}

/// As [`rotate`] of `x (batch, seq_len, n_heads, head_dim)`, the heads last.
///
/// # Errors
/// As [`rotate`].
pub fn rotate_heads_last(x: &Tensor, cos: &Tensor, sin: &Tensor, layout: Layout) -> Result<Tensor> {
    let (_, len, n_heads, _) = x.dims4()?;
    Rotation::new(cos, sin, layout, len, n_heads).apply(x, reference::rotate_heads_last)
}

type Definition = fn(&Tensor, &Tensor, &Tensor, Layout) -> Result<Tensor>;

/// A rotation of rows: the position of row i is ⌊i / repeated⌋ mod len.
struct Rotation {
    /// `(len, head_dim/2)`
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    len: usize,
    repeated: usize,
}

impl Rotation {
    fn new(cos: &Tensor, sin: &Tensor, layout: Layout, len: usize, repeated: usize) -> Self {
        Self { cos: cos.detach(), sin: sin.detach(), layout, len, repeated }
    }

    fn apply(self, x: &Tensor, definition: Definition) -> Result<Tensor> {
        let Self { cos, sin, layout, len, .. } = &self;
        let head_dim = x.dim(D::Minus1)?;
        let expected = [*len, head_dim / 2];
        if !head_dim.is_multiple_of(2) || cos.dims() != expected || sin.dims() != expected {
            bail!(
                "rotation of {:?} with tables {:?} and {:?}: expected an even head_dim, and tables \
                 (seq_len, head_dim/2) = {expected:?}",
                x.shape(),
                cos.shape(),
                sin.shape()
            )
        }
        if Backend::from_operands(&[x]) == Backend::Cuda {
            return cuda::rotate(x, self);
        }
        dispatch!(match [x, cos, sin] {
            Cpu(T) => on_cpu::<T>(x, self),
            Cuda | Reference => widened(x, |x| definition(x, cos, sin, *layout)),
        })
    }

    /// With contiguous tables in a dtype.
    fn tables_in(self, dtype: DType) -> Result<Self> {
        let [cos, sin] = [&self.cos, &self.sin].map(|table| table.to_dtype(dtype)?.contiguous());
        Ok(Self { cos: cos?, sin: sin?, ..self })
    }
}

fn on_cpu<T: Element>(x: &Tensor, rotation: Rotation) -> Result<Tensor> {
    let (x, rotation) = (x.contiguous()?, rotation.tables_in(T::DTYPE)?);
    // `x` rotated by `direction` (1 or −1) times the angles.
    let rotated = move |x: &Tensor, direction: T| {
        let half = x.dim(D::Minus1)? / 2;
        let (x, cos, sin) = (
            View::from_tensor(x)?,
            View::from_tensor(&rotation.cos)?,
            View::from_tensor(&rotation.sin)?,
        );
        let tables = cpu::Tables { cos: &cos, sin: &sin, half, repeated: rotation.repeated };
        Result::Ok(match rotation.layout {
            Layout::Interleaved => cpu::rotate_interleaved(&x, direction, &tables),
            Layout::Half => cpu::rotate_half(&x, direction, &tables),
        })
    };
    let y = timed(NAME, Phase::Forward, || rotated(&x, T::ONE))?;
    record_linear(NAME, &[&x], stored(y, x.shape()), move |gradient| {
        let dx = rotated(gradient, -T::ONE)?;
        Ok(vec![Some(tensor(dx, gradient.shape())?)])
    })
}
