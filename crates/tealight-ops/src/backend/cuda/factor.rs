//! The factors of a matrix product, and whether they may be rounded to TF32.

use std::cell::Cell;

use candle_core::Tensor;

/// A batch of contiguous matrices, `(rows, columns)` each, read as they are or transposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor<'a> {
    pub(super) x: &'a Tensor,
    pub(super) is_transposed: bool,
}

impl<'a> Factor<'a> {
    /// The matrices as they are stored.
    pub(crate) fn of(x: &'a Tensor) -> Self {
        Self { x, is_transposed: false }
    }

    /// The transposed matrices.
    pub(crate) fn transposed(self) -> Self {
        Self { is_transposed: !self.is_transposed, ..self }
    }
}

/// Of a product C `(batch, m, n)` = A `(batch, m, k)` B `(batch, k, n)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

thread_local! {
    static TF32: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which products of f32 that this thread launches on an NVIDIA GPU may read their operands as TF32
/// (10 bits of mantissa instead of 23; several times as fast). Sums stay f32. No other thread is affected, and
/// the previous setting returns afterwards, also after a panic.
pub fn with_tf32<R>(allow: bool, f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            TF32.set(self.0);
        }
    }
    let _restore = Restore(TF32.replace(allow));
    f()
}

#[cfg(any(test, feature = "cuda"))]
pub(super) fn is_tf32_allowed() -> bool {
    TF32.get()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::thread;

    use super::*;

    #[test]
    fn tf32_is_allowed_within_its_scope_and_thread_only() {
        assert!(!is_tf32_allowed());
        with_tf32(true, || {
            assert!(is_tf32_allowed());
            assert!(!thread::spawn(is_tf32_allowed).join().unwrap());
            with_tf32(false, || assert!(!is_tf32_allowed()));
            assert!(is_tf32_allowed());
        });
        assert!(catch_unwind(|| with_tf32(true, || panic!("a step fails"))).is_err());
        assert!(!is_tf32_allowed());
    }
}
