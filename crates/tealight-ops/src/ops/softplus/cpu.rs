//! The CPU loops, row by row.

use super::TERMS;
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run, sum_in_order};

pub(super) fn forward<T: Element>(x: &[T], bias: &[T], scale: &[T]) -> Vec<T> {
    let (mut y, width) = (unwritten(x.len()), bias.len());
    let len = block_len(width);
    run::<T, _, _>(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)),
        #[inline(always)]
        |(y, x)| {
            for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                let parameters = bias.iter().zip(scale);
                for ((y, &x), (&bias, &scale)) in y.iter_mut().zip(x).zip(parameters) {
                    *y = scale * softplus(x + bias).0;
                }
            }
        },
    );
    y
}

/// The gradients of x, bias and scale.
pub(super) fn backward<T: Element>(
    x: &[T],
    bias: &[T],
    scale: &[T],
    gradient: &[T],
) -> [Vec<T>; 3] {
    let (mut dx, width) = (unwritten(x.len()), bias.len());
    let len = block_len(width);
    let sums = run::<T, _, _>(
        x.len(),
        dx.chunks_mut(len).zip(x.chunks(len).zip(gradient.chunks(len))),
        #[inline(always)]
        |(dx, (x, g))| {
            let mut sums = vec![T::ZERO; 2 * width];
            let (dbias, dscale) = sums.split_at_mut(width);
            let rows = x.chunks_exact(width).zip(g.chunks_exact(width));
            for (dx, (x, g)) in dx.chunks_exact_mut(width).zip(rows) {
                let parameters = bias.iter().zip(scale);
                let sums = dbias.iter_mut().zip(&mut *dscale);
                for (((dx, (&x, &g)), (&bias, &scale)), (dbias, dscale)) in
                    dx.iter_mut().zip(x.iter().zip(g)).zip(parameters).zip(sums)
                {
                    let (value, slope) = softplus(x + bias);
                    *dx = g * scale * slope;
                    *dbias += *dx;
                    *dscale += g * value;
                }
            }
            sums
        },
    );
    let mut dbias = sum_in_order(&sums, 2 * width);
    let dscale = dbias.split_off(width);
    [dx, dbias, dscale]
}

/// ln(1 + eᶻ) and σ(z).
#[inline(always)]
fn softplus<T: Element>(z: T) -> (T, T) {
    let is_positive = z > T::ZERO;
    let small = (if is_positive { -z } else { z }).exp(); // e^(−|z|)
    let above = if is_positive { z } else { T::ZERO };
    let share = T::ONE / (T::ONE + small);
    (above + ln_1_plus(small), if is_positive { share } else { small * share })
}

/// ln(1 + x) for x in [0, 1]: 2 artanh(x / (2 + x)), by its series in s² where s ≤ 1/3.
#[inline(always)]
pub(crate) fn ln_1_plus<T: Element>(x: T) -> T {
    let s = x / (T::ONE + T::ONE + x);
    let square = s * s;
    let mut sum = T::ZERO;
    for term in (0..TERMS).rev() {
        sum = sum * square + T::narrow(1. / f64::from(2 * term + 1));
    }
    (s + s) * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_slopes_are_those_of_the_platform() {
        let expected = |z: f64| z.max(0.) + (-z.abs()).exp().ln_1p();
        for i in -4_000..4_000 {
            let z = f64::from(i) / 50.;
            let (value, slope) = softplus(z);
            let error = (value - expected(z)).abs();
            assert!(error <= 1e-15 * expected(z).max(1e-300), "{z}: {value}");
            assert!((slope - 1. / (1. + (-z).exp())).abs() <= 1e-15, "{z}: {slope}");
            let z = z as f32;
            let (value, _) = softplus(z);
            let error = (f64::from(value) - expected(f64::from(z))).abs();
            assert!(error <= 4e-7 * expected(f64::from(z)), "{z}: {value}");
        }
    }
}
