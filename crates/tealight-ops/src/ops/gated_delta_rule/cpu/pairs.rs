//! What the tokens of a chunk read of each other, [P; −A], and the gradients through it.

use std::ops::Range;

use super::workspace::{BLOCK, Workspace, multiply};
use crate::backend::element::Element;
use crate::backend::gemm::Product;
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::{add_scaled, sum_of_pairs};
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

/// With one decay for all features of the head: [Q; E] [B; K]ᵀ, times D.
#[inline(always)]
fn of_heads<T: Lanes>(space: &mut Workspace<'_, T>) {
    let Workspace { len, stack, right, .. } = *space;
    for i in 0..len {
        let decays = &mut space.decays[i * len..][..=i];
        let now = space.logs[i];
        for (decay, &before) in decays.iter_mut().zip(&space.logs) {
            *decay = T::narrow(now - before).exp();
        }
        for part in 0..stack {
            let (n, sign) = tokens_read(i, part);
            for key in 0..right {
                let at = ((part * len + i) * right + key) * len;
                let row = &mut space.pairs[at..at + len];
                multiply(&mut row[..n], &space.scores[at..], decays, sign);
                row[n..].fill(T::ZERO);
            }
        }
    }
}

/// How many tokens row `i` of P reads, or of −A, and the sign of its elements.
#[inline(always)]
fn tokens_read<T: Element>(i: usize, part: usize) -> (usize, T) {
    if part == 0 { (i + 1, T::ONE) } else { (i, -T::ONE) }
}

/// Multiplies row `i` of P or of −A by its sign, and zeros what it does not read.
#[inline(always)]
fn sign<T: Element>(row: &mut [T], i: usize, part: usize) {
    let (n, sign) = tokens_read(i, part);
    for x in &mut row[..n] {
        *x *= sign;
    }
    row[n..].fill(T::ZERO);
}

/// With one decay for all features: the gradient of [Q; E] [B; K]ᵀ, in place of that of [P; −A].
#[inline(always)]
pub(super) fn of_scores<T: Lanes>(space: &Workspace<'_, T>, dpairs: &mut [T]) {
    let Workspace { len, stack, right, .. } = *space;
    for i in 0..len {
        let decays = &space.decays[i * len..][..=i];
        for part in 0..stack {
            let (n, sign) = tokens_read::<T>(i, part);
            for key in 0..right {
                let row = &mut dpairs[((part * len + i) * right + key) * len..][..len];
                for (x, &decay) in row[..n].iter_mut().zip(decays) {
                    *x *= sign * decay;
                }
                row[n..].fill(T::ZERO);
            }
        }
    }
}

/// The gradients of [Q; E] and [B; K] through their product, whose gradient is `dscores`, added to `dleft` and `dkey`.
#[inline(always)]
pub(super) fn through_scores<T: Lanes>(
    space: &Workspace<'_, T>,
    dscores: &[T],
    dleft: &mut [T],
    dkey: &mut [T],
) {
    let Workspace { len, n_features, stack, right, .. } = *space;
    let dscores = Matrix::new(dscores, (stack * len, right * len));
    let key = Matrix::new(&space.key, (right * len, n_features));
    let product = Product::new(dscores, key).accumulated();
    space.products.store(product, MatrixMut::new(dleft, (stack * len, n_features)));
    let left = Matrix::new(&space.left, (stack * len, n_features));
    let product = Product::new(dscores.transposed(), left).accumulated();
    space.products.store(product, MatrixMut::new(dkey, (right * len, n_features)));
}

/// With a decay for each feature: products of the factors of [`anchor`]. Pairs whose factors are cut off there are
/// computed one by one.
#[inline(always)]
fn of_features<T: Lanes>(space: &mut Workspace<'_, T>) {
    let Workspace { len, n_features: n, stack, right, .. } = *space;
    for first in (0..len).step_by(BLOCK) {
        let end = len.min(first + BLOCK);
        let n_rows = end - first;
        let strong = anchor(space, first..end);
        let Workspace { pairs, block, products, left, key: keys, logs, .. } = space;
        for part in 0..stack {
            for key in 0..right {
                let rows = Matrix::new(&block.left[part * n_rows * n..], (n_rows, n));
                let columns = Matrix::new(&block.key[key * end * n..], (end, n)).transposed();
                let target = &mut pairs[((part * len + first) * right + key) * len..];
                let target = &mut target[..(n_rows - 1) * right * len + end];
                let target = MatrixMut::strided(target, (n_rows, end), right * len);
                products.store(Product::new(rows, columns), target);
            }
        }
        for i in strong..end {
            for j in first..=i {
                exponentials(&mut block.decay, &logs[i * n..], &logs[j * n..]);
                for key in 0..right {
                    multiply(&mut block.pair, &keys[(key * len + j) * n..], &block.decay, T::ONE);
                    for part in 0..stack {
                        let left = &left[(part * len + i) * n..][..n];
                        pairs[((part * len + i) * right + key) * len + j] =
                            sum_of_pairs(left, &block.pair, |x, y| x * y);
                    }
                }
            }
        }
        for i in first..end {
            for part in 0..stack {
                let rows = &mut pairs[(part * len + i) * right * len..][..right * len];
                for row in rows.chunks_exact_mut(len) {
                    sign(row, i, part);
                }
            }
        }
    }
}

