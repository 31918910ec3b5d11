//! Fused loops: in blocks of fixed size, on several threads, with the widest SIMD instructions.
//!
//! Blocks depend on the shape only. Sums over blocks, in their order, and over lanes, whose number is fixed, are
//! therefore bit-identical whatever the number of threads.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::simd::vectorised;
use crate::backend::threads::map;

/// Elements per block: 32 KiB in f32, which stay in the second-level cache.
const BLOCK: usize = 8_192;

/// Loops over fewer elements run on one thread: waking another costs more than it saves.
const PARALLEL_FROM: usize = 16_384;

/// Partial sums of a reduction, as many as an AVX-512 register has f32 elements.
pub(crate) const LANES: usize = 16;

/// Elements per block, a multiple of the row length `width`.
pub(crate) fn block_len(width: usize) -> usize {
    (BLOCK / width).max(1) * width
}

/// Runs `work` on every block of numbers of type T, compiled for the widest instruction set; the results are in the
/// order of the blocks.
///
/// `work` and all functions that it calls must be `#[inline(always)]`: only code that is inlined here is compiled
/// for the instruction set found at run time. For the same reason it loops with `for`: `fold` and `for_each` of
/// the standard library may not be inlined, and are then compiled for the baseline.
#[inline(always)]
#[expect(clippy::redundant_closure, reason = "a reference would not be inlined, see `vectorised`")]
pub(crate) fn run<T: Element, B: Send, R: Send>(
    n_elements: usize,
    blocks: impl Iterator<Item = B>,
    work: impl Fn(B) -> R + Send + Sync,
) -> Vec<R> {
    let work = |block| {
        vectorised::<T, _, _>(
            block,
            #[inline(always)]
            |block| work(block),
        )
    };
    if n_elements < PARALLEL_FROM {
        return blocks.map(work).collect();
    }
    map(blocks.collect(), &work)
}

/// A new buffer: `work` writes each block of at most `len_a` elements from the same block of `a`, and from the block of
/// `b` that belongs to it, of at most `len_b` elements. It is subject to the rules of [`run`].
#[inline(always)]
pub(crate) fn by_blocks<T: Element, U: Sync>(
    (a, len_a): (&[T], usize),
    (b, len_b): (&[U], usize),
    work: impl Fn(&mut [T], &[T], &[U]) + Send + Sync,
) -> Vec<T> {
    let mut output = unwritten(a.len());
    run::<T, _, _>(
        a.len(),
        output.chunks_mut(len_a).zip(a.chunks(len_a).zip(b.chunks(len_b))),
        #[inline(always)]
        |(output, (a, b))| work(output, a, b),
    );
    output
}

/// As [`by_blocks`], row by row: each row of `a` and of `b` has `width` elements.
#[inline(always)]
pub(crate) fn by_rows<T: Element>(
    a: &[T],
    b: &[T],
    width: usize,
    work: impl Fn(&mut [T], &[T], &[T]) + Send + Sync,
) -> Vec<T> {
    let len = block_len(width);
    by_blocks(
        (a, len),
        (b, len),
        #[inline(always)]
        |output, a, b| {
            let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
            for (output, (a, b)) in output.chunks_exact_mut(width).zip(rows) {
                work(output, a, b);
            }
        },
    )
}

/// Σ f(x)
#[inline(always)]
pub(crate) fn sum<T: Element, A: Element>(x: &[T], f: impl Fn(T) -> A) -> A {
    reduce(
        x,
        A::ZERO,
        #[inline(always)]
        |sum, x| sum + f(x),
        |a, b| a + b,
    )
}

/// Σ x² of one block, accumulated in f64.
#[inline(always)]
pub(crate) fn squares<T: Element>(x: &[T]) -> f64 {
    sum(x, |x| x.widen() * x.widen())
}

/// Σ x², accumulated in f64, on several threads.
pub(crate) fn sum_of_squares<T: Element>(x: &[T]) -> f64 {
    let partial = run::<T, _, _>(
        x.len(),
        x.chunks(block_len(1)),
        #[inline(always)]
        |block| squares(block),
    );
    partial.into_iter().sum()
}

