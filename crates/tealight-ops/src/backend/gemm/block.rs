//! A product on one thread: the loops around the micro-kernel.

#![expect(
    unsafe_code,
    reason = "the micro-kernel reads and writes within bounds that are checked here"
)]

use std::ops::Range;

use super::kernel::Kernel;
use super::kernels::Kernels;
use super::pack::STRIPS;
use super::strip::{NextRows, Panels, Strided, Strip, Strips};
use super::{Base, Method, Product, Target};
use crate::backend::parallel::add_scaled;
use crate::backend::scratch::Scratch;
use crate::backend::simd::vector::Lanes;
use crate::backend::simd::vectorised;

/// Columns of the widest tile.
const WIDEST: usize = 32;

/// A range of the columns and of the depth of a product.
struct Block<'a, T: 'static> {
    product: &'a Product<'a, T>,
    kernel: &'a Kernel<T>,
    columns: Range<usize>,
    depth: Range<usize>,
    /// The number of rows of a strip.
    strip: usize,
}

impl<T: Lanes> Product<'_, T> {
    /// C = base + scale · (A B + ..)
    pub(super) fn run(&self, kernels: &Kernels<T>, target: &mut Target<'_, T>) {
        let n_others = self.others.len();
        let (row, column) = self.origin;
        let (rows, columns) = (row..row + target.c.rows(), column..column + target.c.columns());
        let finish = |is_last: bool| self.finish.filter(|_| is_last);
        Self { finish: finish(n_others == 0), ..*self }.run_one(kernels, target);
        for (i, &(a, b)) in self.others.iter().enumerate() {
            let next = Self {
                base: Base::Itself,
                scale: self.scale,
                finish: finish(i + 1 == n_others),
                ..Self::new(a, b)
            };
            let next = if self.is_converted() { next.converted() } else { next };
            next.block(rows.clone(), columns.clone()).run_one(kernels, target);
        }
    }

    fn run_one(&self, kernels: &Kernels<T>, target: &mut Target<'_, T>) {
        let kernel = kernels.for_method(self.method);
        match self.method {
            Method::Dots => {
                (kernel.dots)(self, &mut target.c);
                self.finish_rows(target, 0..target.c.rows(), 0..target.c.columns());
            }
            Method::Rows => self.add_rows(target.c.row(0)),
            Method::Strips | Method::ConvertedStrips => self.run_blocks(kernel, target),
        }
    }

    /// c = base + the sum of the rows of B.
    fn add_rows(&self, c: &mut [T]) {
        if matches!(self.base, Base::Zero) {
            c.fill(T::ZERO);
        }
        vectorised::<T, _, _>(
            c,
            #[inline(always)]
            |c| {
                for p in 0..self.b.rows() {
                    add_scaled(c, self.b.row(p), T::ONE);
                }
            },
        );
    }

    fn run_blocks(&self, kernel: &Kernel<T>, target: &mut Target<'_, T>) {
        let depth = self.a.columns();
        let nothing = (depth == 0).then_some(0..0);
        let depths = parts(depth, kernel.block_depth, kernel.depth_unit).chain(nothing);
        let strip = part_size(target.c.rows(), kernel.strips.len());
        let mut scratch = Scratch::new();
        for columns in parts(target.c.columns(), kernel.block_columns, kernel.width) {
            for depth in depths.clone() {
                let columns = columns.clone();
                Block { product: self, kernel, columns, depth, strip }.run(target, &mut scratch);
            }
        }
    }

    /// Runs the epilogue on completed rows.
    fn finish_rows(&self, target: &mut Target<'_, T>, rows: Range<usize>, columns: Range<usize>) {
        if let Some(finish) = self.finish {
            let (row, column) = self.origin;
            for i in rows {
                let beside =
                    target.beside.as_mut().map(|beside| &mut beside.row(i)[columns.clone()]);
                let c = &mut target.c.row(i)[columns.clone()];
                finish((row + i, column + columns.start), c, beside.unwrap_or_default());
            }
        }
    }
}

