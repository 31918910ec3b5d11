//! Instructions that multiply bf16 and add the products in f32.

use std::sync::OnceLock;

use crate::backend::product_precision::{ProductPrecision, product_precision};

/// An instruction set for products of bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bf16 {
    /// VDPBF16PS, of AVX-512: 32 products of vectors.
    Avx512,
    /// TDPBF16PS, of AMX: 8,192 products of tiles. On Linux only, and only where there is VDPBF16PS too. Large products
    /// of f32 are computed by it as well.
    Amx,
}

impl Bf16 {
    /// The instructions in use, if any.
    pub(crate) fn current() -> Option<Self> {
        super::InUse::current().bf16
    }

    /// The instructions in use, if [`with_product_precision`](crate::with_product_precision) asks for bf16.
    pub(crate) fn asked_for() -> Option<Self> {
        (product_precision() == ProductPrecision::Bf16).then(Self::current).flatten()
    }

    /// The fastest bf16 instructions of the processor, if they are faster than f32.
    ///
    /// Tiles are faster: on one thread of Granite Rapids, products reached 772 to 938 GFLOP/s on tiles, 145 to 181 in
    /// f32 and 107 to 116 by VDPBF16PS. On Intel, VDPBF16PS is therefore used only if `TEALIGHT_SIMD` asks for it. On
    /// AMD's processors VDPBF16PS has twice the rate of a multiply-add in f32 (measured on Zen 5).
    pub(super) fn best() -> Option<Self> {
        let available = Self::available();
        let is_fast = |bf16: &&Self| **bf16 == Self::Amx || is_amd();
        available.iter().rev().find(is_fast).copied()
    }

    /// All bf16 instructions that the processor has.
    pub(crate) fn available() -> &'static [Self] {
        static AVAILABLE: OnceLock<Vec<Bf16>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let avx512 = has_avx512_bf16().then_some(Self::Avx512);
            avx512.into_iter().chain(has_amx_bf16().then_some(Self::Amx)).collect()
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512_bf16",
            Self::Amx => "amx_bf16",
        }
    }
}

/// The bits of the nearest bf16, as VCVTNE2PS2BF16 has it.
#[inline(always)]
pub(crate) fn rounded(x: f32) -> u16 {
    const QUIET: u32 = 1 << 22;
    const EXPONENT: u32 = 0x7f80_0000;
    let bits = x.to_bits();
    let kept = if x.is_nan() {
        bits | QUIET
    } else if bits & EXPONENT == 0 {
        bits & (1 << 31)
    } else {
        bits + 0x7fff + (bits >> 16 & 1)
    };
    (kept >> 16) as u16
}

/// The bits of the parts of x: part i is bf16(x − earlier parts). Three parts hold the 24 significant bits of an f32.
#[cfg(target_arch = "x86_64")]
pub(crate) fn parts<const PARTS: usize>(mut x: f32) -> [u16; PARTS] {
    std::array::from_fn(|_| {
        let part = rounded(x);
        x -= widened(part);
        part
    })
}

/// A bf16 as f32.
#[inline(always)]
pub(crate) fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_bf16() -> bool {
    pulp::x86::V4::try_new().is_some() && std::arch::is_x86_feature_detected!("avx512bf16")
}

#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512_bf16() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd() -> bool {
    false
}

/// Tiles, and AVX-512 to pack them. On Linux with glibc only: other systems are not asked for tiles.
fn has_amx_bf16() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
    let is_permitted = has_avx512_bf16() && super::amx::is_permitted(super::amx::BF16);
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
    let is_permitted = false;
    is_permitted
}
