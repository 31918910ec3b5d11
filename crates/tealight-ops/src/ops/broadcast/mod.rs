//! Sums and products with one tensor for every example, as position embeddings are added, and with one number for every
//! row, as heads are weighed.
//!
//! ```text
//! y_b = x_b + v              dx = g,         dv = Σ_b g_b
//! y_b = x_b ⊙ v              dx_b = g_b ⊙ v, dv = Σ_b x_b ⊙ g_b
//! y_r = s_r x_r              dx_r = s_r g_r, ds_r = x_r · g_r, summed over the rows that share the number
//! ```

pub(crate) mod cuda;
mod product;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::record_linear;
use crate::backend::buffer::{View, stored, tensor, unwritten};
use crate::backend::choice::{dispatch, widened_all};
use crate::backend::element::Element;
use crate::backend::parallel::{by_rows, run};
use crate::backend::profile::{Phase, timed};

pub use product::{broadcast_mul, scale_rows};

const NAME: &str = "broadcast add";

/// `x (.., v's axes)`, `v` → the shape of `x`
///
/// # Errors
/// If the last axes of `x` differ from the axes of `v`, or the dtypes differ.
pub fn broadcast_add(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    agree("the sum", x, v)?;
    dispatch!(match [x, v] {
        Cpu(T) => on_cpu::<T>(x, v),
        Cuda => cuda::broadcast_add(x, v),
        Reference => widened_all([x, v], |[x, v]| reference::broadcast_add(x, v)),
    })
}

/// Refuses `v` whose axes are not the last of `x`.
fn agree(what: &str, x: &Tensor, v: &Tensor) -> Result<()> {
    if !x.dims().ends_with(v.dims()) || x.dtype() != v.dtype() {
        let of = |x: &Tensor| (x.shape().clone(), x.dtype());
        bail!(
            "{what} of {:?} and each of {:?}: expected the last axes and the dtype of the second",
            of(v),
            of(x)
        )
    }
    Ok(())
}

fn on_cpu<T: Element>(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    let y = timed(NAME, Phase::Forward, || {
        Result::Ok(sums::<T>(&View::from_tensor(&x)?, &View::from_tensor(&v)?))
    })?;
    let (needs_gradient, shape) = (v.track_op(), v.shape().clone());
    record_linear(NAME, &[&x, &v], stored(y, x.shape()), move |gradient| {
        let dv = || {
            tensor(sum_of_examples::<T>(&View::from_tensor(gradient)?, shape.elem_count()), &shape)
        };
        Ok(vec![Some(gradient.clone()), needs_gradient.then(dv).transpose()?])
    })
}

fn sums<T: Element>(x: &[T], v: &[T]) -> Vec<T> {
    by_rows(
        x,
        x,
        v.len(),
        #[inline(always)]
        |y, x, _| {
            for (y, (&x, &v)) in y.iter_mut().zip(x.iter().zip(v)) {
                *y = x + v;
            }
        },
    )
}

/// Threads share the elements of v. Each element sums the examples in their order.
fn sum_of_examples<T: Element>(gradient: &[T], width: usize) -> Vec<T> {
    /// Elements of v per block.
    const PART: usize = 1024;
    let mut sum = unwritten(width);
    run::<T, _, _>(
        gradient.len(),
        sum.chunks_mut(PART).enumerate(),
        #[inline(always)]
        |(part, sum): (usize, &mut [T])| {
            sum.fill(T::ZERO);
            for example in gradient.chunks_exact(width) {
                for (sum, &g) in sum.iter_mut().zip(&example[part * PART..]) {
                    *sum += g;
                }
            }
        },
    );
    sum
}
