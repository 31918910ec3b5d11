//! The same numbers added to every example, as vectors of positions are.
//!
//! ```text
//! y_b = x_b + v              dx = g,   dv = Σ_b g_b
//! ```

pub(crate) mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Operation, record};
use crate::backend::buffer::{View, stored, tensor, unwritten};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};
use crate::backend::profile::{Pass, timed};

/// `x (.., v's axes)`, `v` → the shape of `x`
///
/// # Errors
/// If the last axes of `x` are not those of `v`, or the dtypes differ.
pub fn broadcast_add(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    if !x.dims().ends_with(v.dims()) || x.dtype() != v.dtype() {
        let of = |x: &Tensor| (x.shape().clone(), x.dtype());
        bail!("adding {:?} to each of {:?}", of(v), of(x))
    }
    match Backend::of(&[x, v]) {
        Backend::F32 => fused::<f32>(x, v),
        Backend::F64 => fused::<f64>(x, v),
        Backend::Cuda => cuda::broadcast_add(x, v),
        Backend::Reference => widened(x, |x| reference::broadcast_add(x, &v.to_dtype(x.dtype())?)),
    }
}

fn fused<T: Element>(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    let y = timed(NAME, Pass::Forward, || Result::Ok(sums::<T>(&View::of(&x)?, &View::of(&v)?)))?;
    record(BroadcastAdd::<T>(PhantomData), &[&x, &v], stored(y, x.shape()))
}

fn sums<T: Element>(x: &[T], v: &[T]) -> Vec<T> {
    let mut y = unwritten(x.len());
    let len = block_len(v.len());
    run(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)),
        #[inline(always)]
        |(y, x): (&mut [T], &[T])| {
            for (y, x) in y.chunks_exact_mut(v.len()).zip(x.chunks_exact(v.len())) {
                for (y, (&x, &v)) in y.iter_mut().zip(x.iter().zip(v)) {
                    *y = x + v;
                }
            }
        },
    );
    y
}

/// Threads share the elements of v; each is a sum in the order of the examples.
fn sum_of_examples<T: Element>(gradient: &[T], width: usize) -> Vec<T> {
    /// Elements of v at a time.
    const PART: usize = 1024;
    let mut sum = unwritten(width);
    run(
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

const NAME: &str = "broadcast add";

struct BroadcastAdd<T>(PhantomData<T>);

impl<T: Element> Operation for BroadcastAdd<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let v = &inputs[1];
        let dv = || {
            let gradient = gradient.contiguous()?;
            tensor(sum_of_examples::<T>(&View::of(&gradient)?, v.elem_count()), v.shape())
        };
        Ok(vec![Some(gradient.clone()), v.track_op().then(dv).transpose()?])
    }
}
