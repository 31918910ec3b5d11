//! The fused loops: a row at a time, while it is in the first-level cache.

use super::Norm;
use crate::buffer::unwritten;
use crate::element::Element;
use crate::parallel::{block_len, run, sum, sum_in_order, sum_of_pairs};

/// What a row is centred on before it is scaled.
#[derive(Clone, Copy)]
pub(super) enum Centre {
    Mean,
    Zero,
}

pub(super) fn forward<T: Element>(
    norm: &Norm<T>,
    x: &[T],
    weight: &[T],
    bias: Option<&[T]>,
) -> Vec<T> {
    let width = weight.len();
    let mut y = unwritten(x.len());
    let len = block_len(width);
    run(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)),
        #[inline(always)]
        |(y, x)| {
            for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                let (mean, scale) = norm.statistics(x);
                for (y, (&x, &weight)) in y.iter_mut().zip(x.iter().zip(weight)) {
                    *y = (x - mean) * scale * weight;
                }
                if let Some(bias) = bias {
                    for (y, &bias) in y.iter_mut().zip(bias) {
                        *y += bias;
                    }
                }
            }
        },
    );
    y
}

/// The gradients of x, weight and bias.
pub(super) fn backward<T: Element>(
    norm: &Norm<T>,
    x: &[T],
    weight: &[T],
    gradient: &[T],
) -> (Vec<T>, Vec<T>, Vec<T>) {
    let width = weight.len();
    let mut dx = unwritten(x.len());
    let len = block_len(width);
    let partial = run(
        x.len(),
        dx.chunks_mut(len).zip(x.chunks(len).zip(gradient.chunks(len))),
        #[inline(always)]
        |(dx, (x, g))| {
            let (mut dweight, mut dbias) = (vec![T::ZERO; width], vec![T::ZERO; width]);
            let rows = x.chunks_exact(width).zip(g.chunks_exact(width));
            for (dx, (x, g)) in dx.chunks_exact_mut(width).zip(rows) {
                let (mean, scale) = norm.statistics(x);
                for ((dweight, dbias), (&x, &g)) in
                    dweight.iter_mut().zip(&mut dbias).zip(x.iter().zip(g))
                {
                    *dweight += g * (x - mean) * scale;
                    *dbias += g;
                }
                norm.input_gradient(dx, x, weight, g, (mean, scale));
            }
            (dweight, dbias)
        },
    );
    let (dweight, dbias): (Vec<_>, Vec<_>) = partial.into_iter().unzip();
    (dx, sum_in_order(&dweight, width), sum_in_order(&dbias, width))
}

impl<T: Element> Norm<T> {
    /// μ and r of one row.
    #[inline(always)]
    fn statistics(&self, x: &[T]) -> (T, T) {
        let width = T::from_f64(x.len() as f64);
        let mean = match self.centre {
            Centre::Mean => sum(x, |x| x) / width,
            Centre::Zero => T::ZERO,
        };
        let variance = sum(x, |x| (x - mean) * (x - mean)) / width;
        (mean, T::ONE / (variance + self.eps).sqrt())
    }

    /// dx = r (h − mean(h) − x̂ mean(h ⊙ x̂)) of one row.
    #[inline(always)]
    fn input_gradient(&self, dx: &mut [T], x: &[T], weight: &[T], g: &[T], (mean, scale): (T, T)) {
        let width = T::from_f64(x.len() as f64);
        let h = dx; // The row that will hold dx holds h first.
        for (h, (&g, &weight)) in h.iter_mut().zip(g.iter().zip(weight)) {
            *h = g * weight;
        }
        let mean_h = match self.centre {
            Centre::Mean => sum(h, |h| h) / width,
            Centre::Zero => T::ZERO,
        };
        let slope = sum_of_pairs(h, x, |h, x| h * (x - mean)) * scale * scale / width;
        for (h, &x) in h.iter_mut().zip(x) {
            *h = scale * (*h - mean_h - (x - mean) * slope);
        }
    }
}
