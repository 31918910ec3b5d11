//! SIMD instruction sets, detected at run time.

pub(crate) mod vector;

use std::any::TypeId;
use std::sync::OnceLock;

use pulp::{Arch, Scalar, Scalar128b, Simd};

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// The baseline of the architecture.
    Portable,
    /// 128-bit vectors of ARM.
    #[cfg_attr(
        not(any(test, target_arch = "aarch64")),
        expect(dead_code, reason = "constructed on ARM only")
    )]
    Neon,
    /// 256-bit vectors and fused multiply-add of x86.
    Avx2,
    /// 512-bit vectors of x86.
    Avx512,
}

impl Level {
    /// The best level of the processor, or a lower one given by `TEALIGHT_SIMD` (`avx2` or `portable`), so that
    /// tests cover it. The variable is read once.
    pub(crate) fn current() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| match std::env::var("TEALIGHT_SIMD").as_deref() {
            Ok("portable") => Self::Portable,
            Ok("avx2") => Self::Avx2.min(Self::best()),
            _ => Self::best(),
        })
    }

    /// All levels of the processor, the best last.
    #[cfg(test)]
    pub(crate) fn available() -> &'static [Self] {
        match Self::best() {
            Self::Portable => &[Self::Portable],
            Self::Neon => &[Self::Portable, Self::Neon],
            Self::Avx2 => &[Self::Portable, Self::Avx2],
            Self::Avx512 => &[Self::Portable, Self::Avx2, Self::Avx512],
        }
    }

    fn best() -> Self {
        match Arch::new() {
            #[cfg(target_arch = "x86_64")]
            Arch::V4(_) => Self::Avx512,
            #[cfg(target_arch = "x86_64")]
            Arch::V3(_) => Self::Avx2,
            #[cfg(target_arch = "aarch64")]
            Arch::Neon(_) => Self::Neon,
            _ => Self::Portable,
        }
    }
}

/// The instruction set of [`Level::current`], to dispatch to code that is compiled for each set.
pub(crate) fn arch() -> Arch {
    match Level::current() {
        Level::Portable => Arch::Scalar,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Arch::V3(pulp::x86::V3::detected()),
        _ => Arch::new(),
    }
}

/// `f(operand)`, compiled for the instruction set found at run time.
///
/// `f` and all functions that it calls must be `#[inline(always)]`. It must be a closure, not a reference to one,
/// and an `Fn`, not an `FnOnce`: otherwise it is called through a shim of the compiler or the standard library
/// that may not be inlined, and is then not compiled for that instruction set.
#[inline(always)]
pub(crate) fn vectorised<A, R>(operand: A, f: impl Fn(A) -> R) -> R {
    arch().dispatch(
        #[inline(always)]
        || f(operand),
    )
}

/// `fused(operand)` where the processor has fused multiply-add, else `separate(operand)`. Both are subject to the
/// rules of [`vectorised`].
#[inline(always)]
#[expect(clippy::redundant_closure, reason = "a reference would not be inlined, see `vectorised`")]
pub(crate) fn fused_if_possible<A, R>(
    operand: A,
    fused: impl Fn(A) -> R,
    separate: impl Fn(A) -> R,
) -> R {
    if Level::current() == Level::Portable {
        vectorised(
            operand,
            #[inline(always)]
            |operand| separate(operand),
        )
    } else {
        vectorised(
            operand,
            #[inline(always)]
            |operand| fused(operand),
        )
    }
}

/// Whether the instruction set has fused multiply-add. Without it, pulp calls a function for every element.
#[inline(always)]
pub(crate) fn is_fused<S: Simd>() -> bool {
    let simd = TypeId::of::<S>();
    simd != TypeId::of::<Scalar>() && simd != TypeId::of::<Scalar128b>()
}

/// An instruction set as a type, for functions in tables that are only called after it has been detected.
pub(crate) trait Detected: Simd {
    /// The token of the instruction set.
    ///
    /// # Panics
    /// If the processor does not have it.
    fn detected() -> Self;
}

impl Detected for Scalar128b {
    fn detected() -> Self {
        Self
    }
}

macro_rules! detected {
    ($arch:literal: $($set:ty)+) => {$(
        #[cfg(target_arch = $arch)]
        impl Detected for $set {
            fn detected() -> Self {
                Self::try_new().expect("invariant: the instruction set has been detected")
            }
        }
    )+};
}

detected!("x86_64": pulp::x86::V3 pulp::x86::V4);
detected!("aarch64": pulp::aarch64::Neon);
