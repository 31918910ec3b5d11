//! The fused loops: some maps of one example at a time, along the whole sequence.

mod backward;
mod forward;

use std::ops::Range;

use super::{Band, Inputs, Normaliser, TapLayout};
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::run;
use crate::ops::padding_mask;

/// Channels of a block: enough for SIMD, and few partial sums of the taps' gradient.
const CHANNELS: usize = 128;

pub(super) fn forward<T: Element>(inputs: Inputs<'_, T>, band: &Band) -> (Vec<T>, Normaliser<T>) {
    let blocks = run::<T, _, _>(
        band.work(),
        blocks(inputs, band),
        #[inline(always)]
        |block| (block.forward(), block),
    );
    let n = inputs.key.len();
    let mut normaliser = Normaliser { max: unwritten(n), sum: unwritten(n) };
    let mut output = unwritten(inputs.value.len());
    for (rows, block) in blocks {
        block.put(&mut output, &rows.sums, band.sizes.width);
        block.put(&mut normaliser.max, &rows.scale, 1);
        block.put(&mut normaliser.sum, &rows.total, 1);
    }
    (output, normaliser)
}

/// The gradients of the inputs of a block.
struct Gradients<T> {
    key: Vec<T>,
    value: Vec<T>,
    taps: Vec<T>,
}

/// The gradients of key, value and taps.
pub(super) fn backward<T: Element>(
    inputs: Inputs<'_, T>,
    band: &Band,
    normaliser: &Normaliser<T>,
    output: &[T],
    gradient: &[T],
) -> [Vec<T>; 3] {
    let blocks = run::<T, _, _>(
        band.work(),
        blocks(inputs, band),
        #[inline(always)]
        |block| {
            let queries = block.queries(normaliser, output, gradient);
            (block.backward(&queries), block)
        },
    );
    let (mut dkey, mut dvalue) = (unwritten(inputs.key.len()), unwritten(inputs.value.len()));
    let mut dtaps = vec![T::ZERO; inputs.taps.len()];
    for (gradients, block) in blocks {
        block.put(&mut dkey, &gradients.key, 1);
        block.put(&mut dvalue, &gradients.value, band.sizes.width);
        block.add_taps(&mut dtaps, &gradients.taps);
    }
    [dkey, dvalue, dtaps]
}

impl Band {
    /// A measure of the work, for the choice between one thread and several.
    fn work(&self) -> usize {
        let sizes = &self.sizes;
        sizes.batch * sizes.len * sizes.n_maps * sizes.width * self.n_taps
    }
}

/// Some maps of one example.
struct Block<'a, T> {
    inputs: Inputs<'a, T>,
    band: &'a Band,
    example: usize,
    maps: Range<usize>,
}

fn blocks<'a, T: Element>(
    inputs: Inputs<'a, T>,
    band: &'a Band,
) -> impl Iterator<Item = Block<'a, T>> {
    let n_maps = band.sizes.n_maps;
    let of_block = (CHANNELS / band.sizes.width).max(1);
    (0..band.sizes.batch).flat_map(move |example| {
        (0..n_maps).step_by(of_block).map(move |start| {
            let maps = start..(start + of_block).min(n_maps);
            Block { inputs, band, example, maps }
        })
    })
}

impl<T: Element> Block<'_, T> {
    /// Copies the rows of this block to their places in `all (batch, len, n_maps · width)`.
    fn put(&self, all: &mut [T], rows: &[T], width: usize) {
        let (len, row) = (self.band.sizes.len, self.band.sizes.n_maps * width);
        let example = &mut all[self.example * len * row..(self.example + 1) * len * row];
        let rows = rows.chunks_exact(self.maps.len() * width);
        for (all, rows) in example.chunks_exact_mut(row).zip(rows) {
            all[self.maps.start * width..self.maps.end * width].copy_from_slice(rows);
        }
    }

    /// Adds the gradient of the taps of this block to the gradient of all taps.
    fn add_taps(&self, all: &mut [T], taps: &[T]) {
        let (row, columns) = match self.band.layout {
            TapLayout::OfPositions => (self.band.n_taps, 0..self.band.n_taps),
            TapLayout::OfMaps => (self.band.sizes.n_maps, self.maps.clone()),
        };
        for (all, taps) in all.chunks_exact_mut(row).zip(taps.chunks_exact(columns.len())) {
            for (all, &x) in all[columns.clone()].iter_mut().zip(taps) {
                *all += x;
            }
        }
    }

    /// The block's part of row `t` of `x (batch, len, n_maps · width)`.
    #[inline(always)]
    fn row<'x>(&self, x: &'x [T], t: usize, width: usize) -> &'x [T] {
        let start = (self.example * self.band.sizes.len + t) * self.band.sizes.n_maps;
        &x[(start + self.maps.start) * width..(start + self.maps.end) * width]
    }

    #[inline(always)]
    fn key(&self, t: usize) -> &[T] {
        self.row(self.inputs.key, t, 1)
    }

    #[inline(always)]
    fn value(&self, t: usize) -> &[T] {
        self.row(self.inputs.value, t, self.band.sizes.width)
    }

    #[inline(always)]
    fn is_padding(&self, t: usize) -> bool {
        padding_mask::is_padding(self.inputs.padding, self.example * self.band.sizes.len + t)
    }

    /// K_t' + w of every map.
    #[inline(always)]
    fn scores(&self, scores: &mut [T], t: usize, other: usize) {
        let (tap, key) = (other + self.band.origin - t, self.key(other));
        match self.band.layout {
            TapLayout::OfPositions => {
                let w = self.inputs.taps[t * self.band.n_taps + tap];
                for (score, &key) in scores.iter_mut().zip(key) {
                    *score = key + w;
                }
            }
            TapLayout::OfMaps => {
                let w = &self.inputs.taps[tap * self.band.sizes.n_maps..][self.maps.clone()];
                for ((score, &key), &w) in scores.iter_mut().zip(key).zip(w) {
                    *score = key + w;
                }
            }
        }
    }
}

/// Divides the `width` elements of each map in `x` by the divisor of that map; the result is 0 if the divisor is 0.
#[inline(always)]
fn divide<T: Element>(x: &mut [T], divisor: &[T], width: usize) {
    if width == 1 {
        for (x, &divisor) in x.iter_mut().zip(divisor) {
            *x = if divisor == T::ZERO { T::ZERO } else { *x / divisor };
        }
        return;
    }
    for (x, &divisor) in x.chunks_exact_mut(width).zip(divisor) {
        let factor = if divisor == T::ZERO { T::ZERO } else { T::ONE / divisor };
        for x in x {
            *x *= factor;
        }
    }
}
