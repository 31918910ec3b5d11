//! One tensor gates another, through an activation (Dauphin et al. 2017,
//! <https://arxiv.org/abs/1612.08083>; Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
//!
//! ```text
//! y = φ(x) ⊙ v              dx = g ⊙ v ⊙ φ'(x),   dv = g ⊙ φ(x)
//! ```
//!
//! If v has one position per example, it gates all positions, and its gradient is their sum.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened_all};
use crate::backend::element::Element;
use crate::ops::activation::{Elementwise, Function, with_activation};

const NAME: &str = "gate";

/// `x (.., width)`, `v` of the same shape, or `x (batch, len, width)`, `v (batch, 1, width)` → the shape of `x`
///
/// # Errors
/// If the shapes or the data types do not match.
pub fn gated(function: Function, x: &Tensor, v: &Tensor) -> Result<Tensor> {
    widths(x, v)?;
    if x.dtype() != v.dtype() {
        bail!("a gate of {:?} over {:?}: expected the same dtype", x.dtype(), v.dtype())
    }
    dispatch!(match [x, v] {
        Cpu(T) => with_activation!(function, A => on_cpu::<T, A>(x, v)),
        Cuda => cuda::gated(function, x, v),
        Reference => widened_all([x, v], |[x, v]| reference::gated(function, x, v)),
    })
}

fn on_cpu<T: Element, A: Elementwise>(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let widths = widths(x, v)?;
    fused(NAME, [x, v], x.shape(), Saved::Inputs, |[x, v]| {
        let y = cpu::forward::<T, A>(x, v, widths);
        (y, move |[x, v], _, g| cpu::backward::<T, A>(x, v, g, widths))
    })
}

/// How many positions of x one position of v gates, and the width of a position.
fn widths(x: &Tensor, v: &Tensor) -> Result<(usize, usize)> {
    match (x.dims(), v.dims()) {
        (shape @ &[.., width], of_v) if shape == of_v => Ok((1, width)),
        (&[batch, len, width], of_v) if of_v == [batch, 1, width] => Ok((len, width)),
        (shape, of_v) => bail!(
            "a gate of {shape:?} over {of_v:?}: expected the same shape, or (batch, len, width) \
             over (batch, 1, width)"
        ),
    }
}
