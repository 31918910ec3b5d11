//! The CPU loops, and the value and derivative of each activation.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::{CUBIC, Function};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, by_blocks};
use crate::backend::simd::fused_if_possible;

/// A function of one number, and its derivative, perhaps with fused multiply-add.
pub(crate) trait Elementwise: Send + Sync + 'static {
    const NAME: &'static str;
    const FUNCTION: Function;

    fn value_and_derivative<T: Element, const FUSED: bool>(x: T) -> (T, T);

    #[inline(always)]
    fn value<T: Element, const FUSED: bool>(x: T) -> T {
        Self::value_and_derivative::<T, FUSED>(x).0
    }
}

pub(crate) struct Relu;
pub(crate) struct Sigmoid;
pub(crate) struct Silu;
pub(crate) struct Gelu;
pub(crate) struct GeluTanh;

impl Elementwise for Relu {
    const NAME: &'static str = "relu";
    const FUNCTION: Function = Function::Relu;

    #[inline(always)]
    fn value_and_derivative<T: Element, const FUSED: bool>(x: T) -> (T, T) {
        // False for NaN, which therefore stays NaN.
        let is_dropped = x <= T::ZERO;
        (if is_dropped { T::ZERO } else { x }, if is_dropped { T::ZERO } else { T::ONE })
    }
}

impl Elementwise for Sigmoid {
    const NAME: &'static str = "sigmoid";
    const FUNCTION: Function = Function::Sigmoid;

    #[inline(always)]
    fn value_and_derivative<T: Element, const FUSED: bool>(x: T) -> (T, T) {
        let (sigma, complement) = sigmoids::<T, FUSED>(x);
        (sigma, sigma * complement)
    }
}

impl Elementwise for Silu {
    const NAME: &'static str = "silu";
    const FUNCTION: Function = Function::Silu;

    #[inline(always)]
    fn value_and_derivative<T: Element, const FUSED: bool>(x: T) -> (T, T) {
        let (sigma, complement) = sigmoids::<T, FUSED>(x);
        (x * sigma, sigma * (T::ONE + x * complement))
    }
}

impl Elementwise for Gelu {
    const NAME: &'static str = "gelu";
    const FUNCTION: Function = Function::Gelu;

    #[inline(always)]
    fn value_and_derivative<T: Element, const FUSED: bool>(x: T) -> (T, T) {
        let (cdf, density) = x.normal::<FUSED>();
        (x * cdf, cdf + x * density)
    }
}

impl Elementwise for GeluTanh {
    const NAME: &'static str = "gelu-tanh";
    const FUNCTION: Function = Function::GeluTanh;

    #[inline(always)]
    fn value_and_derivative<T: Element, const FUSED: bool>(x: T) -> (T, T) {
        let (sigma, complement) = sigmoids::<T, FUSED>(two_u(x));
        let slope = T::from_f64(TWO_ROOT) * (T::ONE + T::from_f64(3. * CUBIC) * x * x);
        (x * sigma, sigma * (T::ONE + x * complement * slope))
    }
}

/// 2 √(2/π)
const TWO_ROOT: f64 = 2. * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// 2u = 2 √(2/π) (x + 0.044715 x³)
#[inline(always)]
fn two_u<T: Element>(x: T) -> T {
    T::from_f64(TWO_ROOT) * (x + T::from_f64(CUBIC) * x * x * x)
}

/// σ(x) and 1 − σ(x), both to full relative accuracy: neither overflows nor cancels.
#[inline(always)]
fn sigmoids<T: Element, const FUSED: bool>(x: T) -> (T, T) {
    let decayed = (if x < T::ZERO { x } else { -x }).exp_with::<FUSED>(); // e^−|x|
    let upper = T::ONE / (T::ONE + decayed);
    let lower = decayed * upper;
    if x < T::ZERO { (lower, upper) } else { (upper, lower) }
}

/// x ← f(x)
pub(crate) fn activate<T: Element, A: Elementwise>(x: &mut [T]) {
    fused_if_possible::<T, _, _>(
        x,
        #[inline(always)]
        |x| each_value::<T, A, true>(x),
        #[inline(always)]
        |x| each_value::<T, A, false>(x),
    );
}

