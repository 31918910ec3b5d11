//! The precision of the operands of matrix products in f32.

use std::cell::Cell;

/// The format to which the operands of a matrix product in f32 may be rounded. Sums are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductPrecision {
    /// Not rounded.
    #[default]
    F32,
    /// TF32, 10 bits of mantissa instead of 23, on an NVIDIA GPU. On a CPU the same as `F32`.
    Tf32,
    /// bf16, 7 bits of mantissa, on a CPU with instructions for it
    /// ([`bf16_instructions`](crate::bf16_instructions)), where the product is large enough to gain from it. On a
    /// GPU and on other CPUs the same as `F32`.
    Bf16,
    /// Integers of 8 bits, for models that are not trained: their linear maps on a CPU use
    /// [`int8_linear`](crate::int8_linear), if they ask [`product_precision`]. All other products are the same as `F32`. A
    /// model rounds each weight once: its parameters must not be updated, averaged or loaded again afterwards.
    Int8,
}

impl ProductPrecision {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::F32, Self::Tf32, Self::Bf16, Self::Int8];

    /// `f32`, `tf32`, `bf16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

thread_local! {
    static PRECISION: Cell<ProductPrecision> = const { Cell::new(ProductPrecision::F32) };
}

/// Runs `f`, in which the matrix products that this thread starts, forward and backward, have this precision. No other
/// thread is affected, and the previous precision returns afterwards, also after a panic.
pub fn with_product_precision<R>(precision: ProductPrecision, f: impl FnOnce() -> R) -> R {
    struct FormerPrecision(ProductPrecision);
    impl Drop for FormerPrecision {
        fn drop(&mut self) {
            PRECISION.set(self.0);
        }
    }
    let _former = FormerPrecision(PRECISION.replace(precision));
    f()
}

/// The precision that [`with_product_precision`] has set for this thread.
pub fn product_precision() -> ProductPrecision {
    PRECISION.get()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::thread;

    use super::ProductPrecision::{Bf16, F32, Tf32};
    use super::*;

    #[test]
    fn a_precision_holds_within_its_scope_and_thread_only() {
        assert_eq!(product_precision(), F32);
        with_product_precision(Tf32, || {
            assert_eq!(product_precision(), Tf32);
            assert_eq!(thread::spawn(product_precision).join().unwrap(), F32);
            with_product_precision(Bf16, || assert_eq!(product_precision(), Bf16));
            assert_eq!(product_precision(), Tf32);
        });
        assert!(catch_unwind(|| with_product_precision(Bf16, || panic!("a step fails"))).is_err());
        assert_eq!(product_precision(), F32);
    }
}
