//! The factors of a matrix product, and the precision that they are read in.

use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Tensor;

/// A batch of contiguous matrices, `(rows, columns)` each, read as they are or transposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor<'a> {
    pub(super) x: &'a Tensor,
    pub(super) is_transposed: bool,
}

impl<'a> Factor<'a> {
    pub(crate) fn of(x: &'a Tensor) -> Self {
        Self { x, is_transposed: false }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { is_transposed: !self.is_transposed, ..self }
    }
}

/// Of one matrix of the batch: C `(m, n)`, of depth k.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// Whether products of f32 on tensor cores are rounded to TF32, 10 bits of mantissa: on NVIDIA's GPUs, in this
/// whole process.
static TF32: AtomicBool = AtomicBool::new(false);

/// Lets products of f32 on NVIDIA's GPUs read their factors as TF32, which has 10 bits of mantissa where f32
/// has 23, and is several times as fast. Sums stay f32. Of this whole process; nothing else changes.
pub fn allow_tf32(allow: bool) {
    TF32.store(allow, Ordering::Relaxed);
}

#[cfg(feature = "cuda")]
pub(super) fn is_tf32_allowed() -> bool {
    TF32.load(Ordering::Relaxed)
}
