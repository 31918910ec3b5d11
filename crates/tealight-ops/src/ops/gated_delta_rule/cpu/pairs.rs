//! What the tokens of a chunk read of each other, [P; −A], and the gradients through it.

use super::workspace::{BLOCK, Workspace, multiply};
use crate::backend::element::Element;
use crate::backend::gemm::Product;
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::sum_of_pairs;
use crate::backend::simd::vector::Lanes;

/// [P; −A] of the chunk in `space`.
#[inline(always)]
pub(super) fn of<T: Lanes>(space: &mut Workspace<'_, T>) {
    if space.decays_features {
        of_features(space);
    } else {
        of_heads(space);
    }
}

/// With one decay for all features of the head: [Q; E] Kᵀ, times D.
#[inline(always)]
fn of_heads<T: Lanes>(space: &mut Workspace<'_, T>) {
    let Workspace { len, stack, .. } = *space;
    let (reads, erases) = space.pairs.split_at_mut(len * len);
    for i in 0..len {
        let decays = &mut space.decays[i * len..][..=i];
        let now = space.logs[i];
        for (decay, &before) in decays.iter_mut().zip(&space.logs) {
            *decay = T::narrow(now - before).exp();
        }
        let row = &mut reads[i * len..][..len];
        multiply(&mut row[..=i], &space.scores[i * len..], decays, T::ONE);
        row[i + 1..].fill(T::ZERO);
        if stack == 2 {
            let row = &mut erases[i * len..][..len];
            multiply(&mut row[..i], &space.scores[(len + i) * len..], decays, -T::ONE);
            row[i..].fill(T::ZERO);
        }
    }
}

/// With one decay for all features: the gradient of [Q; E] Kᵀ, in place of that of [P; −A].
#[inline(always)]
pub(super) fn of_scores<T: Lanes>(space: &Workspace<'_, T>, dpairs: &mut [T]) {
    let Workspace { len, stack, .. } = *space;
    let (reads, erases) = dpairs.split_at_mut(len * len);
    for i in 0..len {
        let decays = &space.decays[i * len..][..=i];
        let row = &mut reads[i * len..][..len];
        for (x, &decay) in row.iter_mut().zip(decays) {
            *x *= decay;
        }
        row[i + 1..].fill(T::ZERO);
        if stack == 2 {
            let row = &mut erases[i * len..][..len];
            for (x, &decay) in row.iter_mut().zip(&decays[..i]) {
                *x *= -decay;
            }
            row[i..].fill(T::ZERO);
        }
    }
}

/// The gradients of Q, E and K through [Q; E] Kᵀ, whose gradient is `dscores`, added to `dleft` and `dkey`.
#[inline(always)]
pub(super) fn through_scores<T: Lanes>(
    space: &Workspace<'_, T>,
    dscores: &[T],
    dleft: &mut [T],
    dkey: &mut [T],
) {
    let Workspace { len, n_features, stack, .. } = *space;
    let dscores = Matrix::new(dscores, (stack * len, len));
    let key = Matrix::new(&space.key, (len, n_features));
    let product = Product::new(dscores, key).accumulated();
    space.products.store(product, MatrixMut::new(dleft, (stack * len, n_features)));
    let left = Matrix::new(&space.left, (stack * len, n_features));
    let product = Product::new(dscores.transposed(), left).accumulated();
    space.products.store(product, MatrixMut::new(dkey, (len, n_features)));
}

/// With a decay for each feature.
#[inline(always)]
fn of_features<T: Lanes>(space: &mut Workspace<'_, T>) {
    let Workspace { len, n_features: n, stack, .. } = *space;
    for first in (0..len).step_by(BLOCK) {
        let end = len.min(first + BLOCK);
        anchor(space, first..end);
        let n_rows = end - first;
        let Workspace { pairs, block, products, left, key, logs, .. } = space;
        for part in 0..stack {
            // Those of earlier blocks.
            if first > 0 {
                let rows = Matrix::new(&block.left[part * n_rows * n..], (n_rows, n));
                let columns = Matrix::new(&block.key, (first, n)).transposed();
                let target = &mut pairs[(part * len + first) * len..][..(n_rows - 1) * len + first];
                let target = MatrixMut::strided(target, (n_rows, first), len);
                products.store(Product::new(rows, columns), target);
            }
            if part == 1 {
                for row in pairs[(len + first) * len..].chunks_exact_mut(len).take(n_rows) {
                    for x in &mut row[..first] {
                        *x = -*x;
                    }
                }
            }
        }
        for i in first..end {
            let query = &left[i * n..][..n];
            for j in first..=i {
                decayed_key(&mut block.pair, [&logs[i * n..], &logs[j * n..]], &key[j * n..]);
                pairs[i * len + j] = sum_of_pairs(query, &block.pair, |x, y| x * y);
                if stack == 2 && j < i {
                    let erase = &left[(len + i) * n..][..n];
                    let sum = sum_of_pairs(erase, &block.pair, |x, y| x * y);
                    pairs[(len + i) * len + j] = -sum;
                }
            }
            pairs[i * len..][i + 1..len].fill(T::ZERO);
            if stack == 2 {
                pairs[(len + i) * len..][i..len].fill(T::ZERO);
            }
        }
    }
}

