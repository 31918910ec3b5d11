//! Sums of products of bytes, for each set of instructions.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::ops::Range;

use super::bytes::{COLUMNS, DEPTH, HEIGHT};
use super::rows;
use super::weight::{Line, Weight};
use crate::backend::simd::int8::Int8;

/// Σ_k q_ik w_jk of a strip and a block of columns. Rows that the strip does not have hold any numbers.
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[i32; COLUMNS]; HEIGHT]);

/// Up to [`HEIGHT`] rows, and the blocks of columns that they are multiplied by.
pub(super) struct Strip<'a> {
    /// The lines of [`HEIGHT`] rows, some of which may be padding.
    rows: &'a [rows::Line],
    /// The bytes between the starts of two rows.
    stride: usize,
    n_rows: usize,
    weight: &'a Weight,
    blocks: Range<usize>,
}

/// What receives the sums of a block of columns, and the number of this block.
type Receive<'a> = dyn FnMut(usize, &Sums) + 'a;

impl<'a> Strip<'a> {
    /// The rows from `rows.start` on, a multiple of [`HEIGHT`].
    pub(super) fn new(
        all: &'a rows::Rows,
        rows: Range<usize>,
        weight: &'a Weight,
        blocks: Range<usize>,
    ) -> Self {
        let (lines, stride, n_rows) = (all.lines(rows.start), all.stride(), rows.len());
        assert!((1..=HEIGHT).contains(&n_rows) && lines.len() >= HEIGHT * stride / DEPTH, "rows");
        assert!(weight.depth() <= stride, "rows of {stride} bytes, not {}", weight.depth());
        Self { rows: lines, stride, n_rows, weight, blocks }
    }

    /// Computes block after block.
    ///
    /// # Panics
    /// If the processor does not have these instructions.
    pub(super) fn run(&self, instructions: Int8, receive: &mut Receive<'_>) {
        assert!(Int8::available().contains(&instructions), "{instructions:?} on this processor");
        match instructions {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Int8::Amx if self.n_rows > amx::FEW_ROWS => amx::run(self, receive),
            #[cfg(target_arch = "x86_64")]
            Int8::Vnni | Int8::Amx => self.each_block(receive, vnni::sums),
            #[cfg(target_arch = "x86_64")]
            Int8::Avx2 => self.each_block(receive, avx2::sums),
            _ => self.each_block(receive, portable::sums),
        }
    }

    fn each_block(&self, receive: &mut Receive<'_>, sums: impl Fn(&Self, [&[Line]; 2], &mut Sums)) {
        let mut all = Sums([[0; COLUMNS]; HEIGHT]);
        for block in self.blocks.clone() {
            sums(self, self.panels(block), &mut all);
            receive(block, &all);
        }
    }

    fn panels(&self, block: usize) -> [&'a [Line]; 2] {
        let (first, second) = self.weight.panels(block).split_at(self.weight.depth() / 4);
        [first, second]
    }

    /// The bytes of row i, as deep as the weight.
    fn row(&self, i: usize) -> &'a [u8] {
        let lines = &self.rows[i * self.stride / DEPTH..][..self.weight.depth() / DEPTH];
        // The lines are contiguous arrays of bytes.
        bytemuck::cast_slice(lines)
    }
}
