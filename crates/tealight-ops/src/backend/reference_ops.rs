//! Every operation as its definition, for comparing a whole run with what its fused loops make of it.

use std::cell::Cell;

thread_local! {
    static ONLY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which every operation that the caller's thread asks for is computed by its definition,
/// in plain tensor operations, and not by its fused loop.
pub fn with_reference_ops<R>(f: impl FnOnce() -> R) -> R {
    let _before = Before(ONLY.replace(true));
    f()
}

pub(crate) fn are_forced() -> bool {
    ONLY.get()
}

/// Puts back what was there before.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        ONLY.set(self.0);
    }
}
