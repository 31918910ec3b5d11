//! The sizes of blocks, and rounding to integers.

use crate::backend::parallel::sum;

/// Depths that are read together by all kernels: those of a tile of AMX.
pub(super) const DEPTH: usize = 64;
/// Columns of a panel.
pub(super) const PANEL: usize = 16;
/// Columns of a block of results: two panels.
pub(super) const COLUMNS: usize = 2 * PANEL;
/// Rows of a block of results.
pub(super) const HEIGHT: usize = 32;

/// A row of x whose scale is below this, or an output of the weight whose largest element is, counts as zeros, because the
/// inverse of its scale might be infinite.
pub(super) const LEAST: f32 = 1e-30;

/// The integer nearest to x, halves to even, for |x| below 2²². Vectors have no conversion that saturates, as `as` does.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    /// In [2²³, 2²⁴) floats are integers: adding this rounds x, and leaves it in the lowest bits.
    const INTEGERS: f32 = (3 << 22) as f32;
    (x + INTEGERS).to_bits().wrapping_sub(INTEGERS.to_bits()).cast_signed()
}

/// 0, or NaN if an element is not finite.
#[inline(always)]
pub(super) fn zero_if_finite(x: &[f32]) -> f32 {
    sum(x, |x| x * 0.)
}
