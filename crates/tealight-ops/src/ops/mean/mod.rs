//! The mean over the positions of each example.
//!
//! ```text
//! y_b = Σ_t x_bt / len              dx_bt = g_b / len
//! ```

mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Operation, record};
use crate::backend::buffer::{View, stored, tensor, unwritten};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};
use crate::backend::profile::{Pass, timed};

/// `x (batch, len, width)` → `(batch, width)`
///
/// # Errors
/// If `x` has other axes.
pub fn mean(x: &Tensor) -> Result<Tensor> {
    x.dims3()?;
    match Backend::of(&[x]) {
        Backend::F32 => fused::<f32>(x),
        Backend::F64 => fused::<f64>(x),
        Backend::Cuda => cuda::mean(x),
        Backend::Reference => widened(x, reference::mean),
    }
}

fn fused<T: Element>(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (batch, len, width) = x.dims3()?;
    let y = timed(NAME, Pass::Forward, || Result::Ok(means::<T>(&View::of(&x)?, len, width)))?;
    record(Mean::<T>(PhantomData), &[&x], stored(y, (batch, width)))
}

fn means<T: Element>(x: &[T], len: usize, width: usize) -> Vec<T> {
    let mut y = unwritten(x.len() / len);
    let share = T::from_f64(1. / len as f64);
    let block = block_len(len * width);
    run(
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
    run(
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

const NAME: &str = "mean";

struct Mean<T>(PhantomData<T>);

impl<T: Element> Operation for Mean<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let x = &inputs[0];
        let (_, len, width) = x.dims3()?;
        let gradient = gradient.contiguous()?;
        let dx = shares::<T>(&View::of(&gradient)?, len, width);
        Ok(vec![Some(tensor(dx, x.shape())?)])
    }
}
