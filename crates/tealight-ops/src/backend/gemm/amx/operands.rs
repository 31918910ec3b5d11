//! The sums of a block of C, by tiles: one loop for rounded operands, one for split ones.
//!
//! A tile of B that comes from the second-level cache is late (measured on Granite Rapids: the kernel waited for B in a
//! third of a training step). While a depth is multiplied, the tiles of B of the next depth are therefore prefetched, as
//! are the rows of C that will be written and rows of the next strip of A. A strip of split operands is larger than the
//! first-level cache, so that the tiles of A of the next depth are prefetched, too.

#![expect(unsafe_code, reason = "instructions that Rust does not have")]

use std::arch::asm;

use super::{SIDE, Sums, WIDTH};
use crate::backend::gemm::strip::Strip;

/// The form in which elements of A and B are packed.
pub(super) trait Operands {
    /// The number of bf16 that an element is packed as.
    const PARTS: usize;

    /// A B, for a panel of B.
    ///
    /// # Safety
    /// A and B are packed in this way, and the tiles have their shapes.
    unsafe fn multiply(sums: &mut Sums, strip: &Strip<f32>, b: *const f32, ahead: &Ahead);
}

/// Rounded to bf16.
pub(super) struct Rounded;

/// Split into three parts of bf16. Six of their nine products are added, in the order a₀b₂, a₀b₁, a₁b₁, a₁b₀, a₀b₀,
/// a₂b₀, so that after the first, each loads a part of A or of B, but not of both.
pub(super) struct Split;

/// The rows that are prefetched while sums are computed: two rows of A that are read after this strip, and the rows of
/// C to which these sums are written.
pub(super) struct Ahead {
    next: [*const f32; 2],
    first: *const f32,
    last: *const f32,
    row_bytes: usize,
}

