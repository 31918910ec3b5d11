//! The CPU loops: one pass over x and v.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};
use crate::ops::activation::{Elementwise, activate, activate_backward};

/// Each `width` elements of v gate `repeats` consecutive runs of `width` elements of x.
pub(super) fn forward<T: Element, A: Elementwise>(
    x: &[T],
    v: &[T],
    (repeats, width): (usize, usize),
) -> Vec<T> {
    let mut y = unwritten(x.len());
    let (len, of_v) = lens(repeats, width);
    run(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len).zip(v.chunks(of_v))),
        #[inline(always)]
        |(y, (x, v)): (&mut [T], (&[T], &[T]))| {
            y.copy_from_slice(x);
            activate::<T, A>(y);
            let span = if repeats == 1 { v.len() } else { width };
            for (y, v) in y.chunks_mut(repeats * span).zip(v.chunks(span)) {
                for y in y.chunks_exact_mut(span) {
                    for (y, &v) in y.iter_mut().zip(v) {
                        *y *= v;
                    }
                }
            }
        },
    );
    y
}

/// The gradients of x and v.
pub(super) fn backward<T: Element, A: Elementwise>(
    x: &[T],
    v: &[T],
    gradient: &[T],
    (repeats, width): (usize, usize),
) -> [Vec<T>; 2] {
    let (mut dx, mut dv) = (unwritten(x.len()), unwritten(v.len()));
    let (len, of_v) = lens(repeats, width);
    let outputs = dx.chunks_mut(len).zip(dv.chunks_mut(of_v));
    let inputs = x.chunks(len).zip(v.chunks(of_v)).zip(gradient.chunks(len));
    run(
        x.len(),
        outputs.zip(inputs),
        #[inline(always)]
        |((dx, dv), ((x, v), g))| {
            let (dx, dv): (&mut [T], &mut [T]) = (dx, dv);
            let (x, v, g): (&[T], &[T], &[T]) = (x, v, g);
            dx.copy_from_slice(g);
            let mut y = x.to_vec();
            activate_backward::<T, A>(dx, &mut y);
            let span = if repeats == 1 { v.len() } else { width };
            let examples = dx.chunks_mut(repeats * span);
            let examples = examples.zip(y.chunks(repeats * span).zip(g.chunks(repeats * span)));
            let gated = v.chunks(span).zip(dv.chunks_mut(span));
            for ((dx, (y, g)), (v, dv)) in examples.zip(gated) {
                dv.fill(T::ZERO);
                let rows = y.chunks_exact(span).zip(g.chunks_exact(span));
                for (dx, (y, g)) in dx.chunks_exact_mut(span).zip(rows) {
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

/// The elements of a block of x, and those of v that gate them.
fn lens(repeats: usize, width: usize) -> (usize, usize) {
    if repeats == 1 {
        return (block_len(1), block_len(1));
    }
    let len = block_len(repeats * width);
    (len, len / repeats)
}
