//! Products with one tensor for every example, and with one number for every row.

use candle_core::{Result, Tensor, bail};

use super::{agree, reference};
use crate::autograd::graph::{Saved, fused};
use crate::backend::buffer::unwritten;
use crate::backend::choice::{dispatch, widened_all};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, by_blocks, by_rows, run, sum_in_order, sum_of_pairs};

const NAME: &str = "broadcast multiply";

/// `x (.., v's axes)`, `v` → the shape of `x`. If v has all axes of x, it is their product element by element.
///
/// # Errors
/// If the last axes of `x` differ from the axes of `v`, or the dtypes differ.
pub fn broadcast_mul(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    agree("the product", x, v)?;
    dispatch!(match [x, v] {
        Cpu(T) => fused(NAME, [x, v], x.shape(), Saved::Inputs, |[x, v]: [&[T]; 2]| {
            let y = products(x, v);
            (y, move |[x, v], _, g| {
                let of_v = if v.len() == x.len() {
                    products(g, x)
                } else {
                    sums_of_products(x, g, v.len())
                };
                [products(g, v), of_v]
            })
        }),
        Cuda | Reference => widened_all([x, v], |[x, v]| reference::broadcast_mul(x, v)),
    })
}

/// `x (.., n, width)`, `scale (.., n)` or `(n)` → the shape of `x`: each row times its number.
///
/// # Errors
/// If the shapes do not match, or the dtypes differ.
pub fn scale_rows(x: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let rows = x.dims().split_last().map_or(&[][..], |(_width, rows)| rows);
    let is_one = scale.rank() == 1 && rows.ends_with(scale.dims());
    if !(is_one || scale.dims() == rows) || scale.dtype() != x.dtype() {
        let of = |x: &Tensor| (x.shape().clone(), x.dtype());
        bail!(
            "scaling the rows of {:?} by {:?}: expected (.., n, width) by (.., n) or (n) of the same dtype",
            of(x),
            of(scale)
        )
    }
    dispatch!(match [x, scale] {
        Cpu(T) => fused("scale rows", [x, scale], x.shape(), Saved::Inputs, |[x, s]: [&[T]; 2]| {
            let width = width(x, rows);
            (scaled(x, s, width), move |[x, s], _, g| {
                [scaled(g, s, width), sums_of_rows(x, g, s.len(), width)]
            })
        }),
        Cuda | Reference => widened_all([x, scale], |[x, s]| reference::scale_rows(x, s)),
    })
}

fn width<T>(x: &[T], rows: &[usize]) -> usize {
    x.len() / rows.iter().product::<usize>()
}

/// x_b ⊙ v
fn products<T: Element>(x: &[T], v: &[T]) -> Vec<T> {
    if x.len() == v.len() {
        let len = block_len(1);
        return by_blocks(
            (x, len),
            (v, len),
            #[inline(always)]
            |y, x, v| multiply(y, x, v),
        );
    }
    by_rows(
        x,
        x,
        v.len(),
        #[inline(always)]
        |y, x, _| multiply(y, x, v),
    )
}

/// y ← x ⊙ v
#[inline(always)]
fn multiply<T: Element>(y: &mut [T], x: &[T], v: &[T]) {
    for (y, (&x, &v)) in y.iter_mut().zip(x.iter().zip(v)) {
        *y = x * v;
    }
}

/// Σ_b x_b ⊙ g_b, of vectors of this `width`.
fn sums_of_products<T: Element>(x: &[T], g: &[T], width: usize) -> Vec<T> {
    let len = width * vectors_of_block(width);
    let parts = run::<T, _, _>(
        x.len(),
        x.chunks(len).zip(g.chunks(len)),
        #[inline(always)]
        |(x, g): (&[T], &[T])| {
            let mut sum = vec![T::ZERO; width];
            for (x, g) in x.chunks_exact(width).zip(g.chunks_exact(width)) {
                for (sum, (&x, &g)) in sum.iter_mut().zip(x.iter().zip(g)) {
                    *sum += x * g;
                }
            }
            sum
        },
    );
    sum_in_order(&parts, width)
}

/// Vectors that are summed as one part of a sum: enough, so that the parts take little memory.
fn vectors_of_block(width: usize) -> usize {
    (block_len(width) / width).max(64)
}

/// s_r x_r, the numbers of `s` again and again.
fn scaled<T: Element>(x: &[T], s: &[T], width: usize) -> Vec<T> {
    let mut y = unwritten(x.len());
    let len = block_len(width);
    run::<T, _, _>(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)).enumerate(),
        #[inline(always)]
        |(block, (y, x)): (usize, (&mut [T], &[T]))| {
            let first = block * (len / width);
            let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
            for (row, (y, x)) in (first..).zip(rows) {
                let s = s[row % s.len()];
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = s * x;
                }
            }
        },
    );
    y
}

/// The gradient of `n` numbers, each the sum over its rows of x_r · g_r.
fn sums_of_rows<T: Element>(x: &[T], g: &[T], n: usize, width: usize) -> Vec<T> {
    let n_rows = x.len() / width;
    let mut dots = unwritten(n_rows);
    let rows = block_len(width) / width;
    run::<T, _, _>(
        x.len(),
        dots.chunks_mut(rows).zip(x.chunks(rows * width).zip(g.chunks(rows * width))),
        #[inline(always)]
        |(dots, (x, g)): (&mut [T], (&[T], &[T]))| {
            for (dot, (x, g)) in
                dots.iter_mut().zip(x.chunks_exact(width).zip(g.chunks_exact(width)))
            {
                *dot = sum_of_pairs(x, g, |x, g| x * g);
            }
        },
    );
    if n == n_rows { dots } else { super::sum_of_examples(&dots, n) }
}
