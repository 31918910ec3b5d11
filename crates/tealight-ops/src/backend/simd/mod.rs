//! SIMD instruction sets, detected at run time.

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod amx;
pub(crate) mod bf16;
pub(crate) mod int8;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod tiles;
pub(crate) mod vector;

use std::any::TypeId;
use std::sync::OnceLock;

use bf16::Bf16;
use pulp::{Arch, Scalar, Scalar128b, Simd};

use crate::backend::element::Element;

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// The baseline of the architecture.
    Portable,
    /// 128-bit vectors of ARM.
    Neon,
    /// 256-bit vectors and fused multiply-add of x86.
    Avx2,
    /// 512-bit vectors of x86.
    Avx512,
}

/// The environment variable that selects the instruction set.
const VARIABLE: &str = "TEALIGHT_SIMD";

/// The instruction sets in use: the best of the processor, or the sets that `TEALIGHT_SIMD` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InUse {
    level: Level,
    bf16: Option<Bf16>,
}

impl InUse {
    fn best() -> Self {
        Self { level: Level::best(), bf16: Bf16::best() }
    }

    /// The instruction sets that `name`, a value of `TEALIGHT_SIMD`, stands for; `None` if the processor lacks one.
    fn named(name: &str) -> Option<Self> {
        let (level, bf16) = match name {
            "portable" => (Level::Portable, None),
            "neon" => (Level::Neon, None),
            "avx2" => (Level::Avx2, None),
            "avx512" => (Level::Avx512, None),
            "avx512_bf16" => (Level::Avx512, Some(Bf16::Avx512)),
            "amx_bf16" => (Level::Avx512, Some(Bf16::Amx)),
            _ => return None,
        };
        let is_there = Level::available().contains(&level)
            && bf16.is_none_or(|bf16| Bf16::available().contains(&bf16));
        is_there.then_some(Self { level, bf16 })
    }

    /// The variable is read once. An invalid value is reported by [`check_instructions`] and has no effect here.
    fn current() -> Self {
        static IN_USE: OnceLock<InUse> = OnceLock::new();
        *IN_USE.get_or_init(|| {
            let named = std::env::var(VARIABLE).ok().and_then(|name| Self::named(&name));
            named.unwrap_or_else(Self::best)
        })
    }
}

impl Level {
    /// The level in use, see [`InUse`].
    pub(crate) fn current() -> Self {
        InUse::current().level
    }

    /// All levels of the processor, the best last.
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

    fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// The instruction set of f32 on this CPU: `portable`, `neon`, `avx2` or `avx512`; or `amx_bf16` if large matrix products
/// are computed by it, from operands that are split into parts of bf16, and all else by `avx512`. The last bits of
/// matrix products depend on it.
pub fn instructions() -> &'static str {
    match InUse::current() {
        InUse { bf16: Some(Bf16::Amx), .. } => Bf16::Amx.name(),
        InUse { level, .. } => level.name(),
    }
}

/// The instruction set that computes matrix products in bf16 on this CPU: `avx512_bf16` or `amx_bf16`. `None` if this
/// CPU has no such instructions, or if they are slower than f32: products are then computed in f32.
pub fn bf16_instructions() -> Option<&'static str> {
    InUse::current().bf16.map(Bf16::name)
}

/// Checks the environment variable `TEALIGHT_SIMD`.
///
/// # Errors
/// If it names no instruction set, or one that the processor does not have; with the names that it may have.
pub fn check_instructions() -> Result<(), String> {
    match std::env::var(VARIABLE) {
        Ok(name) if InUse::named(&name).is_none() => {
            let levels = Level::available().iter().map(|level| level.name());
            let names: Vec<_> =
                levels.chain(Bf16::available().iter().map(|bf16| bf16.name())).collect();
            Err(format!(
                "{VARIABLE}={name}: expected one of those this processor has: {}",
                names.join(", ")
            ))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{VARIABLE} is not text")),
        _ => Ok(()),
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

/// `f(operand)` on numbers of type T, compiled for the instruction set found at run time, or for the baseline if T is
/// not [wide](Element::WIDE).
///
/// `f` and all functions that it calls must be `#[inline(always)]`. It must be a closure, not a reference to one,
/// and an `Fn`, not an `FnOnce`: otherwise it is called through a shim of the compiler or the standard library
/// that may not be inlined, and is then not compiled for that instruction set.
#[inline(always)]
pub(crate) fn vectorised<T: Element, A, R>(operand: A, f: impl Fn(A) -> R) -> R {
    if !T::WIDE {
        return f(operand);
    }
    arch().dispatch(
        #[inline(always)]
        || f(operand),
    )
}

/// `fused(operand)` where the processor has fused multiply-add, else `separate(operand)`. Both are subject to the
/// rules of [`vectorised`].
#[inline(always)]
#[expect(clippy::redundant_closure, reason = "a reference would not be inlined, see `vectorised`")]
pub(crate) fn fused_if_possible<T: Element, A, R>(
    operand: A,
    fused: impl Fn(A) -> R,
    separate: impl Fn(A) -> R,
) -> R {
    if !T::WIDE || Level::current() == Level::Portable {
        vectorised::<T, _, _>(
            operand,
            #[inline(always)]
            |operand| separate(operand),
        )
    } else {
        vectorised::<T, _, _>(
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
