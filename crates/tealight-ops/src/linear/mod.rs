//! The linear map, and several of one input.
//!
//! ```text
//! y = x Wᵀ + b                               yᵢ = x Wᵢᵀ + bᵢ
//!
//! dx = g W,   dW = gᵀ x,   db = Σ g          dx = g₁ W₁ + g₂ W₂ + ..          Σ over the rows
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

use candle_core::{CpuStorage, D, Result, Shape, Tensor, bail};

use crate::buffer::{View, stored, tensor, unwritten};
use crate::graph::{Operation, Several, record, record_all};
use crate::lanes::Lanes;
use crate::matrix::{Matrix, MatrixMut};
use crate::parallel::sum_of_columns;
use crate::path::Path;
use crate::product::{Product, store_all};
use crate::profile::{Pass, timed};

/// `weight (out, in)`, `bias (out)`: the map x Wᵀ + b.
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    /// W.
    pub weight: &'a Tensor,
    /// b.
    pub bias: Option<&'a Tensor>,
}

/// `x (.., in)`, `weight (out, in)`, `bias (out)` → `(.., out)`
///
/// # Errors
/// If the widths do not match.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let map = Map { weight, bias };
    match path(x, &[map])? {
        Path::F32 => fused::<f32>(x, map),
        Path::F64 => fused::<f64>(x, map),
        Path::Reference => reference::linear(x, weight, bias),
    }
}

