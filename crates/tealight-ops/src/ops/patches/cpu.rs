//! The CPU loops: runs of the numbers of neighbouring pixels are copied, or added.

use candle_core::{Result, Tensor};

use super::Window;
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::run;

/// A window on pictures of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slide {
    pub(crate) window: Window,
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Slide {
    /// `window` on `x (batch, height, width, channels)`.
    pub(crate) fn from_pictures(x: &Tensor, window: Window) -> Result<Self> {
        let (batch, height, width, channels) = x.dims4()?;
        let (rows, columns) = (window.count(height)?, window.count(width)?);
        Ok(Self { window, batch, height, width, channels, rows, columns })
    }

    pub(super) fn shape(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.rows, self.columns, self.patch())
    }

    /// Numbers in a patch.
    pub(crate) fn patch(&self) -> usize {
        self.window.size * self.window.size * self.channels
    }

    /// Numbers in a picture.
    pub(crate) fn picture(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// All patches of all pictures.
    pub(super) fn patches<T: Element>(&self, x: &[T]) -> Vec<T> {
        let row = self.columns * self.patch();
        let mut y = unwritten(self.batch * self.rows * row);
        run::<T, _, _>(
            y.len(),
            y.chunks_mut(row).enumerate(),
            #[inline(always)]
            |(i, y)| {
                let x = &x[i / self.rows * self.picture()..][..self.picture()];
                self.copy_row(i % self.rows, x, y);
            },
        );
        y
    }

    /// The sum of the gradients `g` of all places that read a pixel, for each pixel.
    pub(super) fn sums<T: Element>(&self, g: &[T]) -> Vec<T> {
        let row = self.columns * self.patch();
        let mut dx = unwritten(self.batch * self.picture());
        run::<T, _, _>(
            g.len(),
            dx.chunks_mut(self.picture()).zip(g.chunks(self.rows * row)),
            #[inline(always)]
            |(dx, g)| {
                dx.fill(T::ZERO);
                for (i, g) in g.chunks(row).enumerate() {
                    self.add_row(i, g, dx);
                }
            },
        );
        dx
    }

    /// Copies the patches in row `row` of the picture `x` to `y (columns, patch)`.
    #[inline(always)]
    pub(crate) fn copy_row<T: Element>(&self, row: usize, x: &[T], y: &mut [T]) {
        for (column, y) in y.chunks_exact_mut(self.patch()).enumerate() {
            let run = self.run(row, column);
            if run.is_partial {
                y.fill(T::ZERO);
            }
            let mut from = run.pixel;
            for line in run.lines {
                let to = line * self.line() + run.offset;
                y[to..to + run.len].copy_from_slice(&x[from..from + run.len]);
                from += self.width * self.channels;
            }
        }
    }

    /// Adds the gradients `g (columns, patch)` of the patches in row `row` to `dx`, the gradient of the picture.
    #[inline(always)]
    pub(crate) fn add_row<T: Element>(&self, row: usize, g: &[T], dx: &mut [T]) {
        for (column, g) in g.chunks_exact(self.patch()).enumerate() {
            let run = self.run(row, column);
            let mut to = run.pixel;
            for line in run.lines {
                let from = line * self.line() + run.offset;
                let pixels = &mut dx[to..to + run.len];
                for (dx, &g) in pixels.iter_mut().zip(&g[from..from + run.len]) {
                    *dx += g;
                }
                to += self.width * self.channels;
            }
        }
    }

    /// Numbers in a line of a patch.
    #[inline(always)]
    fn line(&self) -> usize {
        self.window.size * self.channels
    }

    /// The numbers of the patch at (`row`, `column`) that lie within the picture.
    #[inline(always)]
    fn run(&self, row: usize, column: usize) -> Run {
        let (lines, pixel_row) = self.window.inside(row, self.height);
        let (places, pixel_column) = self.window.inside(column, self.width);
        let (len, size) = (places.len() * self.channels, self.window.size);
        Run {
            is_partial: lines.len() * places.len() < size * size,
            offset: places.start * self.channels,
            pixel: (pixel_row * self.width + pixel_column) * self.channels,
            len,
            lines,
        }
    }
}

/// The part of a patch that lies within the picture.
struct Run {
    /// Whether other parts do not.
    is_partial: bool,
    /// The lines of the patch.
    lines: std::ops::Range<usize>,
    /// Where each line begins in the patch, counted from the start of the line.
    offset: usize,
    /// Where the first line begins in the picture.
    pixel: usize,
    /// The numbers of each line.
    len: usize,
}