#[inline(always)]
fn each_value<T: Element, A: Elementwise, const FUSED: bool>(x: &mut [T]) {
    for x in x {
        *x = A::value::<T, FUSED>(*x);
    }
}

/// g ← g f'(x), then x ← f(x)
pub(crate) fn activate_backward<T: Element, A: Elementwise>(g: &mut [T], x: &mut [T]) {
    fused_if_possible::<T, _, _>(
        (g, x),
        #[inline(always)]
        |(g, x)| each_pair::<T, A, true>(g, x),
        #[inline(always)]
        |(g, x)| each_pair::<T, A, false>(g, x),
    );
}

#[inline(always)]
fn each_pair<T: Element, A: Elementwise, const FUSED: bool>(g: &mut [T], x: &mut [T]) {
    for (g, x) in g.iter_mut().zip(x) {
        let (value, derivative) = A::value_and_derivative::<T, FUSED>(*x);
        (*g, *x) = (*g * derivative, value);
    }
}

pub(super) fn forward<T: Element, A: Elementwise>(x: &[T]) -> Vec<T> {
    let len = block_len(1);
    by_blocks((x, len), (x, len), |y, x, _| {
        y.copy_from_slice(x);
        activate::<T, A>(y);
    })
}

pub(super) fn backward<T: Element, A: Elementwise>(x: &[T], gradient: &[T]) -> Vec<T> {
    let len = block_len(1);
    by_blocks((x, len), (gradient, len), |dx, x, g| {
        dx.copy_from_slice(g);
        activate_backward::<T, A>(dx, &mut x.to_vec());
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: f64 = 2e-7; // of values in f32, relative to max(1, |x|)
    const DERIVATIVE_ERROR: f64 = 5e-7;

    fn check<A: Elementwise>() {
        check_loops::<A, false>();
        check_loops::<A, true>();
    }

    fn check_loops<A: Elementwise, const FUSED: bool>() {
        let value = |x| A::value::<f64, false>(f64::from(x));
        let derivative = |x| A::value_and_derivative::<f64, false>(f64::from(x)).1;
        for i in -200_003..=200_003_i32 {
            let x = i as f32 / 10_007.;
            let allowed = ERROR * f64::from(x.abs().max(1.));
            let value = f64::from(A::value::<f32, FUSED>(x)) - value(x);
            let derivative = f64::from(A::value_and_derivative::<f32, FUSED>(x).1) - derivative(x);
            assert!(value.abs() < allowed, "{}({x}) is off by {value:e}", A::NAME);
            assert!(
                derivative.abs() < DERIVATIVE_ERROR,
                "{}'({x}) is off by {derivative:e}",
                A::NAME
            );
        }
    }

    #[test]
    fn f32_is_as_accurate_as_documented() {
        check::<Relu>();
        check::<Sigmoid>();
        check::<Silu>();
        check::<Gelu>();
        check::<GeluTanh>();
    }

    #[test]
    fn large_arguments_are_kept_or_dropped() {
        fn both<A: Elementwise>(x: f32) -> (f32, f32) {
            let (mut g, mut y) = ([1.], [x]);
            activate_backward::<f32, A>(&mut g, &mut y);
            (y[0], g[0])
        }
        fn limits<A: Elementwise>() {
            for x in [100_f32, 1e4] {
                assert_eq!(both::<A>(x), (x, 1.), "{}({x})", A::NAME);
                assert_eq!(both::<A>(-x), (0., 0.), "{}(-{x})", A::NAME);
            }
            assert!(both::<A>(f32::NAN).0.is_nan(), "{}", A::NAME);
        }
        limits::<Relu>();
        limits::<Silu>();
        limits::<Gelu>();
        limits::<GeluTanh>();
        for (x, value) in [(1e4_f32, 1.), (-1e4, 0.)] {
            assert_eq!(both::<Sigmoid>(x), (value, 0.), "sigmoid({x})");
        }
    }
}
