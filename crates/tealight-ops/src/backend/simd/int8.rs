//! Instructions that multiply bytes and add the products in 32 bits.
//!
//! All of them give the same integers. The ones that saturate in between (VPMADDUBSW) are not used.

use std::sync::OnceLock;

use super::{InUse, Level};

/// An instruction set for products of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Int8 {
    /// The baseline of the architecture.
    Portable,
    /// VPMADDWD, of AVX2: bytes are widened to 16 bits first.
    Avx2,
    /// VPDPBUSD, of AVX-512 VNNI: 64 products of vectors.
    Vnni,
    /// TDPBUSD, of AMX: 16,384 products of tiles. Products with few rows use VPDPBUSD.
    Amx,
}

impl Int8 {
    /// The best of the processor among those that `TEALIGHT_SIMD` permits.
    pub(crate) fn current() -> Self {
        let InUse { level, bf16 } = InUse::current();
        let is_permitted = |int8: &&Self| match int8 {
            Self::Portable => true,
            Self::Avx2 => matches!(level, Level::Avx2 | Level::Avx512),
            Self::Vnni => level == Level::Avx512,
            Self::Amx => bf16 == Some(super::bf16::Bf16::Amx),
        };
        Self::available().iter().rev().find(is_permitted).copied().unwrap_or(Self::Portable)
    }

    /// All instruction sets that the processor has, the best last.
    pub(crate) fn available() -> &'static [Self] {
        static AVAILABLE: OnceLock<Vec<Int8>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let candidates = [
                (Self::Portable, true),
                (Self::Avx2, has_avx2()),
                (Self::Vnni, has_vnni()),
                (Self::Amx, has_vnni() && has_amx()),
            ];
            candidates.into_iter().filter(|(_, is_there)| *is_there).map(|(int8, _)| int8).collect()
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Vnni => "avx512_vnni",
            Self::Amx => "amx_int8",
        }
    }
}

/// The instruction set that computes products of bytes on this CPU: `portable`, `avx2`, `avx512_vnni` or `amx_int8`.
pub fn int8_instructions() -> &'static str {
    Int8::current().name()
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    pulp::x86::V4::try_new().is_some() && std::arch::is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_vnni() -> bool {
    false
}

/// On Linux with glibc only, as tiles of bf16.
fn has_amx() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
    let is_permitted = super::amx::is_permitted(super::amx::INT8);
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
    let is_permitted = false;
    is_permitted
}