/// What each of `maps` makes of `x (.., in)`: `(.., out)`. The same as [`linear`] of each; but the
/// work is shared out once, and the gradients of `x` are added where they arise.
///
/// # Errors
/// If the widths do not match.
pub fn linears<const N: usize>(x: &Tensor, maps: [Map<'_>; N]) -> Result<[Tensor; N]> {
    let results = match path(x, &maps)? {
        Path::F32 => fused_all::<f32>(x, &maps),
        Path::F64 => fused_all::<f64>(x, &maps),
        Path::Reference => {
            maps.iter().map(|map| reference::linear(x, map.weight, map.bias)).collect()
        }
    };
    Ok(results?.try_into().expect("invariant: each map has a result"))
}

fn path(x: &Tensor, maps: &[Map<'_>]) -> Result<Path> {
    let mut operands = vec![x];
    for Map { weight, bias } in maps {
        let (n_outputs, n_inputs) = weight.dims2()?;
        if x.dim(D::Minus1)? != n_inputs || bias.is_some_and(|bias| bias.dims() != [n_outputs]) {
            let bias = bias.map(Tensor::shape);
            bail!("linear of x {:?}, weight {:?}, bias {bias:?}", x.shape(), weight.shape())
        }
        operands.extend([Some(*weight), *bias].into_iter().flatten());
    }
    Ok(Path::of(&operands))
}

fn fused<T: Lanes>(x: &Tensor, map: Map<'_>) -> Result<Tensor> {
    let inputs = Inputs::of(x, &[map])?;
    let value = timed(NAME, Pass::Forward, || inputs.forward::<T>())?.remove(0);
    record(Linear::<T>(PhantomData), &inputs.all(), value)
}

fn fused_all<T: Lanes>(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let inputs = Inputs::of(x, maps)?;
    let values = timed(NAME, Pass::Forward, || inputs.forward::<T>())?;
    let biased = maps.iter().map(|map| map.bias.is_some()).collect();
    record_all(Linears::<T> { biased, element: PhantomData }, &inputs.all(), values)
}

const NAME: &str = "linear";

/// `x (.., in)` and, for each map, `(out, in)` and perhaps `(out)`, contiguous.
struct Inputs {
    x: Tensor,
    maps: Vec<(Tensor, Option<Tensor>)>,
}

impl Inputs {
    fn of(x: &Tensor, maps: &[Map<'_>]) -> Result<Self> {
        let map = |map: &Map<'_>| {
            Ok((map.weight.contiguous()?, map.bias.map(Tensor::contiguous).transpose()?))
        };
        Ok(Self { x: x.contiguous()?, maps: maps.iter().map(map).collect::<Result<_>>()? })
    }

    /// As the graph gives them back, with a bias where `biased` says so.
    fn from_graph(inputs: &[Tensor], biased: impl Iterator<Item = bool>) -> Self {
        let mut rest = inputs[1..].iter().cloned();
        let mut next = || rest.next().expect("invariant: the inputs are those of the forward");
        let maps = biased.map(|biased| (next(), biased.then(&mut next))).collect();
        Self { x: inputs[0].clone(), maps }
    }

    fn all(&self) -> Vec<&Tensor> {
        let maps = self.maps.iter().flat_map(|(weight, bias)| [Some(weight), bias.as_ref()]);
        std::iter::once(&self.x).chain(maps.flatten()).collect()
    }

    fn n_rows(&self) -> Result<usize> {
        Ok(self.x.elem_count() / self.x.dim(D::Minus1)?)
    }

    fn forward<T: Lanes>(&self) -> Result<Vec<(CpuStorage, Shape)>> {
        let n_rows = self.n_rows()?;
        let x = View::<T>::of(&self.x)?;
        let x = Matrix::new(&x, (n_rows, self.x.dim(D::Minus1)?));
        let views = self.maps.iter().map(|(weight, bias)| {
            Ok((View::of(weight)?, weight.dims2()?, bias.as_ref().map(View::of).transpose()?))
        });
        let views = views.collect::<Result<Vec<(View<'_, T>, _, _)>>>()?;
        let mut results: Vec<Vec<T>> =
            views.iter().map(|(_, (n_outputs, _), _)| unwritten(n_rows * n_outputs)).collect();
        let products = views.iter().zip(&mut results).map(|((weight, shape, bias), y)| {
            let product = Product::of(x, Matrix::new(weight, *shape).transposed());
            let product = match bias {
                Some(bias) => product.plus_row(bias),
                None => product,
            };
            (product, MatrixMut::new(y, (n_rows, shape.0)).into())
        });
        store_all(products.collect());
        let shape = |n_outputs| with_last(self.x.dims(), n_outputs);
        Ok(results.into_iter().zip(&views).map(|(y, (_, n, _))| stored(y, shape(n.0))).collect())
    }

    /// The gradients of all inputs, each only if it is asked for: a product costs too much to be
    /// thrown away.
    fn backward<T: Lanes>(&self, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let n_rows = self.n_rows()?;
        let n_inputs = self.x.dim(D::Minus1)?;
        let x = View::<T>::of(&self.x)?;
        let x = Matrix::new(&x, (n_rows, n_inputs));
        let gradients = gradients.into_iter().map(|g| g.map(|g| g.contiguous()).transpose());
        let gradients = gradients.collect::<Result<Vec<_>>>()?;
        // Of a map whose result nothing was made of, there are none.
        let used = gradients.iter().zip(&self.maps).map(|(g, (weight, _))| {
            let both = g.as_ref().map(|g| Ok((View::of(g)?, View::of(weight)?, weight.dims2()?)));
            both.transpose()
        });
        let used = used.collect::<Result<Vec<Option<(View<'_, T>, View<'_, T>, _)>>>>()?;
        let factors: Vec<_> = used
            .iter()
            .flatten()
            .map(|(g, weight, shape)| {
                (Matrix::new(g, (n_rows, shape.0)), Matrix::new(weight, *shape))
            })
            .collect();

        let is_needed = self.x.track_op() && !factors.is_empty();
        let mut dx = is_needed.then(|| unwritten::<T>(n_rows * n_inputs));
        let mut dweights: Vec<Option<Vec<T>>> = used
            .iter()
            .zip(&self.maps)
            .map(|(used, (weight, _))| {
                let is_needed = used.is_some() && weight.track_op();
                is_needed.then(|| unwritten(weight.elem_count()))
            })
            .collect();
        let mut products = Vec::with_capacity(1 + factors.len());
        if let Some(dx) = &mut dx {
            products.push((Product::sum(&factors), MatrixMut::new(dx, (n_rows, n_inputs)).into()));
        }
        let places = dweights.iter_mut().zip(&used).filter(|(_, used)| used.is_some());
        for ((dweight, _), &(g, _)) in places.zip(&factors) {
            if let Some(dweight) = dweight {
                let shape = (g.columns(), n_inputs);
                products
                    .push((Product::of(g.transposed(), x), MatrixMut::new(dweight, shape).into()));
            }
        }
        store_all(products);

        let mut all = vec![dx.map(|dx| tensor(dx, self.x.shape())).transpose()?];
        for ((dweight, used), (weight, bias)) in dweights.into_iter().zip(&used).zip(&self.maps) {
            all.push(dweight.map(|dweight| tensor(dweight, weight.shape())).transpose()?);
            if let Some(bias) = bias {
                let g = used.as_ref().filter(|_| bias.track_op());
                let dbias = g.map(|(g, _, (n_outputs, _))| {
                    tensor(sum_of_columns(g, *n_outputs), bias.shape())
                });
                all.push(dbias.transpose()?);
            }
        }
        Ok(all)
    }
}

struct Linear<T>(PhantomData<T>);

impl<T: Lanes> Operation for Linear<T> {
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
        let biased = std::iter::once(inputs.len() == 3);
        Inputs::from_graph(inputs, biased).backward::<T>(vec![Some(gradient.clone())])
    }
}

struct Linears<T> {
    biased: Vec<bool>,
    element: PhantomData<T>,
}

impl<T: Lanes> Several for Linears<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        Inputs::from_graph(inputs, self.biased.iter().copied()).backward::<T>(gradients)
    }
}

fn with_last(dims: &[usize], width: usize) -> Shape {
    let mut dims = dims.to_vec();
    dims.pop();
    dims.push(width);
    dims.into()
}
