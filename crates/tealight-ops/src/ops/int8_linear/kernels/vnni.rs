//! VPDPBUSD: four products of bytes are added to each of 16 sums.

#![expect(unsafe_code, reason = "calls code for instructions that have been detected")]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_dpbusd_epi32, _mm512_load_si512, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_storeu_epi32,
};

use super::{Line, Strip, Sums};
use crate::ops::int8_linear::bytes::{COLUMNS, DEPTH, HEIGHT};

/// Rows whose sums are in registers together: twelve times two vectors.
const MOST: usize = 12;

/// Calls `group` for the number of rows that remain, with the number of its sums by element. An instruction waits for
/// the one before that adds to the same sum; few rows therefore add each element in several parts.
macro_rules! with_rows {
    ($n_rows:expr, $call:expr; $($rows:literal: $parts:literal),*) => {
        match $n_rows {
            // SAFETY: `Strip::run` has checked that the processor has AVX-512 VNNI.
            $($rows => unsafe { group::<$rows, $parts>($call.0, $call.1, $call.2) },)*
            _ => unreachable!("invariant: one to twelve rows"),
        }
    };
}

/// The sums of a block.
pub(super) fn sums(strip: &Strip<'_>, panels: [&[Line]; 2], sums: &mut Sums) {
    let rest = &mut sums.0;
    for first in (0..strip.n_rows).step_by(MOST) {
        let n_rows = MOST.min(strip.n_rows - first);
        let call = (|i: usize| strip.row(first + i), panels, &mut rest[first..]);
        with_rows!(n_rows, call; 1: 4, 2: 4, 3: 4, 4: 2, 5: 2, 6: 2, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1);
    }
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn group<'a, const ROWS: usize, const PARTS: usize>(
    row: impl Fn(usize) -> &'a [u8],
    panels: [&[Line]; 2],
    sums: &mut [[i32; COLUMNS]],
) {
    const { assert!(ROWS <= HEIGHT && (DEPTH / 4).is_multiple_of(PARTS)) };
    let rows: [&[[u8; 4]]; ROWS] = std::array::from_fn(|i| row(i).as_chunks::<4>().0);
    let n_lines = panels[0].len();
    assert!(panels[1].len() == n_lines && rows.iter().all(|row| row.len() == n_lines), "depths");
    assert!(n_lines.is_multiple_of(PARTS), "whole parts");
    let rows = rows.map(<[_]>::as_ptr);
    let panels = panels.map(<[_]>::as_ptr);
    let mut totals = [[[_mm512_setzero_si512(); 2]; ROWS]; PARTS];
    for first in (0..n_lines).step_by(PARTS) {
        for (part, totals) in totals.iter_mut().enumerate() {
            let d = first + part;
            // SAFETY: d is below the number of lines, a multiple of PARTS, as asserted above.
            let w =
                panels.map(|panel| unsafe { _mm512_load_si512(panel.add(d).cast::<__m512i>()) });
            for (totals, row) in totals.iter_mut().zip(rows) {
                // SAFETY: likewise.
                let q = _mm512_set1_epi32(i32::from_ne_bytes(unsafe { *row.add(d) }));
                for (total, w) in totals.iter_mut().zip(w) {
                    *total = _mm512_dpbusd_epi32(*total, q, w);
                }
            }
        }
    }
    for (i, sums) in sums.iter_mut().enumerate().take(ROWS) {
        for (half, sums) in sums.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mut total = totals[0][i][half];
            for part in &totals[1..] {
                total = _mm512_add_epi32(total, part[i][half]);
            }
            // SAFETY: 16 integers of 32 bits are written.
            unsafe { _mm512_storeu_epi32(sums.as_mut_ptr(), total) };
        }
    }
}
