//! The residual connection of a sub-layer (He et al. 2015, <https://arxiv.org/abs/1512.03385>), with
//! dropout of the sub-layer's output (Vaswani et al. 2017, §5.4, <https://arxiv.org/abs/1706.03762>).
//!
//! ```text
//! y = x + Dropout(change)              dx = g,   dchange = Dropout(g), with the same mask
//! ```
//!
//! Cost: one pass forward; one backward with dropout, none without.

mod cuda;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::record_linear;
use crate::backend::buffer::{View, stored, tensor};
use crate::backend::choice::{dispatch, widened_all};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, by_blocks};
use crate::backend::profile::{Phase, timed};
use crate::ops::dropout::{Draw, Dropout};

const NAME: &str = "residual";

/// `x` and `change` of one shape → the same shape.
///
/// # Errors
/// If shapes or dtypes differ, or the rate is not in [0, 1).
pub fn residual(x: &Tensor, change: &Tensor, draw: Option<Draw>) -> Result<Tensor> {
    if (x.shape(), x.dtype()) != (change.shape(), change.dtype()) {
        let of = |x: &Tensor| (x.shape().clone(), x.dtype());
        bail!(
            "the residual sum of {:?} and {:?}: expected the same shape and dtype",
            of(x),
            of(change)
        )
    }
    draw.map_or(Ok(()), Draw::check)?;
    dispatch!(match [x, change] {
        Cpu(T) => on_cpu::<T>(x, change, draw),
        Cuda => cuda::residual(x, change, draw),
        Reference => widened_all([x, change], |[x, change]| reference::residual(x, change, draw)),
    })
}

fn on_cpu<T: Element>(x: &Tensor, change: &Tensor, draw: Option<Draw>) -> Result<Tensor> {
    let (x, change) = (x.contiguous()?, change.contiguous()?);
    let dropout = draw.map(Dropout::<T>::new);
    let sum = timed(NAME, Phase::Forward, || {
        let (x, change) = (View::from_tensor(&x)?, View::from_tensor(&change)?);
        Result::Ok(match &dropout {
            Some(dropout) => dropout.apply(&change, Some(&x)),
            None => sum(&x, &change),
        })
    })?;
    record_linear(NAME, &[&x, &change], stored(sum, x.shape()), move |gradient| {
        let dchange = match dropout {
            Some(dropout) => {
                tensor(dropout.apply(&View::from_tensor(gradient)?, None), gradient.shape())?
            }
            None => gradient.clone(),
        };
        Ok(vec![Some(gradient.clone()), Some(dchange)])
    })
}

fn sum<T: Element>(x: &[T], change: &[T]) -> Vec<T> {
    let len = block_len(1);
    by_blocks(
        (x, len),
        (change, len),
        #[inline(always)]
        |sum, x, change| {
            for (sum, (&x, &change)) in sum.iter_mut().zip(x.iter().zip(change)) {
                *sum = x + change;
            }
        },
    )
}
