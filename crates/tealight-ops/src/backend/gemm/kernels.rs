//! Which kernel computes a product.

use std::any::Any;

use super::Method;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::bf16;
use super::kernel::Kernel;
use crate::backend::simd::Level;
use crate::backend::simd::bf16::Bf16;
use crate::backend::simd::vector::Lanes;

/// The kernels that products may use.
pub(super) struct Kernels<T: 'static> {
    pub(super) exact: Kernel<T>,
    /// Rounds operands to bf16.
    pub(super) rounding: Option<Kernel<T>>,
}

impl<T: Lanes> Kernels<T> {
    /// Those of the instruction sets in use. One that rounds is there if
    /// [`with_product_precision`](crate::with_product_precision) asks for it.
    pub(super) fn current() -> Self {
        Self::new(Level::current(), Bf16::asked_for())
    }

    pub(super) fn new(level: Level, bf16: Option<Bf16>) -> Self {
        Self { exact: Kernel::new(level), rounding: bf16.and_then(rounding) }
    }

    pub(super) fn round(&self) -> bool {
        self.rounding.is_some()
    }

    pub(super) fn of(&self, method: Method) -> &Kernel<T> {
        match (&self.rounding, method) {
            (Some(rounding), Method::RoundedStrips) => rounding,
            _ => &self.exact,
        }
    }
}

/// The kernel that rounds operands to bf16. There is none for f64, and that of AMX is for Linux only.
fn rounding<T: Lanes>(instructions: Bf16) -> Option<Kernel<T>> {
    #[cfg(target_arch = "x86_64")]
    {
        let kernel: &dyn Any = match instructions {
            Bf16::Avx512 => &bf16::AVX512,
            #[cfg(target_os = "linux")]
            Bf16::Amx => &amx::AMX,
            #[cfg(not(target_os = "linux"))]
            Bf16::Amx => return None,
        };
        kernel.downcast_ref().copied()
    }
    #[cfg(not(target_arch = "x86_64"))]
    match instructions {
        Bf16::Avx512 | Bf16::Amx => None,
    }
}
