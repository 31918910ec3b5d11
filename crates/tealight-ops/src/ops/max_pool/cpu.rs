//! The CPU loops: one row of windows at a time.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{LANES, run};
use crate::ops::patches::cpu::Slide;

/// The maxima, and the place in the window of each: row·size + column.
pub(super) fn forward<T: Element>(slide: &Slide, x: &[T]) -> (Vec<T>, Vec<u8>) {
    let row = slide.columns * slide.channels;
    let n = slide.batch * slide.rows * row;
    let (mut y, mut places) = (unwritten(n), vec![0; n]);
    run(
        x.len(),
        y.chunks_mut(row).zip(places.chunks_mut(row)).enumerate(),
        #[inline(always)]
        |(i, (y, places))| {
            let x = &x[i / slide.rows * slide.picture()..][..slide.picture()];
            row_of_maxima(slide, i % slide.rows, x, y, places);
        },
    );
    (y, places)
}

#[inline(always)]
fn row_of_maxima<T: Element>(slide: &Slide, row: usize, x: &[T], y: &mut [T], places: &mut [u8]) {
    let Slide { window, width, channels, .. } = *slide;
    let (lines, first_row) = window.inside(row, slide.height);
    let results = y.chunks_exact_mut(channels).zip(places.chunks_exact_mut(channels));
    for (column, (y, places)) in results.enumerate() {
        let (spots, first_column) = window.inside(column, width);
        for start in (0..channels).step_by(LANES) {
            let n = LANES.min(channels - start);
            let (mut best, mut at) = ([T::NEG_INFINITY; LANES], [0_u32; LANES]);
            let mut is_first = true;
            for (v, line) in lines.clone().enumerate() {
                let pixel = ((first_row + v) * width + first_column) * channels + start;
                for (w, spot) in spots.clone().enumerate() {
                    let place = (line * window.size + spot) as u32;
                    let x = &x[pixel + w * channels..][..n];
                    if is_first {
                        (at, is_first) = ([place; LANES], false);
                        best[..n].copy_from_slice(x);
                    } else {
                        larger(&mut best, &mut at, x, place);
                    }
                }
            }
            y[start..start + n].copy_from_slice(&best[..n]);
            for (place, at) in places[start..start + n].iter_mut().zip(at) {
                *place = at as u8;
            }
        }
    }
}

/// Replaces what is smaller than `x`. A NaN stays, and replaces anything else.
#[inline(always)]
fn larger<T: Element>(best: &mut [T; LANES], at: &mut [u32; LANES], x: &[T], place: u32) {
    let mut lanes = [T::NEG_INFINITY; LANES];
    lanes[..x.len()].copy_from_slice(x);
    for ((best, at), x) in best.iter_mut().zip(at).zip(lanes) {
        let is_larger = x > *best || x.partial_cmp(&x).is_none();
        (*best, *at) = if is_larger { (x, place) } else { (*best, *at) };
    }
}

/// The gradient of x: each of `g` goes to the pixel of its maximum.
pub(super) fn backward<T: Element>(slide: &Slide, places: &[u8], g: &[T]) -> Vec<T> {
    let picture = slide.picture();
    let row = slide.columns * slide.channels;
    let mut dx = unwritten(slide.batch * picture);
    let per_picture = slide.rows * row;
    run(
        dx.len(),
        dx.chunks_mut(picture).zip(g.chunks(per_picture).zip(places.chunks(per_picture))),
        #[inline(always)]
        |(dx, (g, places))| {
            dx.fill(T::ZERO);
            for (i, (g, places)) in g.chunks(row).zip(places.chunks(row)).enumerate() {
                add_row(slide, i, g, places, dx);
            }
        },
    );
    dx
}

#[inline(always)]
fn add_row<T: Element>(slide: &Slide, row: usize, g: &[T], places: &[u8], dx: &mut [T]) {
    let Slide { window, width, channels, .. } = *slide;
    let columns = g.chunks_exact(channels).zip(places.chunks_exact(channels));
    for (column, (g, places)) in columns.enumerate() {
        for (channel, (&g, &place)) in g.iter().zip(places).enumerate() {
            let (line, spot) = (place as usize / window.size, place as usize % window.size);
            let v = row * window.stride + line - window.padding;
            let w = column * window.stride + spot - window.padding;
            dx[(v * width + w) * channels + channel] += g;
        }
    }
}
