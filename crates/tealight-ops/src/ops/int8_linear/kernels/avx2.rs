//! VPMADDWD: products of 16 bits, of which two are added in 32.

#![expect(unsafe_code, reason = "calls code for instructions that have been detected")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_cvtepu8_epi16, _mm_cvtsi32_si128, _mm256_add_epi32,
    _mm256_broadcastq_epi64, _mm256_cvtepi8_epi16, _mm256_madd_epi16, _mm256_setzero_si256,
};

use bytemuck::cast;

use super::{Line, Strip, Sums};
use crate::ops::int8_linear::bytes::PANEL;

/// Rows whose sums are in registers together: three times four vectors.
const ROWS: usize = 3;

/// The sums of a block.
pub(super) fn sums(strip: &Strip<'_>, panels: [&[Line]; 2], sums: &mut Sums) {
    for first in (0..strip.n_rows).step_by(ROWS) {
        let n_rows = ROWS.min(strip.n_rows - first);
        // If fewer rows remain, the last of them is computed again.
        let rows = std::array::from_fn(|i| strip.row(first + i.min(n_rows - 1)));
        for (p, panel) in panels.into_iter().enumerate() {
            // SAFETY: `Strip::run` has checked that the processor has AVX2.
            let totals = unsafe { panel_sums(rows, panel) };
            for (sums, totals) in sums.0[first..first + n_rows].iter_mut().zip(totals) {
                sums[p * PANEL..(p + 1) * PANEL].copy_from_slice(&totals);
            }
        }
    }
}

#[target_feature(enable = "avx2")]
fn panel_sums(rows: [&[u8]; ROWS], panel: &[Line]) -> [[i32; PANEL]; ROWS] {
    let rows = rows.map(|row| row.as_chunks::<4>().0);
    let mut totals = [[_mm256_setzero_si256(); 4]; ROWS];
    for (d, line) in panel.iter().enumerate() {
        let (quarters, _) = line.0.as_chunks::<16>();
        let q = rows.map(|row| {
            let four = _mm_cvtsi32_si128(i32::from_ne_bytes(row[d]));
            _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(four))
        });
        for (quarter, bytes) in quarters.iter().enumerate() {
            let w = _mm256_cvtepi8_epi16(cast::<[i8; 16], __m128i>(*bytes));
            for (totals, q) in totals.iter_mut().zip(q) {
                totals[quarter] = _mm256_add_epi32(totals[quarter], _mm256_madd_epi16(w, q));
            }
        }
    }
    totals.map(|quarters| {
        let halves = quarters.map(cast::<__m256i, [i32; 8]>);
        std::array::from_fn(|column| {
            let (quarter, at) = (column / 4, column % 4 * 2);
            halves[quarter][at] + halves[quarter][at + 1]
        })
    })
}
