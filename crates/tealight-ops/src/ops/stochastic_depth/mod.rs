//! The residual connection of a sub-layer that is left out for some examples of a batch: stochastic depth (Huang et
//! al. 2016, eq. (2), <https://arxiv.org/abs/1603.09382>).
//!
//! ```text
//! y_b = x_b + k_b·change_b,   k_b = 1 / (1 − rate)  if u_b ≥ rate,  else 0          dx_b = g_b,   dchange_b = k_b·g_b
//! ```
//!
//! The paper leaves a sub-layer out for the whole batch and scales it at test time; here each example is drawn, and
//! the scale is applied in training, as in [`dropout`](mod@crate::dropout). u_b is the number that dropout of one
//! element per example draws.
//!
//! Cost: one pass forward, one backward.

pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::record_linear;
use crate::backend::buffer::{View, stored, tensor, unwritten};
use crate::backend::choice::{dispatch, widened_all};
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, block_len, run};
use crate::backend::profile::{Phase, timed};
use crate::ops::dropout::{Draw, dropout, factor};

const NAME: &str = "stochastic depth";

/// `x` and `change (batch, ..)` of one shape → the same shape.
///
/// # Errors
/// If shapes or dtypes differ, or the rate is not in [0, 1).
pub fn stochastic_depth(x: &Tensor, change: &Tensor, draw: Draw) -> Result<Tensor> {
    if (x.shape(), x.dtype()) != (change.shape(), change.dtype()) || x.rank() == 0 {
        let of = |x: &Tensor| (x.shape().clone(), x.dtype());
        bail!(
            "stochastic depth of {:?} and {:?}: expected the same shape (batch, ..) and dtype",
            of(x),
            of(change)
        )
    }
    draw.check()?;
    dispatch!(match [x, change] {
        Cpu(T) => on_cpu::<T>(x, change, draw),
        Cuda => {
            // Drawn by a kernel, so that a graph that is replayed draws anew.
            let factors = dropout(&reference::ones(x)?, draw.rate, draw.stream)?;
            reference::with_factors(x, change, &factors)
        }
        Reference =>
            widened_all([x, change], |[x, change]| { reference::stochastic_depth(x, change, draw) }),
    })
}

fn on_cpu<T: Element>(x: &Tensor, change: &Tensor, draw: Draw) -> Result<Tensor> {
    let (x, change) = (x.contiguous()?, change.contiguous()?);
    let batch = x.dim(0)?;
    let per_example = x.elem_count() / batch;
    let factors: Vec<T> = (0..batch as u64).map(|i| T::from_f64(factor(draw, i))).collect();
    let y = timed(NAME, Phase::Forward, || {
        Result::Ok(scaled(
            Some(&*View::from_tensor(&x)?),
            &View::from_tensor(&change)?,
            &factors,
            per_example,
        ))
    })?;
    record_linear(NAME, &[&x, &change], stored(y, x.shape()), move |gradient| {
        let dchange = scaled(None, &View::from_tensor(gradient)?, &factors, per_example);
        Ok(vec![Some(gradient.clone()), Some(tensor(dchange, gradient.shape())?)])
    })
}

/// base + k·x, with the factor k of each example; 0 for a factor of 0, even of NaN.
fn scaled<T: Element>(base: Option<&[T]>, x: &[T], factors: &[T], per_example: usize) -> Vec<T> {
    let mut y = unwritten(x.len());
    // Blocks end where examples end.
    let len = block_len(1).min(per_example);
    let blocks = y.chunks_mut(per_example).enumerate().flat_map(|(i, y)| {
        y.chunks_mut(len).enumerate().map(move |(block, y)| (i, i * per_example + block * len, y))
    });
    run::<T, _, _>(
        x.len(),
        blocks,
        #[inline(always)]
        |(i, start, y)| {
            let (y, k): (&mut [T], T) = (y, factors[i]);
            match base {
                Some(base) => y.copy_from_slice(&base[start..start + y.len()]),
                None => y.fill(T::ZERO),
            }
            if k != T::ZERO {
                add_scaled(y, &x[start..start + y.len()], k);
            }
        },
    );
    y
}
