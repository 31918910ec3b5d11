//! The CPU loop, forward and backward.

use super::{Dropout, scaled_or_zero};
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, block_len, run};

/// Philox blocks drawn at a time, so that the loop over them vectorises.
const BLOCKS: usize = 16;

/// Dropout(x), added to `base` if there is one.
pub(super) fn masked<T: Element>(dropout: &Dropout<T>, x: &[T], base: Option<&[T]>) -> Vec<T> {
    let mut y = unwritten(x.len());
    let len = block_len(1);
    run(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)).enumerate(),
        #[inline(always)]
        |(block, (y, x))| {
            let (y, x): (&mut [T], &[T]) = (y, x);
            dropout.factors(
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

/// See [`Dropout::factors`].
#[inline(always)]
pub(super) fn factors<T: Element>(
    dropout: &Dropout<T>,
    first: u64,
    len: usize,
    mut f: impl FnMut(usize, &[T]),
) {
    let &Dropout { stream, threshold, scale } = dropout;
    let mut factors = [T::ZERO; 4 * BLOCKS];
    let mut skipped = (first % 4) as usize;
    let (mut block, mut done) = (first / 4, 0);
    while done < len {
        let words = stream.blocks::<BLOCKS>(block);
        for lane in 0..BLOCKS {
            for (word, words) in words.iter().enumerate() {
                factors[4 * lane + word] = if words[lane] >= threshold { scale } else { T::ZERO };
            }
        }
        let n = (4 * BLOCKS - skipped).min(len - done);
        f(done, &factors[skipped..skipped + n]);
        done += n;
        (skipped, block) = (0, block + BLOCKS as u64);
    }
}
