//! The mean over the positions of each example.
//!
//! ```text
//! y_b = Σ_t x_bt / len              dx_bt = g_b / len
//! ```

mod cuda;
pub mod reference;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, fused};
use crate::backend::buffer::unwritten;
use crate::backend::choice::{dispatch, widened};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

const NAME: &str = "mean";

/// `x (batch, len, width)` → `(batch, width)`
///
/// # Errors
/// If `x` has other axes.
pub fn mean(x: &Tensor) -> Result<Tensor> {
    let (batch, len, width) = x.dims3()?;
    dispatch!(match [x] {
        Cpu(T) => fused(NAME, [x], (batch, width), Saved::Nothing, |[x]| {
            (means::<T>(x, len, width), move |_, _, g| [shares(g, len, width)])
        }),
        Cuda => cuda::mean(x),
        Reference => widened(x, reference::mean),
    })
}

fn means<T: Element>(x: &[T], len: usize, width: usize) -> Vec<T> {
    let mut y = unwritten(x.len() / len);
    let share = T::from_f64(1. / len as f64);
    let block = block_len(len * width);
    run::<T, _, _>(
        x.len(),
        y.chunks_mut(block / len).zip(x.chunks(block)),
        #[inline(always)]
        |(y, x): (&mut [T], &[T])| {
            for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(len * width)) {
                y.fill(T::ZERO);
                for x in x.chunks_exact(width) {
                    for (y, &x) in y.iter_mut().zip(x) {
                        *y += x;
                    }
                }
                for y in y {
                    *y *= share;
                }
            }
        },
    );
    y
}

fn shares<T: Element>(gradient: &[T], len: usize, width: usize) -> Vec<T> {
    let mut dx = unwritten(gradient.len() * len);
    let share = T::from_f64(1. / len as f64);
    let block = block_len(len * width);
    run::<T, _, _>(
        dx.len(),
        dx.chunks_mut(block).zip(gradient.chunks(block / len)),
        #[inline(always)]
        |(dx, g): (&mut [T], &[T])| {
            for (dx, g) in dx.chunks_exact_mut(len * width).zip(g.chunks_exact(width)) {
                for dx in dx.chunks_exact_mut(width) {
                    for (dx, &g) in dx.iter_mut().zip(g) {
                        *dx = g * share;
                    }
                }
            }
        },
    );
    dx
}
