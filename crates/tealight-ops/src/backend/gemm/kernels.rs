//! Which kernel computes a product.

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
    /// For all products.
    pub(super) vectors: Kernel<T>,
    /// For large products, if there is a faster one. It converts operands to bf16.
    pub(super) converting: Option<Kernel<T>>,
}

/// How operands of f32 are converted to bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    /// Each element is rounded.
    Rounded(Bf16),
    /// Each element is split into parts, for the tiles of AMX: the product is as exact as in f32.
    Split,
}

impl Conversion {
    /// Rounding if [`with_product_precision`](crate::with_product_precision) asks for bf16; else splitting, if tiles
    /// are in use.
    fn current() -> Option<Self> {
        let split = || (Bf16::current() == Some(Bf16::Amx)).then_some(Self::Split);
        Bf16::asked_for().map(Self::Rounded).or_else(split)
    }

    /// The kernel for this conversion. `None` for f64, for AMX on systems other than Linux, and on other processors than
    /// x86-64.
    fn kernel<T: Lanes>(self) -> Option<Kernel<T>> {
        #[cfg(target_arch = "x86_64")]
        {
            let kernel: &dyn std::any::Any = match self {
                Self::Rounded(Bf16::Avx512) => &bf16::AVX512,
                #[cfg(target_os = "linux")]
                Self::Rounded(Bf16::Amx) => &amx::ROUNDED,
                #[cfg(target_os = "linux")]
                Self::Split => &amx::SPLIT,
                #[cfg(not(target_os = "linux"))]
                Self::Rounded(Bf16::Amx) | Self::Split => return None,
            };
            kernel.downcast_ref().copied()
        }
        #[cfg(not(target_arch = "x86_64"))]
        match self {
            Self::Rounded(Bf16::Avx512 | Bf16::Amx) | Self::Split => None,
        }
    }
}

impl<T: Lanes> Kernels<T> {
    /// The kernels for the instruction sets in use and for the precision that the caller asks for.
    pub(super) fn current() -> Self {
        Self::new(Level::current(), Conversion::current())
    }

    pub(super) fn new(level: Level, conversion: Option<Conversion>) -> Self {
        let converting = conversion.and_then(Conversion::kernel);
        Self { vectors: Kernel::new(level), converting }
    }

    pub(super) fn for_method(&self, method: Method) -> &Kernel<T> {
        match (&self.converting, method) {
            (Some(converting), Method::ConvertedStrips) => converting,
            _ => &self.vectors,
        }
    }
}
