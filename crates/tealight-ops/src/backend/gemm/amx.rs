//! Products whose operands are rounded to bf16 while they are packed, by AMX. Sums are f32.
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
//! Panels of B are those of [`bf16`](super::bf16): a row is 32 pairs, 128 bytes, and a tile is one half of 16 rows. A
//! strip of A is packed into its tiles: (depth / 32, 2, 16 rows, 16 pairs). Where rows, columns or depth end within a
//! tile, the rest is zero in A and in B. Whole tiles are always multiplied, so that an element is the same whatever
//! block it belongs to.
//!
//! A tile of B that comes from the second-level cache is late (measured on Granite Rapids: the kernel waited for B in a
//! third of a training step). While a depth is multiplied, the tiles of B of the next depth are therefore prefetched,
//! as are the rows of C that will be written, and rows of the next strip of A. A block is 1,024 deep and 1,024 wide: of
//! B it takes 2 MiB, the whole second-level cache, but C is then read and written half as often as in blocks of 512.
//! Tests emulate the instructions where the processor does not have them.

#![expect(unsafe_code, reason = "instructions that Rust does not have, and bounds checked once")]

use std::arch::asm;
use std::arch::x86_64::{_mm512_setzero_si512, _mm512_storeu_si512};

use pulp::bytemuck::cast_slice_mut;

use super::bf16::{
    element, first_lanes, interleaved, load, pack_panels, pair, pairs_of_line, transposed_pairs,
    with_bf16,
};
use super::kernel::{COLUMNS, Kernel, LARGE_TASK, dots};
use super::strip::{Strided, Strip, Strips};
use crate::backend::matrix::Matrix;
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
    ($($rows:literal)*) => { &[$(strip::<$rows>),*] };
}

/// The kernel of TDPBF16PS. Only for processors that have it, and VCVTNE2PS2BF16 for packing.
pub(super) static AMX: Kernel<f32> = Kernel {
    width: WIDTH,
    padded_rows: WIDTH,
    terms: 2,
    depth_unit: DEPTH,
    block_depth: 1024,
    block_columns: 2 * COLUMNS,
    large_task: LARGE_TASK << 6,
    height: 1,
    strips: strips!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32),
    dots: dots::<pulp::x86::V4, f32>,
    pack_panels,
    pack_strips,
};

/// The operand of LDTILECFG: the shapes of the tiles.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles have 16 rows of 64 bytes.
static WHOLE: Shapes = Shapes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// # Safety
/// As for [`strip::run`](super::strip::run), on a processor with AMX or in a process that emulates it. A is packed into
/// tiles, and B into panels as deep as A.
unsafe fn strip<const ROWS: usize>(strip: &Strip<f32>) {
    // SAFETY: as for this function.
    unsafe { multiply(strip, ROWS) };
}

