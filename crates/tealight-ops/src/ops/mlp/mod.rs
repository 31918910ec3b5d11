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
//! The backward saves u and recomputes h together with du. φ and φ' are computed while a row of the
//! product is in the cache. Cost: six matrix products, as for two linear maps.

mod cpu;
pub mod reference;

use candle_core::{D, Result, Tensor, bail};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::buffer::{contiguous, gradients, stored};
use crate::backend::choice::dispatch;
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::vector::Lanes;
use crate::ops::activation::{Elementwise, Function, with_activation};
use crate::ops::dropout::{Draw, Dropout};
use crate::ops::linear::{Map, linear, with_last};
use cpu::{Layer, Operands};

/// The layers of the network.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a> {
    /// W₁ `(inner, in)` and b₁ `(inner)`.
    pub up: Map<'a>,
    /// φ.
    pub function: Function,
    /// Dropout of φ(u), as of a tensor `(.., inner)`.
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
        bail!(
            "an mlp of x {:?}, up {up:?}, down {down:?}: expected (.., in), (inner, in) and \
             (inner), (out, inner) and (out)",
            x.shape()
        )
    }
    dropout.map_or(Ok(()), Draw::check)?;
    let operands = [Some(x), Some(up.weight), up.bias, Some(down.weight), down.bias];
    let operands: Vec<_> = operands.into_iter().flatten().collect();
    dispatch!(match operands {
        Cpu(T) => with_activation!(function, A => on_cpu::<T, A>(&operands, settings)),
        Cuda => composed(x, settings),
        Reference => reference::mlp(x, settings),
    })
}

/// As separate operations: on a GPU the products take most of the time anyway.
fn composed(x: &Tensor, settings: &Mlp<'_>) -> Result<Tensor> {
    let Mlp { up, function, dropout, down } = *settings;
    let h = function.forward(&linear(x, up.weight, up.bias)?)?;
    let h = match dropout {
        Some(Draw { rate, stream }) => crate::ops::dropout::dropout(&h, rate, stream)?,
        None => h,
    };
    linear(&h, down.weight, down.bias)
}

/// `operands`: x, W₁, b₁ if there is one, W₂, b₂ if there is one.
fn on_cpu<T: Lanes, A: Elementwise>(operands: &[&Tensor], settings: &Mlp<'_>) -> Result<Tensor> {
    let Mlp { up, dropout, down, .. } = *settings;
    let have_bias = [up.bias.is_some(), down.bias.is_some()];
    let inputs = contiguous(operands)?;
    let layer = Layer::<T, A>::new(dropout.filter(|draw| draw.rate > 0.).map(Dropout::new));
    let is_training = inputs.iter().any(Tensor::track_op);
    let (y, u) = timed(NAME, Phase::Forward, || {
        let operands = Operands::from_tensors(&inputs, have_bias)?;
        Result::Ok(if is_training {
            layer.forward(&operands)
        } else {
            (layer.value(&operands), vec![])
        })
    })?;
    let (n_outputs, _) = down.weight.dims2()?;
    let shape = with_last(inputs[0].dims(), n_outputs);
    record_saving(NAME, &inputs, stored(y, shape), Saved::Inputs, move |inputs, _, gradient| {
        let operands = Operands::from_tensors(inputs, have_bias)?;
        gradients(layer.backward(&operands, u, gradient, inputs)?, inputs)
    })
}

const NAME: &str = "mlp";