impl<T: Lanes> Block<'_, T> {
    fn run(&self, target: &mut Target<'_, T>, scratch: &mut Scratch) {
        let Self { kernel, columns, depth, strip, .. } = self;
        let packed_depth = kernel.packed_depth(depth.len());
        let panels_len = columns.len().next_multiple_of(kernel.width) * packed_depth;
        let strips_len = STRIPS * kernel.padded_rows * packed_depth;
        let [panels, strips] = scratch.areas([panels_len, strips_len]);
        let b = self.panels(panels, target.c.rows());
        for rows in parts(target.c.rows(), self.strips_at_once() * strip, *strip) {
            let mut a = self.strips(rows.clone(), strips);
            for i in rows.clone().step_by(*strip) {
                self.multiply(a.first, b, target, i..rows.end.min(i + strip));
                a.first.first = a.first.first.wrapping_add(a.stride);
            }
        }
    }

    /// The number of strips of A that are packed at once. If rows are contiguous, it is one, because the strip is then
    /// read from the first-level cache.
    fn strips_at_once(&self) -> usize {
        if self.product.a.column_stride() == 1 { 1 } else { STRIPS }
    }

    /// B, packed, unless A has so few rows that B is read too few times for packing to pay. If B is converted, it is
    /// always packed.
    fn panels(&self, packed: &mut [T], n_rows: usize) -> Panels<T> {
        let width = self.kernel.width;
        let b = self.product.b.block(self.depth.clone(), self.columns.clone());
        if b.column_stride() == 1 && n_rows <= 2 * self.strip && !self.kernel.converts() {
            return Panels {
                first: b.data().as_ptr(),
                panel_stride: width,
                row_stride: b.row_stride(),
            };
        }
        if !self.depth.is_empty() {
            (self.kernel.pack_panels)(b, packed);
        }
        let packed_depth = self.kernel.packed_depth(self.depth.len());
        Panels { first: packed.as_ptr(), panel_stride: packed_depth * width, row_stride: width }
    }

    /// These rows of A, packed if their columns are so far apart that the cache would evict them between tiles, or if
    /// they are converted.
    fn strips(&self, rows: Range<usize>, packed: &mut [T]) -> Strips<T> {
        /// The distance in elements, times the number of tiles, from which packing pays.
        const FAR: usize = 512;
        let a = self.product.a.block(rows, self.depth.clone());
        let n_tiles = self.columns.len().div_ceil(self.kernel.width);
        let is_far = a.row_stride() == 1 && a.column_stride() * n_tiles > FAR;
        if is_far || self.kernel.converts() {
            return (self.kernel.pack_strips)(a, self.strip, packed);
        }
        let (row_stride, column_stride) = (a.row_stride(), a.column_stride());
        let first = Strided { first: a.data().as_ptr(), row_stride, column_stride };
        Strips { first, stride: self.strip * row_stride }
    }

    /// A from this row on, to be prefetched if its rows are contiguous.
    fn next(&self, row: usize) -> NextRows<T> {
        let a = &self.product.a;
        let is_by_rows = a.column_stride() == 1;
        let offset = if is_by_rows { row * a.row_stride() + self.depth.start } else { 0 };
        NextRows {
            first: a.data().as_ptr().wrapping_add(offset),
            row_stride: if is_by_rows { a.row_stride() } else { 0 },
            step: if is_by_rows { self.kernel.depth_unit } else { 0 },
        }
    }

    /// One strip: `rows` of C.
    fn multiply(
        &self,
        a: Strided<T>,
        b: Panels<T>,
        target: &mut Target<'_, T>,
        rows: Range<usize>,
    ) {
        let Self { product, kernel, columns, depth, .. } = self;
        let zeros = [T::ZERO; WIDEST];
        let written = target.c.pointer(rows.start, columns.start);
        let (base, row_stride, column_stride) = match product.base {
            Base::Zero if depth.start == 0 => (zeros.as_ptr(), 0, 0),
            Base::Row(row) if depth.start == 0 => (row[columns.clone()].as_ptr(), 0, 1),
            _ => (written.cast_const(), target.c.row_stride(), 1),
        };
        let strip = Strip {
            depth: kernel.packed_depth(depth.len()),
            columns: columns.len(),
            a,
            b,
            next: self.next(rows.end),
            base: Strided { first: base, row_stride, column_stride },
            c: (written, target.c.row_stride()),
            scale: product.scale,
        };
        // SAFETY: A, B, the base and C have these rows and columns: they are blocks, slices or packed
        // areas of exactly these sizes.
        unsafe { kernel.strips[rows.len() - 1](&strip) };
        if depth.end == product.a.columns() {
            product.finish_rows(target, rows, columns.clone());
        }
    }
}

/// Splits 0..n into about equal parts of at most `size`, rounded up to multiples of `unit` except the last.
pub(super) fn parts(
    n: usize,
    size: usize,
    unit: usize,
) -> impl Iterator<Item = Range<usize>> + Clone {
    let part = part_size(n, size).next_multiple_of(unit);
    (0..n).step_by(part).map(move |start| start..n.min(start + part))
}

/// The size of a part if n is split into the fewest, about equal, parts of at most `size`.
fn part_size(n: usize, size: usize) -> usize {
    n.div_ceil(n.div_ceil(size.max(1)).max(1)).max(1)
}
