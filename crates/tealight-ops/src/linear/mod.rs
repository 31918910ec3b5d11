//! The linear map.
//!
//! ```text
//! y = x Wᵀ + b
//!
//! dx = g W,   dW = gᵀ x,   db = Σ g over the rows
//! ```
//!
//! Cost: three matrix products of 2·rows·in·out operations each, one forward and two backward. The
//! bias is where the product begins its sums, and costs nothing.
//!
//! In half precision the products are Candle's: they take and give the operands' dtype, for which
//! there is special hardware; how wide they add up inside is the backend's choice. The result is
//! rounded once after the product and once after the bias.

pub mod reference;

use std::marker::PhantomData;

use candle_core::{D, Result, Shape, Tensor, bail};

use crate::buffer::{View, stored, tensor, unwritten};
use crate::graph::{Operation, record};
use crate::lanes::Lanes;
use crate::matrix::{Matrix, MatrixMut};
use crate::parallel::sum_of_columns;
use crate::path::Path;
use crate::product::Product;
use crate::profile::{Pass, timed};

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

fn fused<T: Lanes>(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let operands = [Some(x), Some(weight), bias].into_iter().flatten();
    let operands = operands.map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
    let y = timed(NAME, Pass::Forward, || forward::<T>(&operands))?;
    let shape = with_last(x.dims(), weight.dim(0)?);
    record(Linear::<T>(PhantomData), &operands.iter().collect::<Vec<_>>(), stored(y, shape))
}

/// `operands`: x, W and perhaps b.
fn forward<T: Lanes>(operands: &[Tensor]) -> Result<Vec<T>> {
    let (n_outputs, n_inputs) = operands[1].dims2()?;
    let n_rows = operands[0].elem_count() / n_inputs;
    let views = operands.iter().map(View::of).collect::<Result<Vec<_>>>()?;
    let x = Matrix::new(&views[0], (n_rows, n_inputs));
    let weight = Matrix::new(&views[1], (n_outputs, n_inputs));
    let product = Product::of(x, weight.transposed());
    let product = match views.get(2) {
        Some(bias) => product.plus_row(bias),
        None => product,
    };
    let mut y = unwritten(n_rows * n_outputs);
    product.store(MatrixMut::new(&mut y, (n_rows, n_outputs)));
    Ok(y)
}

const NAME: &str = "linear";

struct Linear<T>(PhantomData<T>);

impl<T: Lanes> Operation for Linear<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Each gradient only if it is asked for: a product costs too much to be thrown away.
    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let (n_outputs, n_inputs) = weight.dims2()?;
        let n_rows = x.elem_count() / n_inputs;
        let gradient = gradient.contiguous()?;
        let elements = View::<T>::of(&gradient)?;
        let g = Matrix::new(&elements, (n_rows, n_outputs));
        let dx = || {
            let weight = View::of(weight)?;
            let weight = Matrix::new(&weight, (n_outputs, n_inputs));
            tensor(product(Product::of(g, weight), (n_rows, n_inputs)), x.shape())
        };
        let dweight = || {
            let x = View::of(x)?;
            let x = Matrix::new(&x, (n_rows, n_inputs));
            tensor(product(Product::of(g.transposed(), x), (n_outputs, n_inputs)), weight.shape())
        };
        let mut gradients =
            vec![x.track_op().then(dx).transpose()?, weight.track_op().then(dweight).transpose()?];
        if let Some(bias) = inputs.get(2) {
            let dbias = || tensor(sum_of_columns(&elements, n_outputs), bias.shape());
            gradients.push(bias.track_op().then(dbias).transpose()?);
        }
        Ok(gradients)
    }
}

fn product<T: Lanes>(product: Product<'_, T>, (m, n): (usize, usize)) -> Vec<T> {
    let mut c = unwritten(m * n);
    product.store(MatrixMut::new(&mut c, (m, n)));
    c
}

fn with_last(dims: &[usize], width: usize) -> Shape {
    let mut dims = dims.to_vec();
    dims.pop();
    dims.push(width);
    dims.into()
}
