//! The products and the softmax of their rows, in chunks of rows.

use candle_core::{Result, Tensor};

use crate::backend::buffer::{View, unwritten};
use crate::backend::gemm::{Product, store_all};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::{block_len, run as run_blocks};
use crate::backend::simd::vector::Lanes;
use crate::ops::cross_entropy::cpu::row_loss_and_gradient;
use crate::ops::linear::Map;
use crate::ops::linear::cpu::{Weights, add_chunk};

/// The labels and how they are smoothed.
pub(super) struct Targets {
    /// Each row's class; `None` for a row that is ignored.
    pub(super) classes: Vec<Option<usize>>,
    pub(super) n_classes: usize,
    pub(super) label_smoothing: f64,
}

/// The loss, and the gradients computed with it.
pub(super) struct Outcome<T> {
    pub(super) loss: f64,
    pub(super) hits: usize,
    /// The gradients of x, W and b (if there is one), where they are needed.
    pub(super) gradients: Vec<Option<Vec<T>>>,
}

/// The rows of a chunk: about 2²¹ logits, and at least 256 rows, because each chunk reads and writes the
/// gradient of W once.
fn rows_per_chunk(n_classes: usize) -> usize {
    const LOGITS: usize = 1 << 21;
    const FEWEST: usize = 256;
    (LOGITS / n_classes).max(FEWEST)
}

/// `is_needed`: whether to compute the gradients of x, W and b (if there is one).
pub(super) fn run<T: Lanes>(
    x: &Tensor,
    map: Map<'_>,
    targets: &Targets,
    is_needed: &[bool],
) -> Result<Outcome<T>> {
    let (n_rows, width) = x.dims2()?;
    let x = View::from_tensor(x)?;
    let x = Matrix::new(&x, (n_rows, width));
    let weights = Weights::from_map(map)?;
    let n_classes = targets.n_classes;
    let sizes = [n_rows * width, n_classes * width, n_classes];
    let mut gradients: Vec<Option<Vec<T>>> = is_needed
        .iter()
        .zip(sizes)
        .map(|(&is_needed, size)| is_needed.then(|| unwritten(size)))
        .collect();
    let is_differentiated = is_needed.contains(&true);

    let n_chunks = n_rows.div_ceil(rows_per_chunk(n_classes));
    let per_chunk = n_rows.div_ceil(n_chunks);
    let mut buffer = unwritten(per_chunk * n_classes);
    let (mut loss, mut hits) = (0., 0);
    for first in (0..n_rows).step_by(per_chunk) {
        let rows = first..(first + per_chunk).min(n_rows);
        let shape = (rows.len(), n_classes);
        let logits = &mut buffer[..rows.len() * n_classes];
        let x = x.block(rows.clone(), 0..width);
        store_all(vec![(weights.product(x), MatrixMut::new(logits, shape).into())]);
        let (of_rows, hits_of_rows) = losses_and_gradients(
            logits,
            &targets.classes[rows.clone()],
            targets,
            is_differentiated,
        );
        (loss, hits) = (loss + of_rows, hits + hits_of_rows);
        let d = Matrix::new(logits, shape);
        let of_x = (Product::new(d, weights.matrix()), (x.rows(), width));
        add_chunk(&mut gradients, first, of_x, weights.gradients(d, x));
    }
    Ok(Outcome { loss, hits, gradients })
}

/// The loss and the hits of rows of logits. If `is_differentiated`, the logits are overwritten with their
/// gradient.
fn losses_and_gradients<T: Lanes>(
    logits: &mut [T],
    classes: &[Option<usize>],
    targets: &Targets,
    is_differentiated: bool,
) -> (f64, usize) {
    let &Targets { n_classes, label_smoothing, .. } = targets;
    let len = block_len(n_classes);
    let partial = run_blocks::<T, _, _>(
        logits.len(),
        logits.chunks_mut(len).zip(classes.chunks(len / n_classes)),
        #[inline(always)]
        |(logits, classes): (&mut [T], &[Option<usize>])| {
            let (mut loss, mut hits) = (0., 0);
            for (row, &class) in logits.chunks_exact_mut(n_classes).zip(classes) {
                let Some(class) = class else {
                    row.fill(T::ZERO);
                    continue;
                };
                let (of_row, is_hit) =
                    row_loss_and_gradient(row, class, label_smoothing, is_differentiated);
                loss += of_row;
                hits += usize::from(is_hit);
            }
            (loss, hits)
        },
    );
    partial.into_iter().fold((0., 0), |sum, of_block| (sum.0 + of_block.0, sum.1 + of_block.1))
}

/// x ← factor · x
pub(super) fn scale<T: Lanes>(x: &mut [T], factor: T) {
    if factor == T::ONE {
        return;
    }
    let len = block_len(1);
    run_blocks::<T, _, _>(
        x.len(),
        x.chunks_mut(len),
        #[inline(always)]
        |x: &mut [T]| {
            for x in x {
                *x *= factor;
            }
        },
    );
}
