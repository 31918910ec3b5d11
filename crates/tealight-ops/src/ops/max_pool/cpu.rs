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
    run::<T, _, _>(
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
        let first = lines.start * window.size + spots.start;
        let blocks = y.chunks_mut(LANES).zip(places.chunks_mut(LANES));
        for (block, (y, places)) in blocks.enumerate() {
            let (mut best, mut at) = ([T::NEG_INFINITY; LANES], [first as u32; LANES]);
            for (v, line) in lines.clone().enumerate() {
                let pixel = ((first_row + v) * width + first_column) * channels + block * LANES;
                for (w, spot) in spots.clone().enumerate() {
                    let place = (line * window.size + spot) as u32;
                    larger(&mut best, &mut at, lanes_of(&x[pixel + w * channels..]), place);
                }
            }
            store(best, y);
            store(at.map(|place| place as u8), places);
        }
    }
}

/// The first numbers of `x`; −∞ behind its end.
#[inline(always)]
fn lanes_of<T: Element>(x: &[T]) -> [T; LANES] {
    x.first_chunk().copied().unwrap_or_else(|| {
        let mut lanes = [T::NEG_INFINITY; LANES];
        lanes[..x.len()].copy_from_slice(x);
        lanes
    })
}

/// Writes as many of `lanes` as `y` has room for: lanes behind the last channel belong to the next pixel.
#[inline(always)]
fn store<T: Copy>(lanes: [T; LANES], y: &mut [T]) {
    match y.first_chunk_mut() {
        Some(y) => *y = lanes,
        None => y.copy_from_slice(&lanes[..y.len()]),
    }
}

/// Replaces elements that are smaller than `x`. A NaN stays, and replaces any number.
#[inline(always)]
fn larger<T: Element>(best: &mut [T; LANES], at: &mut [u32; LANES], x: [T; LANES], place: u32) {
    for ((best, at), x) in best.iter_mut().zip(at).zip(x) {
        let is_larger = (x > *best) | x.partial_cmp(&x).is_none();
        (*best, *at) = if is_larger { (x, place) } else { (*best, *at) };
    }
}

/// The gradient of x: each of `g` goes to the pixel of its maximum.
pub(super) fn backward<T: Element>(slide: &Slide, places: &[u8], g: &[T]) -> Vec<T> {
    let picture = slide.picture();
    let row = slide.columns * slide.channels;
    let mut dx = unwritten(slide.batch * picture);
    let per_picture = slide.rows * row;
    run::<T, _, _>(
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

/// Visits the pixels under each window, and adds the numbers of `g` whose maximum is there, and zero for all others.
#[inline(always)]
fn add_row<T: Element>(slide: &Slide, row: usize, g: &[T], places: &[u8], dx: &mut [T]) {
    let Slide { window, width, channels, .. } = *slide;
    let (lines, first_row) = window.inside(row, slide.height);
    let columns = g.chunks_exact(channels).zip(places.chunks_exact(channels));
    for (column, (g, places)) in columns.enumerate() {
        let (spots, first_column) = window.inside(column, width);
        for (v, line) in lines.clone().enumerate() {
            let pixel = ((first_row + v) * width + first_column) * channels;
            for (w, spot) in spots.clone().enumerate() {
                let place = (line * window.size + spot) as u8;
                let dx = &mut dx[pixel + w * channels..][..channels];
                for (dx, (&g, &at)) in dx.iter_mut().zip(g.iter().zip(places)) {
                    *dx += if at == place { g } else { T::ZERO };
                }
            }
        }
    }
}
