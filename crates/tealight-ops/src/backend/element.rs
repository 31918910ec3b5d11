//! The element types of the fused loops, f32 and f64, and functions on them that vectorise.
//!
//! In f32 the functions are branch-free polynomials, so that the compiler turns loops over them into SIMD code. They
//! use fused multiply-add only in loops that select it after checking for it, because without the instruction it is a
//! function call per element. Without fused multiply-add, all instruction sets give the same bits. In f64, which serves
//! finite differences rather than training, the functions come from the platform and from libm, and are accurate to the
//! last digits.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::ops::Neg;

use candle_core::WithDType;
use pulp::bytemuck::Pod;

/// A number type that the fused loops are written for.
pub(crate) trait Element: WithDType + Neg<Output = Self> + Pod {
    const ZERO: Self;
    const ONE: Self;
    const NAN: Self;
    const NEG_INFINITY: Self;
    /// Whether loops are compiled for each instruction set. Those of f64 are compiled once, for the baseline, because f64
    /// serves finite differences rather than training, and because each further set costs time of building and memory.
    const WIDE: bool;

    /// The value in f64; unlike the conversions of other traits, always inlined.
    fn widen(self) -> f64;
    /// The nearest value; unlike the conversions of other traits, always inlined.
    fn narrow(x: f64) -> Self;
    fn sqrt(self) -> Self;
    fn ln(self) -> Self;
    /// As [`Element::exp`], with fused multiply-add if `FUSED`.
    fn exp_with<const FUSED: bool>(self) -> Self;
    /// Φ(x) and φ(x), the normal distribution function and its density, with fused multiply-add if `FUSED`.
    /// In f32: absolute errors below 2.5·10⁻⁷.
    fn normal<const FUSED: bool>(self) -> (Self, Self);

    /// eˣ. In f32: relative error below 2·10⁻⁷, 0 below −87.3, ∞ above 88.3.
    #[inline(always)]
    fn exp(self) -> Self {
        self.exp_with::<false>()
    }
}

macro_rules! element {
    ($type:ident, wide: $wide:literal, exp: $exp:ident, normal: $normal:ident) => {
        impl Element for $type {
            const ZERO: Self = 0.;
            const ONE: Self = 1.;
            const NAN: Self = $type::NAN;
            const NEG_INFINITY: Self = $type::NEG_INFINITY;
            const WIDE: bool = $wide;

            #[inline(always)]
            fn widen(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn narrow(x: f64) -> Self {
                x as $type
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                $type::sqrt(self)
            }

            #[inline(always)]
            fn ln(self) -> Self {
                $type::ln(self)
            }

            #[inline(always)]
            fn exp_with<const FUSED: bool>(self) -> Self {
                $exp::<FUSED>(self)
            }

            #[inline(always)]
            fn normal<const FUSED: bool>(self) -> (Self, Self) {
                $normal::<FUSED>(self)
            }
        }
    };
}

element!(f32, wide: true, exp: exp_f32, normal: normal_f32);
element!(f64, wide: false, exp: exp_f64, normal: normal_f64);

#[inline(always)]
fn exp_f64<const FUSED: bool>(x: f64) -> f64 {
    x.exp()
}

#[inline(always)]
fn normal_f64<const FUSED: bool>(x: f64) -> (f64, f64) {
    let density = f64::exp(-0.5 * x * x) * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5);
    (0.5 * libm::erfc(-x * FRAC_1_SQRT_2), density)
}

