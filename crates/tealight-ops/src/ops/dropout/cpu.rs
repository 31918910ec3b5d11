//! The CPU loop, forward and backward.

use super::{Draw, threshold};
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, block_len, run};
use crate::rng::Stream;

/// Philox blocks drawn at a time, so that the loop over them vectorises.
const BLOCKS: usize = 16;

pub(crate) struct Dropout<T> {
    stream: Stream,
    threshold: u32,
    scale: T,
}

impl<T: Element> Dropout<T> {
    pub(crate) fn new(Draw { rate, stream }: Draw) -> Self {
        Self { stream, threshold: threshold(rate), scale: T::from_f64(1. / (1. - rate)) }
    }

    /// Dropout(x), added to `base` if there is one. Without `base`, it is also the backward, of the gradient.
    pub(crate) fn apply(&self, x: &[T], base: Option<&[T]>) -> Vec<T> {
        let mut y = unwritten(x.len());
        let len = block_len(1);
        run::<T, _, _>(
            x.len(),
            y.chunks_mut(len).zip(x.chunks(len)).enumerate(),
            #[inline(always)]
            |(block, (y, x))| {
                let (y, x): (&mut [T], &[T]) = (y, x);
                self.factors(
                    (block * len) as u64,
                    y.len(),
                    #[inline(always)]
                    |at, factors| {
                        for ((y, &x), &factor) in y[at..].iter_mut().zip(&x[at..]).zip(factors) {
                            *y = scaled_or_zero(x, factor);
                        }
                    },
                );
                if let Some(base) = base {
                    let start = block * len;
                    add_scaled(y, &base[start..start + y.len()], T::ONE);
                }
            },
        );
        y
    }

    /// Calls `f` with the factors (0 or the scale) of the `len` elements from number `first` on, in runs: the
    /// offset of a run, and its factors.
    #[inline(always)]
    pub(crate) fn factors(&self, first: u64, len: usize, mut f: impl FnMut(usize, &[T])) {
        let &Self { stream, threshold, scale } = self;
        let mut factors = [T::ZERO; 4 * BLOCKS];
        let mut skipped = (first % 4) as usize;
        let (mut block, mut done) = (first / 4, 0);
        while done < len {
            let words = stream.blocks::<BLOCKS>(block);
            for lane in 0..BLOCKS {
                for (word, words) in words.iter().enumerate() {
                    let is_kept = words[lane] >= threshold;
                    factors[4 * lane + word] = if is_kept { scale } else { T::ZERO };
                }
            }
            let n = (4 * BLOCKS - skipped).min(len - done);
            f(done, &factors[skipped..skipped + n]);
            done += n;
            (skipped, block) = (0, block + BLOCKS as u64);
        }
    }
}

/// x · factor, but 0 for a factor of 0 even if x is NaN or infinite.
#[inline(always)]
pub(crate) fn scaled_or_zero<T: Element>(x: T, factor: T) -> T {
    if factor == T::ZERO { T::ZERO } else { x * factor }
}
