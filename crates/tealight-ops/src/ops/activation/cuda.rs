//! Kernels with one thread per element.

use candle_core::{Result, Tensor};

use super::Function;
use crate::autograd::graph::{Operation, record};
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source =
    Source::new("activation", &[include_str!("functions.cuh"), include_str!("kernel.cu")]);

impl Function {
    /// Its number in `functions.cuh`.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Relu => 0,
            Self::Gelu => 1,
            Self::GeluTanh => 2,
            Self::Silu => 3,
            Self::Sigmoid => 4,
        }
    }
}

pub(super) fn activation(x: &Tensor, function: Function, name: &'static str) -> Result<Tensor> {
    let x = x.contiguous()?;
    let n = x.elem_count();
    let mut y = Buffer::like(&x)?;
    let launch = Launch::elementwise(&KERNELS, "activation_forward", [&x], &mut y, n)?;
    launch.int(function.number()).run()?;
    record(Activation { function, name }, &[&x], y.value(x.shape()))
}

struct Activation {
    function: Function,
    name: &'static str,
}

impl Operation for Activation {
    fn name(&self) -> &'static str {
        self.name
    }

    fn reads_output(&self) -> bool {
        false
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (x, gradient) = (&inputs[0], gradient.contiguous()?);
        let n = x.elem_count();
        let mut dx = Buffer::like(x)?;
        Launch::elementwise(&KERNELS, "activation_backward", [x, &gradient], &mut dx, n)?
            .int(self.function.number())
            .run()?;
        Ok(vec![Some(dx.tensor(x.shape())?)])
    }
}
