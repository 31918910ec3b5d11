//! Products by AMX, whose operands are rounded to bf16 or split into parts of bf16 while they are packed. Sums are f32.
//!
//! A tile is a register of 16 rows of 64 bytes. TDPBF16PS multiplies a tile of A, 16 rows of 32 depths, by a tile of B,
//! 32 depths of 16 columns, and adds the product to a tile of C, 16 rows of 16 columns in f32. A pair is the bf16 of
//! two consecutive depths. The terms of even and of odd depths are summed apart:
//!
//! ```text
//! even ← fma(a_i,2p   b_2p,j    even)     p = 0, 1, .. 15, from even = 0
//! odd  ← fma(a_i,2p+1 b_2p+1,j  odd)      likewise
//! c_ij ← c_ij + (even + odd)
//! ```
//!
//! Every step is rounded to nearest, ties to even; denormal numbers become zero, as operands and as results. (Intel 64
//! and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS.)
//!
//! A block of 32 × 32 of C takes four tiles, so that every tile of A and of B that is loaded is multiplied twice (Intel
//! 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX):
//!
//! ```text
//!                       B  tmm6 (32, 16)  tmm7 (32, 16)
//! A  tmm4 (16, 32)      C  tmm0 (16, 16)  tmm1 (16, 16)
//!    tmm5 (16, 32)         tmm2 (16, 16)  tmm3 (16, 16)
//! ```
//!
//! # Products of f32
//!
//! An element is split into three parts of bf16 whose sum it is, each at most 2⁻⁸ of the part before
//! ([`pairs`](super::pairs)). Of the nine products of parts, a₁b₂, a₂b₁ and a₂b₂ are left out: together they are at most
//! about 2⁻²³ of the product, one unit in the last place of an f32. Products of two bf16 are exact in f32, and at most
//! 16 of them are summed before they are added to c, so that sums have smaller rounding errors than those of fused
//! multiply-adds (test `split_operands_are_as_exact_as_fused_multiply_adds`). The method is that of Henry, Tang &
//! Heinecke 2019, <https://arxiv.org/abs/1904.06376>.
//!
//! TDPBF16PS has 16 times the rate of the fused multiply-adds of AVX-512. Six products per element leave 2.7 times; on
//! Granite Rapids, products of f32 become up to twice as fast.
//!
//! Two differences from fused multiply-adds remain. Parts below 1.2e-38 are lost, so that an element below 1e-33 has
//! fewer than 24 significant bits. And if an operand is infinite or above 3.39e38, the sum is not a number.
//!
//! # Layout
//!
//! [Panels](super::panels) of B have rows of 32 pairs, 128 bytes, and a tile is one half of 16 rows. A strip of A is
//! packed into its tiles: (depth / 32, parts, 2, 16 rows, 16 pairs). Where rows, columns or depth end within a tile, the
//! rest is zero in A and in B. Whole tiles are always multiplied, so that an element is the same whatever block it
//! belongs to.
//!
//! A block of rounded operands is 1,024 deep and 1,024 wide: of B it takes 2 MiB, the whole second-level cache, but C is
//! then read and written half as often as in blocks of 512. Of split operands, 512 × 512 take 1.5 MiB.
//!
//! Tests emulate the instructions where the processor does not have them.

#![expect(unsafe_code, reason = "instructions that Rust does not have, and bounds checked once")]

mod operands;
mod pack;

use std::arch::asm;

use operands::{Ahead, Operands, Rounded, Split};
#[cfg(test)]
pub(super) use pack::gather_strips;
use pack::pack_strips;

use super::kernel::{COLUMNS, Kernel, LARGE_TASK, dots};
use super::panels::pack_panels;
use super::strip::Strip;
use crate::backend::simd::tiles::WHOLE;
use crate::backend::simd::vectorised;

/// Rows of a tile, and pairs of its rows.
const SIDE: usize = 16;
/// Pairs of a tile.
const TILE: usize = SIDE * SIDE;
/// Depth of a tile.
const DEPTH: usize = 2 * SIDE;
/// Rows and columns of a block of C: two tiles.
const WIDTH: usize = 2 * SIDE;

macro_rules! strips {
    ($operands:ty: $($rows:literal)*) => { &[$(strip::<$operands, $rows>),*] };
}

