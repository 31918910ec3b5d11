//! Rows of the input in bytes.

use bytemuck::{Pod, Zeroable, cast_slice_mut};

use super::bytes::{DEPTH, HEIGHT, LEAST, nearest, zero_if_finite};
use crate::backend::parallel::{max, min, run};

/// The bytes of a row of a tile of AMX.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; DEPTH]);

/// r and z of a row.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    scale: f32,
    zero: i32,
}

impl Scale {
    /// r s (Σ_k q w − z Σ_k w)
    #[inline(always)]
    pub(super) fn result(self, sum: i32, sum_of_weights: i32, scale_of_weights: f32) -> f32 {
        (sum - self.zero * sum_of_weights) as f32 * (self.scale * scale_of_weights)
    }
}

/// Rows q, each with its scale.
pub(super) struct Rows {
    /// Rows of `stride` lines. Behind the last row are zeros, as many rows as make [`HEIGHT`]s whole.
    lines: Vec<Line>,
    stride: usize,
    scales: Vec<Scale>,
}

impl Rows {
    /// Rounds rows of `width` elements.
    pub(super) fn from_f32(x: &[f32], width: usize) -> Self {
        let n_rows = x.len().checked_div(width).unwrap_or_default();
        // An odd number of lines: the rows of a tile then lie in different sets of the first-level cache.
        let stride = width.div_ceil(DEPTH) | 1;
        let mut lines = vec![Line([0; DEPTH]); n_rows.next_multiple_of(HEIGHT) * stride];
        let mut scales = vec![Scale { scale: 1., zero: 0 }; n_rows];
        let per_block = (8_192 / width.max(1)).max(1);
        let places = lines.chunks_mut(per_block * stride).zip(scales.chunks_mut(per_block));
        run::<f32, _, _>(
            x.len(),
            places.zip(x.chunks((per_block * width).max(1))),
            #[inline(always)]
            |((lines, scales), x)| {
                let rows = lines.chunks_exact_mut(stride).zip(x.chunks_exact(width));
                for ((lines, x), scale) in rows.zip(scales) {
                    *scale = scale_of(x);
                    round(lines, x, *scale);
                }
            },
        );
        Self { lines, stride, scales }
    }

    pub(super) fn len(&self) -> usize {
        self.scales.len()
    }

    /// The bytes between the starts of two rows.
    pub(super) fn stride(&self) -> usize {
        self.stride * DEPTH
    }

    /// The lines from row `first` on: those of at least [`HEIGHT`] rows if `first` is a multiple of it.
    pub(super) fn lines(&self, first: usize) -> &[Line] {
        &self.lines[first * self.stride..]
    }

    pub(super) fn scales(&self) -> &[Scale] {
        &self.scales
    }
}

/// The scale is NaN if an element is not finite.
#[inline(always)]
fn scale_of(x: &[f32]) -> Scale {
    let (low, high) = (min(x).min(0.), max(x).max(0.));
    // The range itself may exceed the largest number.
    let scale = high / 255. - low / 255.;
    let scale = if scale < LEAST { 1. } else { scale };
    let zero = nearest(-low * (1. / scale)).clamp(0, 255);
    Scale { scale: scale + zero_if_finite(x), zero }
}

/// q. Depths behind the row keep any value, because the weight is zero there.
#[inline(always)]
fn round(lines: &mut [Line], x: &[f32], Scale { scale, zero }: Scale) {
    let row: &mut [u8] = cast_slice_mut(lines);
    let inverse = 1. / scale;
    for (q, &x) in row.iter_mut().zip(x) {
        *q = nearest(x * inverse).wrapping_add(zero).clamp(0, 255) as u8;
    }
}
