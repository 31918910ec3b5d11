//! Triangular systems of a chunk, by substitution in blocks of rows.

use crate::backend::gemm::{Product, SerialProducts};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::add_scaled;
use crate::backend::simd::vector::Lanes;

/// Rows that are solved one after the other; what they need of earlier rows is one product.
const BLOCK: usize = 16;

/// x ← (I − N)⁻¹ x for the `n (len, len)` whose elements on and above the diagonal are 0, and `x (len, width)`.
#[inline(always)]
pub(super) fn forward<T: Lanes>(products: &SerialProducts<T>, n: Matrix<'_, T>, x: &mut [T]) {
    let len = n.rows();
    let width = x.len() / len;
    for first in (0..len).step_by(BLOCK) {
        let end = len.min(first + BLOCK);
        let (solved, block) = x.split_at_mut(first * width);
        let block = &mut block[..(end - first) * width];
        if first > 0 {
            let rows = n.block(first..end, 0..first);
            let product = Product::new(rows, Matrix::new(solved, (first, width))).accumulated();
            products.store(product, MatrixMut::new(block, (end - first, width)));
        }
        for i in 1..end - first {
            let (solved, row) = block.split_at_mut(i * width);
            let factors = &n.row(first + i)[first..][..i];
            for (solved, &factor) in solved.chunks_exact(width).zip(factors) {
                add_scaled(&mut row[..width], solved, factor);
            }
        }
    }
}

/// x ← (I − N)⁻ᵀ x.
#[inline(always)]
pub(super) fn backward<T: Lanes>(products: &SerialProducts<T>, n: Matrix<'_, T>, x: &mut [T]) {
    let len = n.rows();
    let width = x.len() / len;
    for first in (0..len).step_by(BLOCK).rev() {
        let end = len.min(first + BLOCK);
        let (block, solved) = x[first * width..].split_at_mut((end - first) * width);
        if end < len {
            let columns = n.block(end..len, first..end).transposed();
            let product =
                Product::new(columns, Matrix::new(solved, (len - end, width))).accumulated();
            products.store(product, MatrixMut::new(block, (end - first, width)));
        }
        for i in (0..end - first - 1).rev() {
            let (row, solved) = block[i * width..].split_at_mut(width);
            for (j, solved) in solved.chunks_exact(width).enumerate() {
                add_scaled(row, solved, n.row(first + i + 1 + j)[first + i]);
            }
        }
    }
}