/// eˣ = 2ⁿ eʳ with n = round(x / ln 2): Cody and Waite's reduction, then Cephes' polynomial for eʳ.
#[inline(always)]
fn exp_f32<const FUSED: bool>(x: f32) -> f32 {
    // Between these, n + 127 is the exponent of a normal number.
    const LOWEST: f32 = -87.33;
    const HIGHEST: f32 = 88.37;
    // 1.5·2²³: adding it rounds to an integer, which the lowest bits of the sum then hold.
    const ROUNDER: f32 = 12_582_912.;
    // ln 2 as a sum. The first term has nine significant bits, so that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // The coefficients of r⁷ down to r², as Cephes' expf has them.
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

    let rounded = multiply_add::<FUSED>(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = rounded - ROUNDER;
    let r = multiply_add::<FUSED>(n, -LN_2_HIGH, x);
    let r = multiply_add::<FUSED>(n, -LN_2_LOW, r);
    let exp_r = multiply_add::<FUSED>(horner::<FUSED, _>(&POLYNOMIAL, r), r * r, r) + 1.;
    let two_to_n = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    // Both comparisons are false for NaN, which therefore stays NaN.
    let inside = if x > HIGHEST { f32::INFINITY } else { exp_r * two_to_n };
    if x < LOWEST { 0. } else { inside }
}

/// ```text
/// Φ(−a) = e^(−a²/2) t P(t),   t = 1 / (1 + 0.27 a),   a ≥ 0
/// ```
/// The form is that of Abramowitz and Stegun 7.1.26; P is our own Chebyshev fit of degree 8 for a ≤ 14
/// (relative error 3·10⁻⁸). Φ(x) for x ≥ 0 is computed from the tail, not the reverse, so that Φ keeps its
/// relative accuracy as x → −∞.
#[inline(always)]
fn normal_f32<const FUSED: bool>(x: f32) -> (f32, f32) {
    const P: [f32; 9] = [
        0.029_107_029,
        -0.127_242_12,
        0.171_444_68,
        -0.071_213_916,
        0.109_277_2,
        0.071_406_06,
        0.101_980_366,
        0.107_518_606,
        0.107_722_096,
    ];
    const FRAC_1_SQRT_TAU: f32 = 0.398_942_3;
    let gaussian = exp_f32::<FUSED>(-0.5 * x * x);
    let t = 1. / multiply_add::<FUSED>(0.27, x.abs(), 1.);
    let tail = horner::<FUSED, _>(&P, t) * t * gaussian;
    (if x < 0. { tail } else { 1. - tail }, gaussian * FRAC_1_SQRT_TAU)
}

/// The polynomial with these coefficients, highest power first.
#[inline(always)]
fn horner<const FUSED: bool, const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    let mut value = coefficients[0];
    for &coefficient in &coefficients[1..] {
        value = multiply_add::<FUSED>(value, x, coefficient);
    }
    value
}

/// a · b + c
#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXP_ERROR: f64 = 2e-7; // relative
    const NORMAL_ERROR: f64 = 2.5e-7; // absolute

    /// From `from` to `to` in `n` steps.
    fn grid(from: f32, to: f32, n: u32) -> impl Iterator<Item = f32> {
        (0..=n).map(move |i| from + (to - from) * i as f32 / n as f32)
    }

    #[test]
    fn exp_is_accurate_wherever_the_result_is_normal() {
        exp_is_accurate::<false>();
        exp_is_accurate::<true>();
    }

    fn exp_is_accurate<const FUSED: bool>() {
        for x in grid(-87.3, 88.3, 1_000_003) {
            let expected = f64::from(x).exp();
            let error = (f64::from(exp_f32::<FUSED>(x)) / expected - 1.).abs();
            assert!(error < EXP_ERROR, "exp({x}) is off by {error:e}, fused: {FUSED}");
        }
    }

    #[test]
    fn exp_has_limits() {
        for exp in [exp_f32::<false>, exp_f32::<true>] {
            assert_eq!(exp(0.), 1.);
            for x in [-88., -200., f32::MIN, f32::NEG_INFINITY] {
                assert_eq!(exp(x), 0., "exp({x})");
            }
            for x in [89., 200., f32::MAX, f32::INFINITY] {
                assert_eq!(exp(x), f32::INFINITY, "exp({x})");
            }
            assert!(exp(f32::NAN).is_nan());
        }
    }

    #[test]
    fn normal_is_accurate_everywhere() {
        normal_is_accurate::<false>();
        normal_is_accurate::<true>();
    }

    fn normal_is_accurate<const FUSED: bool>() {
        for x in grid(-20., 20., 1_000_003) {
            let (cdf, density) = normal_f32::<FUSED>(x);
            let expected = f64::from(x).normal::<false>();
            let errors = (f64::from(cdf) - expected.0, f64::from(density) - expected.1);
            assert!(errors.0.abs() < NORMAL_ERROR, "Φ({x}) is off by {:e}", errors.0);
            assert!(errors.1.abs() < NORMAL_ERROR, "φ({x}) is off by {:e}", errors.1);
        }
        assert_eq!(normal_f32::<FUSED>(f32::INFINITY), (1., 0.));
        assert_eq!(normal_f32::<FUSED>(f32::NEG_INFINITY), (0., 0.));
        assert!(normal_f32::<FUSED>(f32::NAN).0.is_nan());
    }

    #[test]
    fn normal_in_f64_has_the_tabled_values() {
        let (cdf, density) = 1_f64.normal::<false>();
        assert!((cdf - 0.841_344_746_068_542_9).abs() < 1e-15);
        assert!((density - 0.241_970_724_519_143_37).abs() < 1e-15);
    }
}