/// A kernel of TDPBF16PS: [`Operands`], [`Kernel::block_depth`], [`Kernel::block_columns`] and [`Kernel::fewest`].
macro_rules! kernel {
    ($operands:ty, $depth:expr, $columns:expr, $fewest:expr) => {
        Kernel {
            width: WIDTH,
            padded_rows: WIDTH,
            depth_unit: DEPTH,
            packed_unit: <$operands>::PARTS * SIDE,
            block_depth: $depth,
            block_columns: $columns,
            large_task: LARGE_TASK << 6,
            fewest: $fewest,
            height: 1,
            strips: strips!($operands: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32),
            dots: dots::<pulp::x86::V4, f32>,
            pack_panels: pack_panels::<{ <$operands>::PARTS }>,
            pack_strips: pack_strips::<{ <$operands>::PARTS }>,
        }
    };
}

/// Rounds operands to bf16. Only for processors that have TDPBF16PS, and VCVTNE2PS2BF16 for packing.
pub(super) static ROUNDED: Kernel<f32> = kernel!(Rounded, 1024, 2 * COLUMNS, 32);

/// Splits operands, for products of f32. For the same processors.
pub(super) static SPLIT: Kernel<f32> = kernel!(Split, 512, COLUMNS, 128);

/// # Safety
/// As for [`strip::run`](super::strip::run), on a processor with AMX or in a process that emulates it. A is packed into
/// tiles, and B into panels as deep as A.
unsafe fn strip<O: Operands, const ROWS: usize>(strip: &Strip<f32>) {
    // SAFETY: as for this function.
    unsafe { multiply::<O>(strip, ROWS) };
}

/// # Safety
/// As for [`strip`].
unsafe fn multiply<O: Operands>(strip: &Strip<f32>, n_rows: usize) {
    debug_assert!(strip.depth.is_multiple_of(SIDE) && strip.b.row_stride == WIDTH);
    let n_blocks = strip.columns.div_ceil(WIDTH);
    let mut sums = Sums([[0.; WIDTH]; WIDTH]);
    // SAFETY: the shapes are valid. Nothing but `Operands::multiply` uses tiles until they are released: the compiler
    // knows them as clobbers only.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, preserves_flags)) };
    for block in 0..n_blocks {
        let b = strip.b.first.wrapping_add(block * strip.b.panel_stride);
        let ahead = Ahead::from_strip(strip, block, n_blocks, n_rows);
        // SAFETY: the tiles have their shapes, and the caller guarantees that A and this panel of B are packed.
        unsafe { O::multiply(&mut sums, strip, b, &ahead) };
        // SAFETY: the caller guarantees that the base can be read and C written in these rows and columns.
        unsafe { sums.write(strip, n_rows, block * WIDTH) };
    }
    // SAFETY: no tile is in use any more.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}

/// The sums of a block of C. A row has 128 bytes, as one of B.
#[repr(C, align(64))]
struct Sums([[f32; WIDTH]; WIDTH]);

impl Sums {
    /// C = base + scale · sums, from column j on.
    ///
    /// # Safety
    /// As for [`strip`].
    unsafe fn write(&self, strip: &Strip<f32>, n_rows: usize, j: usize) {
        let n_columns = WIDTH.min(strip.columns - j);
        vectorised::<f32, _, _>(
            self,
            #[inline(always)]
            |sums| {
                for (i, sums) in sums.0.iter().take(n_rows).enumerate() {
                    // SAFETY: as for this function.
                    unsafe { write_row(strip, (i, j), sums, n_columns) };
                }
            },
        );
    }
}

/// `n_columns` of row i of C, from column j on.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn write_row(
    strip: &Strip<f32>,
    (i, j): (usize, usize),
    sums: &[f32; WIDTH],
    n_columns: usize,
) {
    let Strip { base, c: (c, c_row_stride), scale, .. } = strip;
    let base = base.first.wrapping_add(i * base.row_stride + j * base.column_stride);
    let c = c.wrapping_add(i * c_row_stride + j);
    let add = |base: [f32; WIDTH]| -> [f32; WIDTH] {
        std::array::from_fn(
            #[inline(always)]
            |j| sums[j].mul_add(*scale, base[j]),
        )
    };
    if n_columns == WIDTH {
        // SAFETY: the caller guarantees that all columns of the base can be read, and those of C written.
        unsafe { c.cast::<[f32; WIDTH]>().write(add(base.cast::<[f32; WIDTH]>().read())) };
        return;
    }
    let mut part = [0.; WIDTH];
    // SAFETY: as above, for these columns.
    unsafe { base.copy_to_nonoverlapping(part.as_mut_ptr(), n_columns) };
    // SAFETY: as above.
    unsafe { c.copy_from_nonoverlapping(add(part).as_ptr(), n_columns) };
}
