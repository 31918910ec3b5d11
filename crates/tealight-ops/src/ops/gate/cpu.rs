//! The CPU loops: one pass over x and v.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, by_blocks, run};
use crate::ops::activation::{Elementwise, activate, activate_backward};

/// Each `width` elements of v gate `repeats` consecutive runs of `width` elements of x.
pub(super) fn forward<T: Element, A: Elementwise>(
    x: &[T],
    v: &[T],
    (repeats, width): (usize, usize),
) -> Vec<T> {
    let len = block_len(repeats * width);
    by_blocks(
        (x, len),
        (v, len / repeats),
        #[inline(always)]
        |y, x, v| {
            y.copy_from_slice(x);
            activate::<T, A>(y);
            for (y, v) in y.chunks_exact_mut(repeats * width).zip(v.chunks_exact(width)) {
                for y in y.chunks_exact_mut(width) {
                    for (y, &v) in y.iter_mut().zip(v) {
                        *y *= v;
                    }
                }
            }
        },
    )
}

/// The gradients of x and v.
pub(super) fn backward<T: Element, A: Elementwise>(
    x: &[T],
    v: &[T],
    gradient: &[T],
    (repeats, width): (usize, usize),
) -> [Vec<T>; 2] {
    let (mut dx, mut dv) = (unwritten(x.len()), unwritten(v.len()));
    let len = block_len(repeats * width);
    let of_v = len / repeats;
    let outputs = dx.chunks_mut(len).zip(dv.chunks_mut(of_v));
    let inputs = x.chunks(len).zip(v.chunks(of_v)).zip(gradient.chunks(len));
    run::<T, _, _>(
        x.len(),
        outputs.zip(inputs),
        #[inline(always)]
        |((dx, dv), ((x, v), g))| {
            let (dx, dv): (&mut [T], &mut [T]) = (dx, dv);
            let (x, v, g): (&[T], &[T], &[T]) = (x, v, g);
            dx.copy_from_slice(g);
            let mut y = x.to_vec();
            activate_backward::<T, A>(dx, &mut y);
            let example = repeats * width;
            let inputs = y.chunks_exact(example).zip(g.chunks_exact(example));
            let examples = dx.chunks_exact_mut(example).zip(inputs);
            let gated = v.chunks_exact(width).zip(dv.chunks_exact_mut(width));
            for ((dx, (y, g)), (v, dv)) in examples.zip(gated) {
                dv.fill(T::ZERO);
                let rows = y.chunks_exact(width).zip(g.chunks_exact(width));
                for (dx, (y, g)) in dx.chunks_exact_mut(width).zip(rows) {
                    let results = dx.iter_mut().zip(dv.iter_mut());
                    for ((dx, dv), ((&y, &v), &g)) in results.zip(y.iter().zip(v).zip(g)) {
                        *dx *= v;
                        *dv += g * y;
                    }
                }
            }
        },
    );
    [dx, dv]
}