/// The gradients through [`of_features`], as [`of_heads_backward`].
#[inline(always)]
pub(super) fn of_features_backward<T: Lanes>(
    space: &mut Workspace<'_, T>,
    dpairs: &mut [T],
    dleft: &mut [T],
    dkey: &mut [T],
) {
    let Workspace { len, n_features: n, stack, .. } = *space;
    if stack == 2 {
        for x in &mut dpairs[len * len..2 * len * len] {
            *x = -*x;
        }
    }
    for first in (0..len).step_by(BLOCK) {
        let end = len.min(first + BLOCK);
        anchor(space, first..end);
        let n_rows = end - first;
        let Workspace { block, products, left, key, logs, .. } = space;
        for part in 0..stack {
            if first == 0 {
                break;
            }
            let of_block =
                Matrix::new(&dpairs[part * len * len..], (len, len)).block(first..end, 0..first);
            let columns = Matrix::new(&block.key, (first, n));
            let product = &mut block.product[..n_rows * n];
            products.store(Product::new(of_block, columns), MatrixMut::new(product, (n_rows, n)));
            let target = &mut dleft[(part * len + first) * n..][..n_rows * n];
            add_product(target, product, &block.rows);

            let rows = Matrix::new(&block.left[part * n_rows * n..], (n_rows, n));
            let product = &mut block.product[..first * n];
            let of_keys = Product::new(of_block.transposed(), rows);
            products.store(of_keys, MatrixMut::new(product, (first, n)));
            add_product(&mut dkey[..first * n], product, &block.columns);
        }
        for i in first..end {
            for j in first..=i {
                let of_key = &mut dkey[j * n..][..n];
                decayed_key(&mut block.pair, [&logs[i * n..], &logs[j * n..]], &key[j * n..]);
                for part in 0..stack {
                    if part == 1 && j == i {
                        continue;
                    }
                    let slope = dpairs[(part * len + i) * len + j];
                    let row = (part * len + i) * n;
                    for (x, &pair) in dleft[row..][..n].iter_mut().zip(&block.pair) {
                        *x += slope * pair;
                    }
                    decay_into(of_key, &left[row..][..n], slope, [&logs[i * n..], &logs[j * n..]]);
                }
            }
        }
    }
}

/// The factors of a block of tokens and of those before it, relative to its first.
#[inline(always)]
fn anchor<T: Lanes>(space: &mut Workspace<'_, T>, tokens: std::ops::Range<usize>) {
    let Workspace { len, n_features: n, stack, .. } = *space;
    let Workspace { block, left, key, logs, .. } = space;
    let (first, n_rows) = (tokens.start, tokens.len());
    if first == 0 {
        return;
    }
    let (before, rest) = logs.split_at(first * n);
    let origin = &rest[..n];
    for (row, logs) in block.rows.chunks_exact_mut(n).zip(rest.chunks_exact(n)).take(n_rows) {
        exponentials(row, logs, origin);
    }
    for (row, logs) in block.columns.chunks_exact_mut(n).zip(before.chunks_exact(n)) {
        exponentials(row, origin, logs);
    }
    multiply(&mut block.key[..first * n], key, &block.columns, T::ONE);
    for part in 0..stack {
        let rows = &left[(part * len + first) * n..];
        multiply(&mut block.left[part * n_rows * n..][..n_rows * n], rows, &block.rows, T::ONE);
    }
}

/// y ← e^(a − b)
#[inline(always)]
fn exponentials<T: Element>(y: &mut [T], a: &[f64], b: &[f64]) {
    for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y = T::narrow(a - b).exp();
    }
}

/// y ← e^(G_i − G_j) ⊙ k_j
#[inline(always)]
fn decayed_key<T: Element>(y: &mut [T], [now, then]: [&[f64]; 2], key: &[T]) {
    for ((y, &key), (&now, &then)) in y.iter_mut().zip(key).zip(now.iter().zip(then)) {
        *y = T::narrow(now - then).exp() * key;
    }
}

/// y ← y + slope e^(G_i − G_j) ⊙ x
#[inline(always)]
fn decay_into<T: Element>(y: &mut [T], x: &[T], slope: T, [now, then]: [&[f64]; 2]) {
    for ((y, &x), (&now, &then)) in y.iter_mut().zip(x).zip(now.iter().zip(then)) {
        *y += slope * T::narrow(now - then).exp() * x;
    }
}

/// y ← y + a ⊙ b
#[inline(always)]
fn add_product<T: Element>(y: &mut [T], a: &[T], b: &[T]) {
    for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y += a * b;
    }
}
