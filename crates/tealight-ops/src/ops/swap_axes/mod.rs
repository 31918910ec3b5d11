//! Two axes exchanged, as heads and positions are.
//!
//! ```text
//! y_bmn = x_bnm              dx_bnm = g_bmn         of vectors
//! ```
//!
//! Candle copies a strided tensor element by element, on one thread.

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

/// `x (batch, n, m, width)` → `(batch, m, n, width)`, contiguous
///
/// # Errors
/// If `x` has other axes.
pub fn swap_axes(x: &Tensor) -> Result<Tensor> {
    x.dims4()?;
    match Backend::of(&[x]) {
        Backend::F32 => fused::<f32>(x),
        Backend::F64 => fused::<f64>(x),
        Backend::Cuda => cuda::swap_axes(x),
        Backend::Reference => widened(x, reference::swap_axes),
    }
}

fn fused<T: Element>(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (batch, n, m, width) = x.dims4()?;
    let y = timed(NAME, Pass::Forward, || Result::Ok(swapped::<T>(&View::of(&x)?, [n, m, width])))?;
    record(SwapAxes::<T>(PhantomData), &[&x], stored(y, (batch, m, n, width)))
}

/// `(batch, n, m, width)` → `(batch, m, n, width)`
pub(crate) fn swapped<T: Element>(x: &[T], [n, m, width]: [usize; 3]) -> Vec<T> {
    let mut y = unwritten(x.len());
    let rows_per_block = (block_len(n * width) / (n * width)).max(1);
    run(
        x.len(),
        y.chunks_mut(rows_per_block * n * width).enumerate(),
        #[inline(always)]
        |(block, rows): (usize, &mut [T])| {
            for (row, y) in rows.chunks_exact_mut(n * width).enumerate() {
                let row = block * rows_per_block + row;
                let (example, column) = (row / m, row % m);
                for (i, y) in y.chunks_exact_mut(width).enumerate() {
                    let at = ((example * n + i) * m + column) * width;
                    y.copy_from_slice(&x[at..at + width]);
                }
            }
        },
    );
    y
}

const NAME: &str = "swap axes";

struct SwapAxes<T>(PhantomData<T>);

impl<T: Element> Operation for SwapAxes<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (_, n, m, width) = inputs[0].dims4()?;
        let gradient = gradient.contiguous()?;
        let dx = swapped::<T>(&View::of(&gradient)?, [m, n, width]);
        Ok(vec![Some(tensor(dx, inputs[0].shape())?)])
    }
}
