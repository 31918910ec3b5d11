//! The linear map.
//!
//! ```text
//! y = x Wᵀ + b
//!
//! dx = g W,   dW = gᵀ x,   db = Σ g over the rows
//! ```
//!
//! Cost: three matrix products of 2·rows·in·out operations each, one forward and two backward. They
//! are Candle's; the bias is not. Candle adds it into a new tensor and sums its gradient on one
//! thread with a division per element, which at in = 256 takes as long as a product.
//!
//! In half precision the products take and give the operands' dtype, for which there is special
//! hardware; how wide they add up inside is the backend's choice. The result is rounded once after
//! the product and once after the bias.

pub mod reference;

use std::marker::PhantomData;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, D, Layout, Result, Shape, Tensor, bail};

use crate::buffer::{View, slice, stored, tensor};
use crate::element::Element;
use crate::parallel::{block_len, run, sum_of_columns};
use crate::path::Path;

/// `x (.., in)`, `weight (out, in)`, `bias (out)` → `(.., out)`
///
/// # Errors
/// If the widths do not match.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (n_outputs, n_inputs) = weight.dims2()?;
    if x.dim(D::Minus1)? != n_inputs || bias.is_some_and(|bias| bias.dims() != [n_outputs]) {
        let bias = bias.map(Tensor::shape);
        bail!("linear of x {:?}, weight {:?}, bias {bias:?}", x.shape(), weight.shape())
    }
    let operands = [Some(x), Some(weight), bias].into_iter().flatten().collect::<Vec<_>>();
    match Path::of(&operands) {
        Path::F32 => fused::<f32>(x, weight, bias),
        Path::F64 => fused::<f64>(x, weight, bias),
        Path::Reference => reference::linear(x, weight, bias),
    }
}

fn fused<T: Element>(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let linear = Linear::<T>(PhantomData);
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, linear),
        None => x.apply_op2(&weight, linear),
    }
}

struct Linear<T>(PhantomData<T>);

/// x Wᵀ, and its shape: `x (.., in)`, `weight (out, in)` → `(.., out)`
fn product(
    (x, x_layout): (&CpuStorage, &Layout),
    (weight, weight_layout): (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let (n_outputs, n_inputs) = weight_layout.shape().dims2()?;
    let rows = x_layout.shape().elem_count() / n_inputs;
    let flat = Layout::contiguous_with_offset((rows, n_inputs), x_layout.start_offset());
    let transposed = weight_layout.transpose(0, 1)?;
    let y = x.matmul(weight, (1, rows, n_outputs, n_inputs), &flat, &transposed)?;
    Ok((y, with_last(x_layout.dims(), n_outputs)))
}

fn add_to_rows<T: Element>(y: &mut [T], bias: &[T]) {
    let len = block_len(bias.len());
    run(
        y.len(),
        y.chunks_mut(len),
        #[inline(always)]
        |rows: &mut [T]| {
            for row in rows.chunks_exact_mut(bias.len()) {
                for (y, &bias) in row.iter_mut().zip(bias) {
                    *y += bias;
                }
            }
        },
    );
}

/// dx and dW, each only if it is asked for: a product costs too much to be thrown away.
fn product_gradients(
    x: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    let (n_outputs, n_inputs) = weight.dims2()?;
    let rows = gradient.elem_count() / n_outputs;
    let g = gradient.reshape((rows, n_outputs))?;
    // Detached, or Candle records a graph of the backward.
    let dx = || g.matmul(&weight.detach())?.reshape(x.shape());
    let dweight = || g.t()?.matmul(&x.detach().reshape((rows, n_inputs))?);
    Ok((x.track_op().then(dx).transpose()?, weight.track_op().then(dweight).transpose()?))
}

fn with_last(dims: &[usize], width: usize) -> Shape {
    let mut dims = dims.to_vec();
    dims.pop();
    dims.push(width);
    dims.into()
}

impl<T: Element> CustomOp2 for Linear<T> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        product((x, x_layout), (weight, weight_layout))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        product_gradients(x, weight, &gradient.contiguous()?)
    }
}

impl<T: Element> CustomOp3 for Linear<T> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (y, shape) = product((x, x_layout), (weight, weight_layout))?;
        let mut y = T::cpu_storage_data(y)?;
        add_to_rows(&mut y, slice(bias, bias_layout)?);
        Ok(stored(y, shape))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let (dx, dweight) = product_gradients(x, weight, &gradient)?;
        let dbias = sum_of_columns(&View::<T>::of(&gradient)?, bias.elem_count());
        Ok((dx, dweight, Some(tensor(dbias, bias.shape())?)))
    }
}