/// # Safety
/// As for [`strip`].
unsafe fn multiply(strip: &Strip<f32>, n_rows: usize) {
    debug_assert!(strip.depth.is_multiple_of(SIDE) && strip.b.row_stride == WIDTH);
    let n_blocks = strip.columns.div_ceil(WIDTH);
    let mut sums = Sums([[0.; WIDTH]; WIDTH]);
    // SAFETY: the shapes are valid. Nothing but `Sums::compute` uses tiles until they are released: the compiler knows
    // them as clobbers only.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, preserves_flags)) };
    for block in 0..n_blocks {
        let b = strip.b.first.wrapping_add(block * strip.b.panel_stride);
        let next = strip.next.rows(block, n_blocks, n_rows);
        let written = WrittenRows::new(strip, n_rows, block * WIDTH);
        // SAFETY: the tiles have their shapes, and the caller guarantees that A and this panel of B are packed.
        unsafe { sums.compute(strip, b, next, &written) };
        // SAFETY: the caller guarantees that the base can be read and C written in these rows and columns.
        unsafe { sums.write(strip, n_rows, block * WIDTH) };
    }
    // SAFETY: no tile is in use any more.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}

/// The rows of C that are written after the sums are complete, to be prefetched.
struct WrittenRows {
    first: *const f32,
    last: *const f32,
    row_bytes: usize,
}

impl WrittenRows {
    /// `n_rows` of C, from column j on.
    fn new(strip: &Strip<f32>, n_rows: usize, j: usize) -> Self {
        let (c, row_stride) = strip.c;
        let first = c.cast_const().wrapping_add(j);
        let last = first.wrapping_add((n_rows - 1) * row_stride);
        Self { first, last, row_bytes: row_stride * size_of::<f32>() }
    }
}

/// Prefetches eight lines of the next depth of B, from this offset on.
macro_rules! prefetch_b {
    ($($offset:literal)*) => { concat!($("prefetcht0 [{b} + ", $offset, "]\n"),*) };
}

/// Prefetches the two lines of a row of C, and goes on to the next row, if there is one.
macro_rules! prefetch_c {
    () => {
        "prefetchw [{c}]
         prefetchw [{c} + 64]
         add {c}, {c_row_bytes}
         cmp {c}, {c_last}
         cmova {c}, {c_last}"
    };
}

/// The sums of a block of C. A row has 128 bytes, as one of B.
#[repr(C, align(64))]
struct Sums([[f32; WIDTH]; WIDTH]);

impl Sums {
    /// A B, for a panel of B. Rows of A that are read after this strip are prefetched from `next` on, and those of C
    /// that are `written` with these sums.
    ///
    /// # Safety
    /// A and B are packed, and the tiles have their shapes.
    unsafe fn compute(
        &mut self,
        strip: &Strip<f32>,
        b: *const f32,
        next: [*const f32; 2],
        written: &WrittenRows,
    ) {
        let n_tiles = strip.depth / SIDE;
        // SAFETY: the loop reads this number of tiles of A and B, and all rows of the sums are written. Prefetching
        // accepts any address. The label after the loop serves a product without depth.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {n_tiles}, {n_tiles}",
                "jz 3f",
                "2:",
                "tileloadd tmm4, [{a} + {a_stride}]",
                "tileloadd tmm6, [{b} + {stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                prefetch_b!(2048 2112 2176 2240 2304 2368 2432 2496),
                "tileloadd tmm7, [{b} + {stride} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                prefetch_b!(2560 2624 2688 2752 2816 2880 2944 3008),
                "tileloadd tmm5, [{a} + {a_stride} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                prefetch_b!(3072 3136 3200 3264 3328 3392 3456 3520),
                "tdpbf16ps tmm3, tmm5, tmm7",
                prefetch_b!(3584 3648 3712 3776 3840 3904 3968 4032),
                prefetch_c!(),
                prefetch_c!(),
                prefetch_c!(),
                "prefetcht1 [{next}]",
                "prefetcht1 [{next} + 64]",
                "prefetcht1 [{other}]",
                "prefetcht1 [{other} + 64]",
                "add {a}, 2048",
                "add {b}, 2048",
                "add {next}, {step}",
                "add {other}, {step}",
                "dec {n_tiles}",
                "jnz 2b",
                "3:",
                "tilestored [{sums} + {stride}], tmm0",
                "tilestored [{sums} + {stride} + 64], tmm1",
                "tilestored [{sums} + {stride} + 2048], tmm2",
                "tilestored [{sums} + {stride} + 2112], tmm3",
                n_tiles = inout(reg) n_tiles => _,
                a = inout(reg) strip.a.first => _,
                b = inout(reg) b => _,
                next = inout(reg) next[0] => _,
                other = inout(reg) next[1] => _,
                c = inout(reg) written.first => _,
                c_last = in(reg) written.last,
                c_row_bytes = in(reg) written.row_bytes,
                step = in(reg) size_of::<[f32; SIDE]>() * strip.next.step,
                a_stride = in(reg) size_of::<[f32; SIDE]>(),
                stride = in(reg) size_of::<[f32; WIDTH]>(),
                sums = in(reg) self.0.as_mut_ptr(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// C = base + scale · sums, from column j on.
    ///
    /// # Safety
    /// As for [`strip`].
    unsafe fn write(&self, strip: &Strip<f32>, n_rows: usize, j: usize) {
        let n_columns = WIDTH.min(strip.columns - j);
        vectorised(
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

/// Packs A (rows, depth) into strips of `n_rows`, each (depth / 32, 2, 16 rows, 16 pairs).
fn pack_strips(a: Matrix<'_, f32>, n_rows: usize, strips: &mut [f32]) -> Strips<f32> {
    match (a.row_stride(), a.column_stride()) {
        (_, 1) => pack_tiles(a, n_rows, strips, |a, tile| {
            // SAFETY: this is a function of the kernel, which is used on processors with the instructions only.
            unsafe { tile_of_rows(a, tile) };
        }),
        (1, _) => pack_tiles(a, n_rows, strips, |a, tile| {
            // SAFETY: as above.
            unsafe { tile_of_columns(a, tile) };
        }),
        _ => gather_strips(a, n_rows, strips),
    }
}

/// As [`pack_strips`], with any strides, element by element.
pub(super) fn gather_strips(a: Matrix<'_, f32>, n_rows: usize, strips: &mut [f32]) -> Strips<f32> {
    pack_tiles(a, n_rows, strips, gather_tile)
}

/// Packs every tile by `pack`, from at most 16 rows of at most 32 depths. What these lack is zero in the tile.
#[inline(always)]
fn pack_tiles(
    a: Matrix<'_, f32>,
    n_rows: usize,
    strips: &mut [f32],
    pack: impl Fn(Matrix<'_, f32>, &mut [u32]),
) -> Strips<f32> {
    let (rows, depth) = (a.rows(), a.columns());
    let stride = 2 * TILE * depth.div_ceil(DEPTH);
    let pairs = cast_slice_mut(strips);
    for (p, at) in (0..depth).step_by(DEPTH).zip((0..).step_by(2 * TILE)) {
        for (i, strip) in (0..rows).step_by(n_rows).zip(pairs.chunks_exact_mut(stride)) {
            let end = rows.min(i + n_rows);
            for (half, tile) in strip[at..][..2 * TILE].chunks_exact_mut(TILE).enumerate() {
                let start = end.min(i + half * SIDE);
                let block = a.block(start..end.min(start + SIDE), p..depth.min(p + DEPTH));
                pack(block, tile);
            }
        }
    }
    let first = Strided { first: strips.as_ptr(), row_stride: SIDE, column_stride: 1 };
    Strips { first, stride }
}

with_bf16! {
    /// Rows that are contiguous: each is rounded, which makes pairs of its elements.
    unsafe fn tile_of_rows(a: Matrix<'_, f32>, tile: &mut [u32]) {
        for (i, to) in tile.chunks_exact_mut(SIDE).enumerate() {
            let row = if i < a.rows() { a.row(i) } else { &[] };
            // SAFETY: `to` has as many elements.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs_of_line(row, 0)) };
        }
    }
}

with_bf16! {
    /// Columns that are contiguous: those of a pair are rounded together and interleaved, then 16 × 16 pairs are
    /// transposed.
    unsafe fn tile_of_columns(a: Matrix<'_, f32>, tile: &mut [u32]) {
        let (mask, depth) = (first_lanes(a.rows()), a.columns());
        let column = |p: usize| {
            let from = a.data().as_ptr().wrapping_add(p * a.column_stride());
            // SAFETY: the mask has the elements of a column only.
            unsafe { load(from, mask, p < depth) }
        };
        let mut pairs = [_mm512_setzero_si512(); SIDE];
        for (p, pairs) in pairs.iter_mut().enumerate() {
            // SAFETY: as for this function.
            *pairs = unsafe { interleaved(column(2 * p), column(2 * p + 1)) };
        }
        // SAFETY: as for this function.
        let rows = unsafe { transposed_pairs(pairs) };
        for (row, to) in rows.into_iter().zip(tile.chunks_exact_mut(SIDE)) {
            // SAFETY: `to` has as many elements.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), row) };
        }
    }
}

/// Any strides.
fn gather_tile(a: Matrix<'_, f32>, tile: &mut [u32]) {
    for (i, row) in tile.chunks_exact_mut(SIDE).enumerate() {
        for (p, to) in row.iter_mut().enumerate() {
            *to = pair(element(&a, i, 2 * p), element(&a, i, 2 * p + 1));
        }
    }
}
