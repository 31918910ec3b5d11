//! The feed-forward network of a transformer (Vaswani et al. 2017, §3.3,
//! <https://arxiv.org/abs/1706.03762>): two linear maps with an activation between them.
//!
//! ```text
//! u = x W₁ᵀ + b₁,   h = Dropout(φ(u)),   y = h W₂ᵀ + b₂                         eq. (2)
//!
//! dh = g W₂,   du = Dropout(dh) ⊙ φ'(u), with the same mask,   dx = du W₁
//! dW₂ = gᵀ h,   db₂ = Σ g,   dW₁ = duᵀ x,   db₁ = Σ du            Σ over the rows
//! ```
//!
//! Of what is inside, only u is kept for the backward; h is made again where du is made. φ and φ' are
//! computed while a row of the product is still in the cache. Cost: six matrix products, as of two
//! linear maps.

mod cpu;
pub mod reference;

use candle_core::{D, Result, Tensor, bail};

use crate::autograd::graph::{Operation, record};
use crate::backend::buffer::{stored, tensor};
use crate::backend::choice::Backend;
use crate::backend::profile::{Pass, timed};
use crate::backend::simd::vector::Lanes;
use crate::ops::activation::{Elementwise, Function, Gelu, GeluTanh, Relu, Sigmoid, Silu};
use crate::ops::dropout::{Draw, Dropout};
use crate::ops::linear::{Map, linear};
use cpu::{Layer, Operands};

/// What stands between input and output.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a> {
    /// W₁ `(inner, in)` and b₁ `(inner)`.
    pub up: Map<'a>,
    /// φ.
    pub function: Function,
    /// Drops elements of φ(u), as of a tensor `(.., inner)`.
    pub dropout: Option<Draw>,
    /// W₂ `(out, inner)` and b₂ `(out)`.
    pub down: Map<'a>,
}

/// `x (.., in)` → `(.., out)`
///
/// # Errors
/// If the widths do not match, or the dropout rate is not in [0, 1).
pub fn mlp(x: &Tensor, settings: &Mlp<'_>) -> Result<Tensor> {
    let Mlp { up, function, dropout, down } = *settings;
    let width = x.dim(D::Minus1)?;
    let ((inner, of_x), (n_outputs, of_h)) = (up.weight.dims2()?, down.weight.dims2()?);
    let fits = |bias: Option<&Tensor>, n| bias.is_none_or(|bias| bias.dims() == [n]);
    if of_x != width || of_h != inner || !fits(up.bias, inner) || !fits(down.bias, n_outputs) {
        bail!("an mlp of x {:?}, up {up:?}, down {down:?}", x.shape())
    }
    dropout.map_or(Ok(()), Draw::check)?;
    let operands =
        [Some(x), Some(up.weight), up.bias, Some(down.weight), down.bias].into_iter().flatten();
    match Backend::of(&operands.collect::<Vec<_>>()) {
        Backend::F32 => of_function::<f32>(function, x, settings),
        Backend::F64 => of_function::<f64>(function, x, settings),
        Backend::Cuda => composed(x, settings),
        Backend::Reference => reference::mlp(x, settings),
    }
}

/// Of other operations: on a device it is the products that take the time.
fn composed(x: &Tensor, settings: &Mlp<'_>) -> Result<Tensor> {
    let Mlp { up, function, dropout, down } = *settings;
    let h = function.forward(&linear(x, up.weight, up.bias)?)?;
    let h = match dropout {
        Some(Draw { rate, stream }) => crate::ops::dropout::dropout(&h, rate, stream)?,
        None => h,
    };
    linear(&h, down.weight, down.bias)
}

fn of_function<T: Lanes>(function: Function, x: &Tensor, settings: &Mlp<'_>) -> Result<Tensor> {
    match function {
        Function::Relu => fused::<T, Relu>(x, settings),
        Function::Gelu => fused::<T, Gelu>(x, settings),
        Function::GeluTanh => fused::<T, GeluTanh>(x, settings),
        Function::Silu => fused::<T, Silu>(x, settings),
        Function::Sigmoid => fused::<T, Sigmoid>(x, settings),
    }
}

fn fused<T: Lanes, A: Elementwise>(x: &Tensor, settings: &Mlp<'_>) -> Result<Tensor> {
    let Mlp { up, dropout, down, .. } = *settings;
    let biased = [up.bias.is_some(), down.bias.is_some()];
    let inputs = [Some(x), Some(up.weight), up.bias, Some(down.weight), down.bias];
    let inputs = inputs.into_iter().flatten().map(Tensor::contiguous);
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let layer = Layer::<T, A>::new(dropout.filter(|draw| draw.rate > 0.).map(Dropout::new));
    let keep = inputs.iter().any(Tensor::track_op);
    let (y, kept) = timed(NAME, Pass::Forward, || {
        let operands = Operands::of(&inputs, biased)?;
        Result::Ok(if keep { layer.forward(&operands) } else { (layer.value(&operands), vec![]) })
    })?;
    let mut shape = x.dims().to_vec();
    shape.pop();
    shape.push(down.weight.dim(0)?);
    let operation = Fused { layer, biased, kept };
    record(operation, &inputs.iter().collect::<Vec<_>>(), stored(y, shape))
}

const NAME: &str = "mlp";

struct Fused<T, A> {
    layer: Layer<T, A>,
    biased: [bool; 2],
    /// u
    kept: Vec<T>,
}

impl<T: Lanes, A: Elementwise> Operation for Fused<T, A> {
    fn name(&self) -> &'static str {
        NAME
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
        let gradient = gradient.contiguous()?;
        let operands = Operands::of(inputs, self.biased)?;
        let is_needed = inputs.iter().map(Tensor::track_op);
        let gradients = self.layer.backward(&operands, self.kept, &gradient, is_needed)?;
        let gradients = gradients.into_iter().zip(inputs);
        gradients.map(|(g, input)| g.map(|g| tensor(g, input.shape())).transpose()).collect()
    }
}
