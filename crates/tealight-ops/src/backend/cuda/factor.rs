//! The factors and the addend of a matrix product.

use candle_core::Tensor;

/// A batch of contiguous matrices, `(rows, columns)` each, read as they are or transposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor<'a> {
    pub(super) x: &'a Tensor,
    pub(super) is_transposed: bool,
}

impl<'a> Factor<'a> {
    /// The matrices as they are stored.
    pub(crate) fn from_tensor(x: &'a Tensor) -> Self {
        Self { x, is_transposed: false }
    }

    /// The transposed matrices.
    pub(crate) fn transposed(self) -> Self {
        Self { is_transposed: !self.is_transposed, ..self }
    }
}

/// The addend of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addend {
    /// Nothing. The result may hold any numbers before.
    Zero,
    /// The numbers that the result holds before.
    Result,
}

/// The sizes of a product C `(batch, m, n)` = A `(batch, m, k)` B `(batch, k, n)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}
