//! Matrix products of blocks of patches, which are made in the cache.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::Slide;
use crate::backend::buffer::{View, unwritten};
use crate::backend::gemm::{Product, SerialProducts};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::{run, sum_in_order};
use crate::backend::scratch::Scratch;
use crate::backend::simd::vector::Lanes;
use crate::ops::linear::Map;

/// Numbers in a block of patches: 512 KiB in f32, half of the second-level cache.
const BLOCK: usize = 1 << 17;
/// The parts of a batch that threads share in the backward, each with its own sum of the gradient of the weight. The
/// number does not depend on the threads, so that the order of the sum does not, either.
const PARTS: usize = 32;

/// A convolution of pictures of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution {
    pub(super) slide: Slide,
    pub(super) n_outputs: usize,
}

impl Convolution {
    pub(super) fn shape(&self) -> (usize, usize, usize, usize) {
        let Slide { batch, rows, columns, .. } = self.slide;
        (batch, rows, columns, self.n_outputs)
    }

    /// Rows of windows in a block.
    fn rows_per_block(&self) -> usize {
        (BLOCK / (self.slide.columns * self.slide.patch())).max(1)
    }

    pub(super) fn forward<T: Lanes>(&self, x: &Tensor, map: Map<'_>) -> Result<Vec<T>> {
        let (x, weight) = (View::<T>::from_tensor(x)?, View::<T>::from_tensor(map.weight)?);
        let bias = map.bias.map(View::<T>::from_tensor).transpose()?;
        let (columns, patch, n_outputs) = (self.slide.columns, self.slide.patch(), self.n_outputs);
        // Rows of the second factor are packed faster than columns.
        let weight = transposed(&weight, (n_outputs, patch));
        let weight = Matrix::new(&weight, (patch, n_outputs));
        let n_rows = self.slide.batch * self.slide.rows;
        let mut y = unwritten(n_rows * columns * n_outputs);
        let (block, serial) = (self.rows_per_block(), SerialProducts::current());
        run::<T, _, _>(
            y.len(),
            y.chunks_mut(block * columns * n_outputs).enumerate(),
            #[inline(always)]
            |(i, y)| {
                let n = y.len() / (columns * n_outputs);
                let mut scratch = Scratch::new();
                let [patches] = scratch.areas([n * columns * patch]);
                self.copy(i * block..i * block + n, &x, patches);
                let product = Product::new(Matrix::new(patches, (n * columns, patch)), weight);
                let product = match &bias {
                    Some(bias) => product.plus_row(bias),
                    None => product,
                };
                serial.store(product, MatrixMut::new(y, (n * columns, n_outputs)));
            },
        );
        Ok(y)
    }

    /// Copies the patches of `rows`, counted over all pictures.
    #[inline(always)]
    fn copy<T: Lanes>(&self, rows: Range<usize>, x: &[T], patches: &mut [T]) {
        let picture = self.slide.picture();
        let per_row = self.slide.columns * self.slide.patch();
        for (row, patches) in rows.zip(patches.chunks_exact_mut(per_row)) {
            let x = &x[row / self.slide.rows * picture..][..picture];
            self.slide.copy_row(row % self.slide.rows, x, patches);
        }
    }