/// The gradients of [Q; E] and [B; K] through [`of_features`], added to `dleft` and `dkey`. `dpairs` holds the gradient of
/// [P; −A].
#[inline(always)]
pub(super) fn of_features_backward<T: Lanes>(
    space: &mut Workspace<'_, T>,
    dpairs: &mut [T],
    dleft: &mut [T],
    dkey: &mut [T],
) {
    let Workspace { len, n_features: n, stack, right, .. } = *space;
    let columns = right * len;
    for first in (0..len).step_by(BLOCK) {
        let end = len.min(first + BLOCK);
        let n_rows = end - first;
        let strong = anchor(space, first..end);
        for part in 0..stack {
            for i in first..end {
                for row in dpairs[(part * len + i) * columns..][..columns].chunks_exact_mut(len) {
                    sign(row, i, part);
                }
            }
        }
        one_by_one_backward(space, (first, strong..end), dpairs, dleft, dkey);
        let Workspace { block, products, .. } = space;
        for part in 0..stack {
            for key in 0..right {
                let of_block = &dpairs[part * len * columns..(part + 1) * len * columns];
                let of_block = Matrix::new(of_block, (len, columns))
                    .block(first..end, key * len..key * len + end);
                let of_key = Matrix::new(&block.key[key * end * n..], (end, n));
                let product = &mut block.product[..n_rows * n];
                products
                    .store(Product::new(of_block, of_key), MatrixMut::new(product, (n_rows, n)));
                let target = &mut dleft[(part * len + first) * n..][..n_rows * n];
                add_product(target, product, &block.rows);

                let rows = Matrix::new(&block.left[part * n_rows * n..], (n_rows, n));
                let product = &mut block.product[..end * n];
                let of_keys = Product::new(of_block.transposed(), rows);
                products.store(of_keys, MatrixMut::new(product, (end, n)));
                let target = &mut dkey[key * len * n..][..end * n];
                add_product(target, product, &block.columns);
            }
        }
    }
}

/// The same of the pairs that [`of_features`] computes one by one, those of the tokens `strong` of a block with its tokens
/// from `first` on. Zeros their gradients in `dpairs`, where products would count them again.
#[inline(always)]
fn one_by_one_backward<T: Lanes>(
    space: &mut Workspace<'_, T>,
    (first, strong): (usize, Range<usize>),
    dpairs: &mut [T],
    dleft: &mut [T],
    dkey: &mut [T],
) {
    let Workspace { len, n_features: n, stack, right, .. } = *space;
    let Workspace { block, left, key: keys, logs, .. } = space;
    for i in strong {
        for j in first..=i {
            exponentials(&mut block.decay, &logs[i * n..], &logs[j * n..]);
            for key in 0..right {
                let of_token = (key * len + j) * n;
                multiply(&mut block.pair, &keys[of_token..], &block.decay, T::ONE);
                let of_key = &mut dkey[of_token..][..n];
                for part in 0..stack {
                    let at = ((part * len + i) * right + key) * len + j;
                    let slope = std::mem::replace(&mut dpairs[at], T::ZERO);
                    let row = (part * len + i) * n;
                    add_scaled(&mut dleft[row..][..n], &block.pair, slope);
                    let factors = block.decay.iter().zip(&left[row..]);
                    for (x, (&decay, &left)) in of_key.iter_mut().zip(factors) {
                        *x += slope * decay * left;
                    }
                }
            }
        }
    }
}

/// The factors of a block of tokens, and of all tokens up to its last, relative to its first. Returns the first token at
/// which G_a − G_i > `LARGEST` for some feature: from it on, pairs within the block are wrong as products, because
/// e^(G_a − G_j) is cut off. Whether a token is before it depends on no later token, so later tokens change no bit of an
/// output.
#[inline(always)]
fn anchor<T: Lanes>(space: &mut Workspace<'_, T>, tokens: Range<usize>) -> usize {
    /// The largest exponent of a factor. In f32 an exponent up to 8 is off by at most 2.4e-7, and so is, relatively, its
    /// factor.
    const LARGEST: f64 = 8.;
    let Workspace { len, n_features: n, stack, right, .. } = *space;
    let Workspace { block, left, key, logs, .. } = space;
    let Range { start: first, end } = tokens;
    let (n_rows, all) = (end - first, end * n);
    let origin = &logs[first * n..][..n];
    let mut strong = end;
    for i in (first..end).rev() {
        let mut largest = 0_f64;
        for (&origin, &log) in origin.iter().zip(&logs[i * n..]) {
            largest = largest.max(origin - log);
        }
        if largest > LARGEST {
            strong = i;
        }
    }
    let rows = block.rows.chunks_exact_mut(n).zip(logs[first * n..].chunks_exact(n));
    for (row, logs) in rows.take(n_rows) {
        exponentials(row, logs, origin);
    }
    let columns = block.columns.chunks_exact_mut(n).zip(logs.chunks_exact(n));
    for (row, logs) in columns.take(end) {
        for (x, (&origin, &log)) in row.iter_mut().zip(origin.iter().zip(logs)) {
            *x = T::narrow((origin - log).min(LARGEST)).exp();
        }
    }
    for part in 0..right {
        let key = &key[part * len * n..];
        multiply(&mut block.key[part * all..][..all], key, &block.columns, T::ONE);
    }
    for part in 0..stack {
        let rows = &left[(part * len + first) * n..];
        multiply(&mut block.left[part * n_rows * n..][..n_rows * n], rows, &block.rows, T::ONE);
    }
    strong
}

/// y ← e^(a − b)
#[inline(always)]
fn exponentials<T: Element>(y: &mut [T], a: &[f64], b: &[f64]) {
    for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y = T::narrow(a - b).exp();
    }
}

/// y ← y + a ⊙ b
#[inline(always)]
fn add_product<T: Element>(y: &mut [T], a: &[T], b: &[T]) {
    for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y += a * b;
    }
}
