//! The instruction set that kernels run with, chosen at run time.

pub(crate) mod vector;

use std::any::TypeId;
use std::sync::OnceLock;

use pulp::{Arch, Scalar, Scalar128b, Simd};

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// What every processor of the architecture has.
    Portable,
    /// 128-bit vectors of ARM.
    #[cfg_attr(
        not(any(test, target_arch = "aarch64")),
        expect(dead_code, reason = "found on ARM alone")
    )]
    Neon,
    /// 256-bit vectors and fused multiply-add of x86.
    Avx2,
    /// 512-bit vectors of x86.
    Avx512,
}

impl Level {
    /// The best that the processor has, or a lower one that `TEALIGHT_SIMD` names (`avx2` or
    /// `portable`), so that its kernels can be tested on a better processor. Read once.
    pub(crate) fn current() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| match std::env::var("TEALIGHT_SIMD").as_deref() {
            Ok("portable") => Self::Portable,
            Ok("avx2") => Self::Avx2.min(Self::best()),
            _ => Self::best(),
        })
    }

    /// All that the processor has, the best last.
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

/// The instruction set of [`Level::current`], for loops that are compiled for all of them.
pub(crate) fn arch() -> Arch {
    match Level::current() {
        Level::Portable => Arch::Scalar,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Arch::V3(pulp::x86::V3::detected()),
        _ => Arch::new(),
    }
}

/// `f` of `operand`, compiled for the instruction set found at run time.
///
/// `f` is a closure, and not a reference to one; it and all it calls must be `#[inline(always)]`. It is
/// an `Fn`, and not an `FnOnce`. Else it would be called through a function of the compiler's or of the
/// standard library's, which need not be inlined, and so not compiled for that instruction set.
#[inline(always)]
pub(crate) fn vectorised<A, R>(operand: A, f: impl Fn(A) -> R) -> R {
    arch().dispatch(
        #[inline(always)]
        || f(operand),
    )
}

/// `fused` of `operand` where a · b + c is one instruction, `separate` of it elsewhere. Both as
/// [`vectorised`] has it.
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

/// Whether a · b + c is one instruction. Where it is not, pulp calls a function for every element.
#[inline(always)]
pub(crate) fn is_fused<S: Simd>() -> bool {
    let simd = TypeId::of::<S>();
    simd != TypeId::of::<Scalar>() && simd != TypeId::of::<Scalar128b>()
}

/// An instruction set as a type, for functions in tables: they are only called where it has been
/// detected.
pub(crate) trait Detected: Simd {
    /// The instructions.
    fn detected() -> Self;
}

impl Detected for Scalar128b {
    fn detected() -> Self {
        Self
    }
}

#[cfg(target_arch = "x86_64")]
impl Detected for pulp::x86::V3 {
    fn detected() -> Self {
        Self::try_new().expect("invariant: AVX2 has been detected")
    }
}

#[cfg(target_arch = "x86_64")]
impl Detected for pulp::x86::V4 {
    fn detected() -> Self {
        Self::try_new().expect("invariant: AVX-512 has been detected")
    }
}

#[cfg(target_arch = "aarch64")]
impl Detected for pulp::aarch64::Neon {
    fn detected() -> Self {
        Self::try_new().expect("invariant: NEON has been detected")
    }
}
