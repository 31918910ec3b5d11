//! The functions that are compiled per instruction set, in a table, so that their callers are compiled only once.

use pulp::{Scalar128b, Simd};

use super::Product;
use super::dots::Dots;
use super::pack::{PackPanels, PackStrips, STRIPS};
use super::strip::{self, Strided, Strip, Strips};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::Lanes;
use crate::backend::simd::{Detected, Level};

/// The sizes and functions of an instruction set.
#[derive(Clone, Copy)]
pub(super) struct Kernel<T: 'static> {
    /// Columns of a tile: two vectors.
    pub(super) width: usize,
    /// Rows of a packed strip, with padding.
    pub(super) padded_rows: usize,
    /// Blocks of the depth begin at multiples of this.
    pub(super) depth_unit: usize,
    /// Packed elements of `depth_unit` depths.
    pub(super) packed_unit: usize,
    /// The greatest depth of a block.
    pub(super) block_depth: usize,
    /// The most columns of a block of B, which is packed into the second-level cache.
    pub(super) block_columns: usize,
    /// With more multiply-adds, the number of tasks and the size of each grow as the square root of work /
    /// `large_task`: in larger blocks A and B are packed less often, with more blocks a slow thread delays the others
    /// less.
    pub(super) large_task: usize,
    /// A kernel that converts is faster than one that does not if C has at least this many rows and columns.
    pub(super) fewest: usize,
    /// How many times as high as wide a task's block of C is if A is not packed.
    pub(super) height: usize,
    /// The micro-kernels for strips of 1, 2, .. rows.
    pub(super) strips: &'static [unsafe fn(&Strip<T>)],
    /// See [`Dots`].
    pub(super) dots: fn(&Product<'_, T>, &mut MatrixMut<'_, T>),
    /// See [`PackPanels`].
    pub(super) pack_panels: fn(Matrix<'_, T>, &mut [T]),
    /// See [`PackStrips`].
    pub(super) pack_strips: fn(Matrix<'_, T>, usize, &mut [T]) -> Strips<T>,
}

/// [`Kernel::block_columns`] of vectors: B then takes 1 MiB.
pub(super) const COLUMNS: usize = 512;
/// [`Kernel::large_task`] of vectors.
pub(super) const LARGE_TASK: usize = 1 << 21;
/// [`Kernel::height`] of vectors.
pub(super) const HEIGHT: usize = 4;

/// Bytes of a row of A in a block: the 14 rows of a strip take half of the first-level cache.
const ROW_BYTES: usize = 2048;

/// The table of an instruction set, with micro-kernels of these numbers of rows.
macro_rules! kernel {
    ($simd:ty, $padded:literal: $($rows:literal)*) => {
        Kernel {
            width: 2 * size_of::<T::Vector<$simd>>() / size_of::<T>(),
            padded_rows: $padded,
            depth_unit: 1,
            packed_unit: 1,
            block_depth: ROW_BYTES / size_of::<T>(),
            block_columns: COLUMNS,
            large_task: LARGE_TASK,
            fewest: 0,
            height: HEIGHT,
            strips: &[$(strip::run::<$simd, T, $rows>),*],
            dots: dots::<$simd, T>,
            pack_panels: pack_panels::<$simd, T>,
            pack_strips: pack_strips::<$simd, T, $padded>,
        }
    };
}

impl<T: Lanes> Kernel<T> {
    /// The kernel of `level`, or of the baseline if T is not [wide](crate::backend::element::Element::WIDE).
    ///
    /// The sums of the largest tile, two vectors of B and one of A fill the registers: 16, or 32 with AVX-512 and
    /// NEON.
    pub(super) fn new(level: Level) -> Self {
        if !T::WIDE {
            return kernel!(Scalar128b, 8: 1 2 3 4 5 6);
        }
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => kernel!(pulp::x86::V4, 16: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => kernel!(pulp::x86::V3, 8: 1 2 3 4 5 6),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => kernel!(pulp::aarch64::Neon, 12: 1 2 3 4 5 6 7 8 9 10 11 12),
            _ => kernel!(Scalar128b, 8: 1 2 3 4 5 6),
        }
    }

    /// Packed elements of a depth.
    pub(super) fn packed_depth(&self, depth: usize) -> usize {
        depth.div_ceil(self.depth_unit) * self.packed_unit
    }

    /// Whether packing converts elements, so that A and B cannot be read in place.
    pub(super) fn converts(&self) -> bool {
        self.packed_unit != self.depth_unit
    }
}

pub(super) fn dots<S: Detected, T: Lanes>(product: &Product<'_, T>, c: &mut MatrixMut<'_, T>) {
    Simd::vectorize(S::detected(), Dots { product, c });
}

fn pack_panels<S: Detected, T: Lanes>(b: Matrix<'_, T>, panels: &mut [T]) {
    Simd::vectorize(S::detected(), PackPanels { b, panels });
}

fn pack_strips<S: Detected, T: Lanes, const PADDED: usize>(
    a: Matrix<'_, T>,
    n_rows: usize,
    strips: &mut [T],
) -> Strips<T> {
    Simd::vectorize(S::detected(), PackStrips::<T, PADDED> { a, n_rows, strips });
    // Packing writes through `strips`, which would invalidate a pointer that was taken before.
    let first = Strided { first: strips.as_ptr(), row_stride: 1, column_stride: STRIPS * PADDED };
    Strips { first, stride: PADDED }
}