    /// The gradients of x, of the weight and, if there is one, of the bias, where they are needed.
    pub(super) fn backward<T: Lanes>(
        &self,
        x: &Tensor,
        map: Map<'_>,
        gradient: &Tensor,
        is_needed: &[bool],
    ) -> Result<Vec<Option<Vec<T>>>> {
        let (x, weight) = (View::<T>::from_tensor(x)?, View::<T>::from_tensor(map.weight)?);
        let g = View::<T>::from_tensor(gradient)?;
        let (picture, batch) = (self.slide.picture(), self.slide.batch);
        let per_part = batch.div_ceil(PARTS);
        let mut dx = unwritten(if is_needed[0] { x.len() } else { 0 });
        let g_per_picture = g.len() / batch;
        let parts: Vec<Part<'_, T>> = {
            let mut dx = dx.chunks_mut(per_part * picture);
            let x = x.chunks(per_part * picture).zip(g.chunks(per_part * g_per_picture));
            x.map(|(x, g)| Part { x, g, dx: dx.next() }).collect()
        };
        let needs_bias = is_needed.get(2).copied().unwrap_or(false);
        let serial = SerialProducts::current();
        let sums = run::<T, _, _>(
            g.len(),
            parts.into_iter(),
            #[inline(always)]
            |part| self.part(part, &weight, [is_needed[1], needs_bias], &serial),
        );
        let (of_weight, of_bias): (Vec<Vec<T>>, Vec<Vec<T>>) =
            sums.into_iter().map(|[weight, bias]| (weight, bias)).unzip();
        let mut gradients = vec![
            is_needed[0].then_some(dx),
            is_needed[1].then(|| sum_in_order(&of_weight, weight.len())),
        ];
        if map.bias.is_some() {
            gradients.push(needs_bias.then(|| sum_in_order(&of_bias, self.n_outputs)));
        }
        Ok(gradients)
    }

    /// Writes the gradient of a part's pictures, and returns the terms that the part adds to the gradients of the
    /// weight and the bias.
    #[inline(always)]
    fn part<T: Lanes>(
        &self,
        part: Part<'_, T>,
        weight: &[T],
        [needs_weight, needs_bias]: [bool; 2],
        serial: &SerialProducts<T>,
    ) -> [Vec<T>; 2] {
        let Part { x, g, mut dx } = part;
        let (columns, patch, n_outputs) = (self.slide.columns, self.slide.patch(), self.n_outputs);
        let weight = Matrix::new(weight, (n_outputs, patch));
        let mut dweight = unwritten(if needs_weight { n_outputs * patch } else { 0 });
        let mut dbias = unwritten(if needs_bias { n_outputs } else { 0 });
        if let Some(dx) = dx.as_mut() {
            dx.fill(T::ZERO);
        }
        let block = self.rows_per_block();
        let mut scratch = Scratch::new();
        for (i, g) in g.chunks(block * columns * n_outputs).enumerate() {
            let n = g.len() / (columns * n_outputs);
            let rows = i * block..i * block + n;
            let g = Matrix::new(g, (n * columns, n_outputs));
            let [patches] = scratch.areas([n * columns * patch]);
            if needs_weight {
                self.copy(rows.clone(), x, patches);
                let patches = Matrix::new(patches, (n * columns, patch));
                let product = added_from(i, Product::new(g.transposed(), patches));
                serial.store(product, MatrixMut::new(&mut dweight, (n_outputs, patch)));
            }
            if needs_bias {
                let product = added_from(i, Product::sum_of_rows(g));
                serial.store(product, MatrixMut::new(&mut dbias, (1, n_outputs)));
            }
            if let Some(dx) = dx.as_mut() {
                serial
                    .store(Product::new(g, weight), MatrixMut::new(patches, (n * columns, patch)));
                self.add(rows, patches, dx);
            }
        }
        [dweight, dbias]
    }

    /// Adds the gradients of the patches of `rows`, counted over the pictures of `dx`.
    #[inline(always)]
    fn add<T: Lanes>(&self, rows: Range<usize>, patches: &[T], dx: &mut [T]) {
        let picture = self.slide.picture();
        let per_row = self.slide.columns * self.slide.patch();
        for (row, patches) in rows.zip(patches.chunks_exact(per_row)) {
            let dx = &mut dx[row / self.slide.rows * picture..][..picture];
            self.slide.add_row(row % self.slide.rows, patches, dx);
        }
    }
}

/// The product of block `i`, added to the products of earlier blocks.
fn added_from<T: Lanes>(i: usize, product: Product<'_, T>) -> Product<'_, T> {
    if i == 0 { product } else { product.accumulated() }
}

/// Some pictures, their gradients from above and, if it is needed, the memory of their own.
struct Part<'a, T> {
    x: &'a [T],
    g: &'a [T],
    dx: Option<&'a mut [T]>,
}

/// The transpose of a matrix of contiguous rows.
fn transposed<T: Lanes>(x: &[T], (rows, columns): (usize, usize)) -> Vec<T> {
    let mut y = unwritten(x.len());
    for (j, y) in y.chunks_exact_mut(rows).enumerate() {
        for (i, y) in y.iter_mut().enumerate() {
            *y = x[i * columns + j];
        }
    }
    y
}