impl Ahead {
    /// For `block` of `n_blocks` of columns, and `n_rows` of C.
    pub(super) fn from_strip(
        strip: &Strip<f32>,
        block: usize,
        n_blocks: usize,
        n_rows: usize,
    ) -> Self {
        let (c, row_stride) = strip.c;
        let first = c.cast_const().wrapping_add(block * WIDTH);
        Self {
            next: strip.next.rows(block, n_blocks, n_rows),
            first,
            last: first.wrapping_add((n_rows - 1) * row_stride),
            row_bytes: row_stride * size_of::<f32>(),
        }
    }
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

/// Loads tiles of A or B from these offsets.
macro_rules! load {
    ($matrix:literal: $($tile:literal $offset:literal),*) => {
        concat!($("tileloadd ", $tile, ", [{", $matrix, "} + {", $matrix, "_stride} + ", $offset, "]\n"),*)
    };
}

/// Prefetches four lines of A or B from each of these offsets on.
macro_rules! prefetch {
    ($matrix:literal: $($base:literal + $offset:literal),*) => {
        concat!($(
            "prefetcht0 [{", $matrix, "} + ", $base, " + ", $offset, "]\n",
            "prefetcht0 [{", $matrix, "} + ", $base, " + ", $offset, " + 64]\n",
            "prefetcht0 [{", $matrix, "} + ", $base, " + ", $offset, " + 128]\n",
            "prefetcht0 [{", $matrix, "} + ", $base, " + ", $offset, " + 192]\n",
        )*)
    };
}

/// Adds the products of both tiles of A and of B. Meanwhile, 1 KiB of A and of B is prefetched from this offset on.
macro_rules! add_products {
    ($offset:literal) => {
        concat!(
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            prefetch!("a": $offset + 0),
            prefetch!("b": $offset + 0),
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            prefetch!("a": $offset + 256),
            prefetch!("b": $offset + 256),
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            prefetch!("a": $offset + 512),
            prefetch!("b": $offset + 512),
            "tdpbf16ps tmm3, tmm5, tmm7\n",
            prefetch!("a": $offset + 768),
            prefetch!("b": $offset + 768),
        )
    };
}

/// The sums over all depths. Each iteration executes the instructions `$line` for 32 depths and prefetches what is ahead.
/// A and B each have 2 KiB per part for 32 depths.
macro_rules! sum_tiles {
    ($sums:ident, $strip:ident, $b:ident, $ahead:ident, $($line:expr)*) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {n_tiles}, {n_tiles}",
            "jz 3f",
            "2:",
            $($line,)*
            prefetch_c!(),
            prefetch_c!(),
            prefetch_c!(),
            "prefetcht1 [{next}]",
            "prefetcht1 [{next} + 64]",
            "prefetcht1 [{other}]",
            "prefetcht1 [{other} + 64]",
            "add {a}, {bytes}",
            "add {b}, {bytes}",
            "add {next}, {step}",
            "add {other}, {step}",
            "dec {n_tiles}",
            "jnz 2b",
            "3:",
            "tilestored [{sums} + {b_stride}], tmm0",
            "tilestored [{sums} + {b_stride} + 64], tmm1",
            "tilestored [{sums} + {b_stride} + 2048], tmm2",
            "tilestored [{sums} + {b_stride} + 2112], tmm3",
            n_tiles = inout(reg) $strip.depth / (Self::PARTS * SIDE) => _,
            a = inout(reg) $strip.a.first => _,
            b = inout(reg) $b => _,
            next = inout(reg) $ahead.next[0] => _,
            other = inout(reg) $ahead.next[1] => _,
            c = inout(reg) $ahead.first => _,
            c_last = in(reg) $ahead.last,
            c_row_bytes = in(reg) $ahead.row_bytes,
            step = in(reg) size_of::<f32>() * $strip.next.step,
            a_stride = in(reg) size_of::<[f32; SIDE]>(),
            b_stride = in(reg) size_of::<[f32; WIDTH]>(),
            bytes = const Self::PARTS * size_of::<[[f32; WIDTH]; SIDE]>(),
            sums = in(reg) $sums.0.as_mut_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl Operands for Rounded {
    const PARTS: usize = 1;

    unsafe fn multiply(sums: &mut Sums, strip: &Strip<f32>, b: *const f32, ahead: &Ahead) {
        // SAFETY: the loop reads the tiles of A and B of all depths, and all rows of the sums are written. Prefetching
        // accepts any address. The label after the loop serves a product without depth.
        unsafe {
            sum_tiles! { sums, strip, b, ahead,
                load!("a": "tmm4" 0)
                load!("b": "tmm6" 0)
                "tdpbf16ps tmm0, tmm4, tmm6"
                prefetch!("b": 2048 + 0, 2048 + 256)
                load!("b": "tmm7" 64)
                "tdpbf16ps tmm1, tmm4, tmm7"
                prefetch!("b": 2560 + 0, 2560 + 256)
                load!("a": "tmm5" 1024)
                "tdpbf16ps tmm2, tmm5, tmm6"
                prefetch!("b": 3072 + 0, 3072 + 256)
                "tdpbf16ps tmm3, tmm5, tmm7"
                prefetch!("b": 3584 + 0, 3584 + 256)
            }
        }
    }
}

impl Operands for Split {
    const PARTS: usize = 3;

    unsafe fn multiply(sums: &mut Sums, strip: &Strip<f32>, b: *const f32, ahead: &Ahead) {
        // SAFETY: as above.
        unsafe {
            sum_tiles! { sums, strip, b, ahead,
                load!("a": "tmm4" 0, "tmm5" 1024)
                load!("b": "tmm6" 4096, "tmm7" 4160)
                add_products!(6144)
                load!("b": "tmm6" 2048, "tmm7" 2112)
                add_products!(7168)
                load!("a": "tmm4" 2048, "tmm5" 3072)
                add_products!(8192)
                load!("b": "tmm6" 0, "tmm7" 64)
                add_products!(9216)
                load!("a": "tmm4" 0, "tmm5" 1024)
                add_products!(10240)
                load!("a": "tmm4" 4096, "tmm5" 5120)
                add_products!(11264)
            }
        }
    }
}