/// Σ f(x, y)
#[inline(always)]
pub(crate) fn sum_of_pairs<T: Element>(x: &[T], y: &[T], f: impl Fn(T, T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (mut xs, mut ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    for (x, y) in (&mut xs).zip(&mut ys) {
        for (lane, (&x, &y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += f(x, y);
        }
    }
    for (lane, (&x, &y)) in lanes.iter_mut().zip(xs.remainder().iter().zip(ys.remainder())) {
        *lane += f(x, y);
    }
    fold(lanes, |a, b| a + b)
}

/// max x, or −∞ if x is empty. NaN is ignored: it reaches the result through the sum that follows each maximum.
#[inline(always)]
pub(crate) fn max<T: Element>(x: &[T]) -> T {
    reduce(x, T::NEG_INFINITY, larger, larger)
}

/// min x, or ∞ if x is empty. NaN is ignored.
#[inline(always)]
pub(crate) fn min<T: Element>(x: &[T]) -> T {
    reduce(x, -T::NEG_INFINITY, smaller, smaller)
}

#[inline(always)]
fn smaller<T: Element>(a: T, b: T) -> T {
    if b < a { b } else { a }
}

#[inline(always)]
fn larger<T: Element>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// Adds each of `x` to one of the lanes, which begin as `start`, and joins the lanes.
#[inline(always)]
fn reduce<T: Element, A: Element>(
    x: &[T],
    start: A,
    add: impl Fn(A, T) -> A,
    join: impl Fn(A, A) -> A,
) -> A {
    let mut lanes = [start; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = add(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = add(*lane, x);
    }
    fold(lanes, join)
}

/// `max`, or 0 if it is −∞, as −∞ − (−∞) would be NaN.
#[inline(always)]
pub(crate) fn finite<T: Element>(max: T) -> T {
    if max == T::NEG_INFINITY { T::ZERO } else { max }
}

/// y ← y + a x
#[inline(always)]
pub(crate) fn add_scaled<T: Element>(y: &mut [T], x: &[T], a: T) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// Whether no element is NaN.
#[inline(always)]
pub(crate) fn all_numbers<T: Element>(x: &[T]) -> bool {
    let mut all = true;
    for &x in x {
        all &= x >= T::NEG_INFINITY;
    }
    all
}

/// Reduces the lanes to one number, pairing the halves until one is left.
#[inline(always)]
pub(crate) fn fold<T: Element>(mut lanes: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The sum of vectors of length `width`, added in their order.
pub(crate) fn sum_in_order<T: Element>(vectors: &[Vec<T>], width: usize) -> Vec<T> {
    let mut total = vec![T::ZERO; width];
    for vector in vectors {
        for (total, &x) in total.iter_mut().zip(vector) {
            *total += x;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 6] = [0, 1, 15, 16, 17, 101];

    #[test]
    fn reductions_see_every_element_once() {
        for n in LENGTHS {
            let x: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let n = n as f64;
            assert_eq!(sum(&x, |x| x), n * (n - 1.) / 2.);
            assert_eq!(sum_of_pairs(&x, &x, |x, y| x - y + 1.), n);
            assert_eq!(max(&x), if n == 0. { f64::NEG_INFINITY } else { n - 1. });
            assert_eq!(min(&x), if n == 0. { f64::INFINITY } else { 0. });
        }
    }

    #[test]
    fn results_are_in_the_order_of_the_blocks() {
        let results = run::<f32, _, _>(PARALLEL_FROM, 0..1_009, |i| 3 * i);
        assert_eq!(results, (0..1_009).map(|i| 3 * i).collect::<Vec<_>>());
    }

    #[test]
    fn a_block_holds_whole_rows() {
        for width in [1, 7, BLOCK - 1, BLOCK, BLOCK + 1] {
            assert!(block_len(width) >= width && block_len(width).is_multiple_of(width));
        }
    }
}
