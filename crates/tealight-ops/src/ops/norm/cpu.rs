//! The CPU loops, row by row, so that a row stays in the first-level cache.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{LANES, block_len, fold, run, sum, sum_in_order};

/// The number that is subtracted from a row before the row is scaled.
#[derive(Clone, Copy)]
pub(super) enum Centre {
    Mean,
    Zero,
}

pub(super) struct Settings<T> {
    pub(super) centre: Centre,
    pub(super) eps: T,
}

/// μ and r of one row.
#[derive(Clone, Copy)]
pub(super) struct Row<T> {
    mean: T,
    scale: T,
}

/// y, and the statistics of each row, which the backward needs.
pub(super) fn forward<T: Element>(
    settings: &Settings<T>,
    x: &[T],
    weight: &[T],
    bias: Option<&[T]>,
) -> (Vec<T>, Vec<Row<T>>) {
    let width = weight.len();
    let n_rows = x.len() / width;
    let mut y = unwritten(x.len());
    let mut rows = vec![Row { mean: T::NAN, scale: T::NAN }; n_rows];
    let len = block_len(width);
    run::<T, _, _>(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)).zip(rows.chunks_mut(len / width)),
        #[inline(always)]
        |((y, x), rows)| {
            let (y, x): (&mut [T], &[T]) = (y, x);
            let pairs = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
            for ((y, x), row) in pairs.zip(rows) {
                *row = settings.row(x);
                let Row { mean, scale } = *row;
                let xs = x.iter().zip(weight);
                match bias {
                    Some(bias) => {
                        for ((y, &bias), (&x, &weight)) in y.iter_mut().zip(bias).zip(xs) {
                            *y = (x - mean) * scale * weight + bias;
                        }
                    }
                    None => {
                        for (y, (&x, &weight)) in y.iter_mut().zip(xs) {
                            *y = (x - mean) * scale * weight;
                        }
                    }
                }
            }
        },
    );
    (y, rows)
}

impl<T: Element> Settings<T> {
    #[inline(always)]
    fn row(&self, x: &[T]) -> Row<T> {
        let width = T::from_f64(x.len() as f64);
        let mean = match self.centre {
            Centre::Mean => sum(x, |x| x) / width,
            Centre::Zero => T::ZERO,
        };
        let variance = sum(x, |x| (x - mean) * (x - mean)) / width;
        Row { mean, scale: T::ONE / (variance + self.eps).sqrt() }
    }
}

/// The gradients of x, weight and bias.
pub(super) fn backward<T: Element>(
    centre: Centre,
    rows: &[Row<T>],
    x: &[T],
    weight: &[T],
    gradient: &[T],
) -> [Vec<T>; 3] {
    let width = weight.len();
    let mut dx = unwritten(x.len());
    let len = block_len(width);
    let blocks = x.chunks(len).zip(gradient.chunks(len)).zip(rows.chunks(len / width));
    let partial = run::<T, _, _>(
        x.len(),
        dx.chunks_mut(len).zip(blocks),
        #[inline(always)]
        |(dx, ((x, g), rows))| {
            let (dx, x, g): (&mut [T], &[T], &[T]) = (dx, x, g);
            let mut parameters = Parameters::zeros(width);
            let pairs = x.chunks_exact(width).zip(g.chunks_exact(width));
            for ((dx, (x, g)), row) in dx.chunks_exact_mut(width).zip(pairs).zip(rows) {
                let sums = parameters.add(x, weight, g, *row);
                input_gradient(centre, sums, dx, (x, weight, g), *row);
            }
            (parameters.weight, parameters.bias)
        },
    );
    let (dweight, dbias): (Vec<_>, Vec<_>) = partial.into_iter().unzip();
    [dx, sum_in_order(&dweight, width), sum_in_order(&dbias, width)]
}

/// dweight and dbias of some rows.
struct Parameters<T> {
    weight: Vec<T>,
    bias: Vec<T>,
}

impl<T: Element> Parameters<T> {
    fn zeros(width: usize) -> Self {
        Self { weight: vec![T::ZERO; width], bias: vec![T::ZERO; width] }
    }

    /// Adds the gradients of one row; returns Σ h and Σ h ⊙ x̂.
    #[inline(always)]
    fn add(&mut self, x: &[T], weight: &[T], g: &[T], row: Row<T>) -> (T, T) {
        let mut sums = Sums { h: [T::ZERO; LANES], slope: [T::ZERO; LANES], row };
        let (x, x_rest) = x.as_chunks::<LANES>();
        let (weight, weight_rest) = weight.as_chunks::<LANES>();
        let (g, g_rest) = g.as_chunks::<LANES>();
        let (dweight, dweight_rest) = self.weight.as_chunks_mut::<LANES>();
        let (dbias, dbias_rest) = self.bias.as_chunks_mut::<LANES>();
        for ((dweight, dbias), ((x, weight), g)) in
            dweight.iter_mut().zip(dbias).zip(x.iter().zip(weight).zip(g))
        {
            sums.add((dweight, dbias), (x, weight, g));
        }
        sums.add((dweight_rest, dbias_rest), (x_rest, weight_rest, g_rest));
        (fold(sums.h, |a, b| a + b), fold(sums.slope, |a, b| a + b))
    }
}

/// Running sums of h and of h ⊙ x̂ over a row.
struct Sums<T> {
    h: [T; LANES],
    slope: [T; LANES],
    row: Row<T>,
}

impl<T: Element> Sums<T> {
    /// Adds at most `LANES` elements.
    #[inline(always)]
    fn add(&mut self, (dweight, dbias): (&mut [T], &mut [T]), (x, weight, g): (&[T], &[T], &[T])) {
        let Row { mean, scale } = self.row;
        for i in 0..x.len() {
            let (normalised, h) = ((x[i] - mean) * scale, g[i] * weight[i]);
            self.h[i] += h;
            self.slope[i] += h * normalised;
            dweight[i] += g[i] * normalised;
            dbias[i] += g[i];
        }
    }
}

/// dx = r (h − mean(h) − x̂ mean(h ⊙ x̂)) of one row, from the sums of h and of h ⊙ x̂.
#[inline(always)]
fn input_gradient<T: Element>(
    centre: Centre,
    (sum, slope): (T, T),
    dx: &mut [T],
    (x, weight, g): (&[T], &[T], &[T]),
    Row { mean, scale }: Row<T>,
) {
    let width = T::from_f64(x.len() as f64);
    let mean_h = match centre {
        Centre::Mean => sum / width,
        Centre::Zero => T::ZERO,
    };
    let slope = slope / width;
    for (dx, ((&x, &weight), &g)) in dx.iter_mut().zip(x.iter().zip(weight).zip(g)) {
        *dx = scale * (g * weight - mean_h - (x - mean) * scale * slope);
    }
}
