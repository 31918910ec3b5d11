//! One tensor gates another, through an activation (Dauphin et al. 2017,
//! <https://arxiv.org/abs/1612.08083>; Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
//!
//! ```text
//! y = φ(x) ⊙ v              dx = g ⊙ v ⊙ φ'(x),   dv = g ⊙ φ(x)
//! ```
//!
//! Or with one v for all positions of an example, whose gradient is the sum over them.

mod cpu;
mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Operation, record};
use crate::backend::buffer::{View, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::backend::profile::{Pass, timed};
use crate::ops::activation::{Elementwise, Function, Gelu, GeluTanh, Relu, Sigmoid, Silu};

/// `x (batch, len, width)`, `v (batch, len or 1, width)` → the shape of `x`
///
/// # Errors
/// If the shapes do not match.
pub fn gated(function: Function, x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let ((batch, len, width), shape) = (x.dims3()?, v.dims3()?);
    if ![(batch, len, width), (batch, 1, width)].contains(&shape) || x.dtype() != v.dtype() {
        bail!("a gate of {:?} over {:?}", x.shape(), v.shape())
    }
    match Backend::of(&[x, v]) {
        Backend::F32 => of_function::<f32>(function, x, v),
        Backend::F64 => of_function::<f64>(function, x, v),
        Backend::Cuda => cuda::gated(function, x, v),
        Backend::Reference => {
            widened(x, |x| reference::gated(function, x, &v.to_dtype(x.dtype())?))
        }
    }
}

fn of_function<T: Element>(function: Function, x: &Tensor, v: &Tensor) -> Result<Tensor> {
    match function {
        Function::Relu => fused::<T, Relu>(x, v),
        Function::Gelu => fused::<T, Gelu>(x, v),
        Function::GeluTanh => fused::<T, GeluTanh>(x, v),
        Function::Silu => fused::<T, Silu>(x, v),
        Function::Sigmoid => fused::<T, Sigmoid>(x, v),
    }
}

fn fused<T: Element, A: Elementwise>(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    let widths = widths(&x, &v)?;
    let y = timed(NAME, Pass::Forward, || {
        Result::Ok(cpu::forward::<T, A>(&View::of(&x)?, &View::of(&v)?, widths))
    })?;
    record(Gated::<T, A>(PhantomData), &[&x, &v], stored(y, x.shape()))
}

/// The elements of x that one element of v gates, and how many of v follow each other until the next
/// of x begin with them again.
fn widths(x: &Tensor, v: &Tensor) -> Result<(usize, usize)> {
    let (_, len, width) = x.dims3()?;
    let (_, of_v, _) = v.dims3()?;
    Ok((len / of_v, of_v * width))
}

const NAME: &str = "gate";

struct Gated<T, A>(PhantomData<(T, A)>);

impl<T: Element, A: Elementwise> Operation for Gated<T, A> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (x, v) = (&inputs[0], &inputs[1]);
        let gradient = gradient.contiguous()?;
        let views = (View::of(x)?, View::of(v)?, View::of(&gradient)?);
        let (dx, dv) = cpu::backward::<T, A>(&views.0, &views.1, &views.2, widths(x, v)?);
        Ok(vec![Some(tensor(dx, x.shape())?), Some(tensor(dv, v.shape())?)])
    }
}
