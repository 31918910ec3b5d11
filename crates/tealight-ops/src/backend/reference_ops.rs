//! A switch that forces reference implementations, to compare a whole run with its fused loops and kernels.

use std::cell::Cell;

thread_local! {
    static FORCED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with reference implementations, in plain tensor operations, instead of fused loops and kernels, on
/// this thread.
pub fn with_reference_ops<R>(f: impl FnOnce() -> R) -> R {
    let _former = FormerSetting(FORCED.replace(true));
    f()
}

/// Whether this thread is inside [`with_reference_ops`].
pub(crate) fn are_forced() -> bool {
    FORCED.get()
}

/// Restores the setting when it is dropped.
struct FormerSetting(bool);

impl Drop for FormerSetting {
    fn drop(&mut self) {
        FORCED.set(self.0);
    }
}
