//! TDPBUSD: a tile of x, 16 rows of 64 depths, by a tile of the weight, 64 depths of 16 columns, is added to a tile of
//! sums. The tile of the weight is 16 lines of a panel. (Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 2, TDPBUSD.)
//!
//! ```text
//!                       W  tmm6 (64, 16)  tmm7 (64, 16)
//! x  tmm4 (16, 64)         tmm0 (16, 16)  tmm1 (16, 16)
//!    tmm5 (16, 64)         tmm2 (16, 16)  tmm3 (16, 16)
//! ```
//!
//! Up to 16 rows use the upper half. Rows of a tile that are padding are multiplied, too.

#![expect(unsafe_code, reason = "instructions that Rust does not have")]

use std::arch::asm;

use super::{Line, Receive, Strip, Sums};
use crate::backend::simd::tiles::WHOLE;
use crate::ops::int8_linear::bytes::{COLUMNS, DEPTH, HEIGHT};

/// Up to so many rows, VPDPBUSD is faster.
pub(super) const FEW_ROWS: usize = 4;

/// Computes block after block.
pub(super) fn run(strip: &Strip<'_>, receive: &mut Receive<'_>) {
    let mut sums = Sums([[0; COLUMNS]; HEIGHT]);
    // SAFETY: `Strip::run` has checked that the processor has AMX-INT8, and the shapes are valid. Nothing but `multiply` uses tiles until they are released: the compiler knows them
    // as clobbers only.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, preserves_flags));
    };
    for block in strip.blocks.clone() {
        let panels = strip.panels(block).map(<[Line]>::as_ptr);
        // SAFETY: as above, and the tiles have their shapes; `Strip::new` has checked that there are 32 rows as deep as the weight.
        unsafe { multiply(strip, panels, &mut sums) };
        receive(block, &sums);
    }
    // SAFETY: no tile is in use any more.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}

/// Prefetches eight lines of a panel, from this one of the next depths on.
macro_rules! prefetch {
    ($panel:literal + $line:literal) => {
        concat!(
            prefetch!(@ $panel, $line, 0), prefetch!(@ $panel, $line, 64),
            prefetch!(@ $panel, $line, 128), prefetch!(@ $panel, $line, 192),
            prefetch!(@ $panel, $line, 256), prefetch!(@ $panel, $line, 320),
            prefetch!(@ $panel, $line, 384), prefetch!(@ $panel, $line, 448),
        )
    };
    (@ $panel:literal, $line:literal, $offset:literal) => {
        concat!("prefetcht0 [{", $panel, "} + 1024 + ", $line, " + ", $offset, "]\n")
    };
}

/// The loop over all depths. Tiles of the weight that come from the second-level cache would be late: those of the next
/// depths are prefetched.
macro_rules! sum_tiles {
    ($strip:ident, $panels:ident, $sums:ident; $zero:literal $load:literal $third:literal $fourth:literal $store:literal) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            $zero,
            "2:",
            "tileloadd tmm4, [{rows} + {stride}]",
            "tileloadd tmm6, [{first} + {line}]",
            "tdpbusd tmm0, tmm4, tmm6",
            prefetch!("first" + 0),
            "tileloadd tmm7, [{second} + {line}]",
            "tdpbusd tmm1, tmm4, tmm7",
            prefetch!("first" + 512),
            $load,
            $third,
            prefetch!("second" + 0),
            $fourth,
            prefetch!("second" + 512),
            "add {rows}, 64",
            "add {lower}, 64",
            "add {first}, 1024",
            "add {second}, 1024",
            "dec {n}",
            "jnz 2b",
            "tilestored [{sums} + {sums_stride}], tmm0",
            "tilestored [{sums} + {sums_stride} + 64], tmm1",
            $store,
            n = inout(reg) $strip.weight.depth() / DEPTH => _,
            rows = inout(reg) $strip.rows.as_ptr() => _,
            lower = inout(reg) $strip.rows.as_ptr().wrapping_byte_add(16 * $strip.stride) => _,
            first = inout(reg) $panels[0] => _,
            second = inout(reg) $panels[1] => _,
            stride = in(reg) $strip.stride,
            line = in(reg) size_of::<Line>(),
            sums = in(reg) $sums.0.as_mut_ptr(),
            sums_stride = in(reg) size_of::<[i32; COLUMNS]>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// # Safety
/// The tiles have their shapes, on a processor with AMX-INT8.
unsafe fn multiply(strip: &Strip<'_>, panels: [*const Line; 2], sums: &mut Sums) {
    if strip.n_rows <= 16 {
        // SAFETY: the loop reads 16 rows and both panels, of which the depth is a multiple of that of a tile and not 0.
        // Prefetching accepts any address.
        unsafe { sum_tiles!(strip, panels, sums; "" "" "" "" "") };
    } else {
        // SAFETY: likewise, with 32 rows.
        unsafe {
            sum_tiles!(strip, panels, sums;
                "tilezero tmm2\n tilezero tmm3"
                "tileloadd tmm5, [{lower} + {stride}]"
                "tdpbusd tmm2, tmm5, tmm6"
                "tdpbusd tmm3, tmm5, tmm7"
                "tilestored [{sums} + {sums_stride} + 2048], tmm2\n tilestored [{sums} + {sums_stride} + 2112], tmm3"
            );
        };
    }
}
