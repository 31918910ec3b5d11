//! Explicit vectors of the widest instruction set found at run time, for attention and the matrix product.
//!
//! Elsewhere the compiler turns plain loops into SIMD code. The speed of a matrix product depends on keeping many
//! sums in registers and on fused multiply-add, which are therefore explicit here. Without fused multiply-add a
//! product and a sum are rounded separately, so results differ in the last bits between instruction sets.

#![expect(unsafe_code, reason = "masked loads and stores take pointers past the end of a matrix")]

use std::mem::size_of;

use pulp::bytemuck::{Pod, cast_slice, cast_slice_mut};
use pulp::{Scalar, Simd, WithSimd};

use super::{arch, is_fused};
use crate::backend::element::Element;
use crate::backend::threads::map;

/// An element type with SIMD vectors. All methods but `sum` work lane by lane.
pub(crate) trait Lanes: Element + Pod {
    type Vector<S: Simd>: Pod;
    /// A subset of the lanes of a vector.
    type Mask<S: Simd>: Copy;

    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    fn plus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn minus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn times<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// a · b + c
    fn multiply_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// The maximum. Of a NaN and a number, either may be returned.
    fn larger<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// eˣ for x ≤ 88, as [`Element::exp`].
    fn exponential<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;

    /// The sum of the lanes.
    fn sum<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;

    /// The first n lanes.
    fn first<S: Simd>(simd: S, n: usize) -> Self::Mask<S>;

    /// Loads the lanes of the mask; the others are 0.
    ///
    /// # Safety
    /// The elements of the mask's lanes can be read.
    unsafe fn load<S: Simd>(simd: S, mask: Self::Mask<S>, from: *const Self) -> Self::Vector<S>;

    /// Stores the lanes of the mask, and no others.
    ///
    /// # Safety
    /// The elements of the mask's lanes can be written.
    unsafe fn store<S: Simd>(simd: S, mask: Self::Mask<S>, to: *mut Self, x: Self::Vector<S>);
}

/// The number of elements in a vector.
#[inline(always)]
pub(crate) fn lanes<T: Lanes, S: Simd>() -> usize {
    size_of::<T::Vector<S>>() / size_of::<T>()
}

/// Elements as vectors. Their number must be a multiple of [`lanes`].
#[inline(always)]
pub(crate) fn vectors<T: Lanes, S: Simd>(x: &[T]) -> &[T::Vector<S>] {
    cast_slice(x)
}

/// Elements as vectors. Their number must be a multiple of [`lanes`].
#[inline(always)]
pub(crate) fn vectors_mut<T: Lanes, S: Simd>(x: &mut [T]) -> &mut [T::Vector<S>] {
    cast_slice_mut(x)
}

/// A kernel on a block, generic in the instruction set.
pub(crate) trait Kernel<B>: Sync {
    /// The numbers that it computes with.
    type Number: Lanes;

    /// Must be `#[inline(always)]`, as must all functions that it calls.
    fn run<S: Simd>(&self, simd: S, block: B);
}

/// Runs `kernel` on every block, on several threads if there is enough `work` (in multiply-adds).
///
/// As with `parallel::run`, results do not depend on the number of threads if blocks depend on the shape only.
pub(crate) fn run<B: Send, K: Kernel<B>>(work: usize, blocks: Vec<B>, kernel: &K) {
    /// Less work runs on one thread: waking another costs more than it saves.
    const PARALLEL_FROM: usize = 1 << 17;
    let call = |block| {
        let call = Call { kernel, block };
        if K::Number::WIDE { arch().dispatch(call) } else { call.with_simd(Scalar) }
    };
    if work < PARALLEL_FROM {
        blocks.into_iter().for_each(call);
    } else {
        map(blocks, &call);
    }
}

struct Call<'a, K, B> {
    kernel: &'a K,
    block: B,
}

impl<B, K: Kernel<B>> WithSimd for Call<'_, K, B> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.kernel.run(simd, self.block);
    }
}

/// The methods that are a function of pulp each, whose name ends in the type of the elements.
macro_rules! lanes {
    (
        $vector:ident, $mask:ident ($index:ident):
        $splat:ident $add:ident $sub:ident $mul:ident $mul_add:ident $max:ident $sum:ident
        $mask_between:ident $mask_load:ident $mask_store:ident
    ) => {
        type Vector<S: Simd> = S::$vector;
        type Mask<S: Simd> = S::$mask;

        #[inline(always)]
        fn splat<S: Simd>(simd: S, x: Self) -> S::$vector {
            simd.$splat(x)
        }

        #[inline(always)]
        fn plus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$add(a, b)
        }

        #[inline(always)]
        fn minus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$sub(a, b)
        }

        #[inline(always)]
        fn times<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$mul(a, b)
        }

        #[inline(always)]
        fn multiply_add<S: Simd>(
            simd: S,
            a: S::$vector,
            b: S::$vector,
            c: S::$vector,
        ) -> S::$vector {
            if is_fused::<S>() { simd.$mul_add(a, b, c) } else { simd.$add(simd.$mul(a, b), c) }
        }

        #[inline(always)]
        fn larger<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$max(a, b)
        }

        #[inline(always)]
        fn sum<S: Simd>(simd: S, x: S::$vector) -> Self {
            simd.$sum(x)
        }

        #[inline(always)]
        fn first<S: Simd>(simd: S, n: usize) -> S::$mask {
            simd.$mask_between(0, n as $index).mask()
        }

        #[inline(always)]
        unsafe fn load<S: Simd>(simd: S, mask: S::$mask, from: *const Self) -> S::$vector {
            // SAFETY: the caller guarantees that these elements can be read.
            unsafe { simd.$mask_load(mask.into(), from) }
        }

        #[inline(always)]
        unsafe fn store<S: Simd>(simd: S, mask: S::$mask, to: *mut Self, x: S::$vector) {
            // SAFETY: the caller guarantees that these elements can be written.
            unsafe { simd.$mask_store(mask.into(), to, x) }
        }
    };
}

impl Lanes for f32 {
    lanes!(
        f32s, m32s (u32):
        splat_f32s add_f32s sub_f32s mul_f32s mul_add_e_f32s max_f32s reduce_sum_f32s
        mask_between_m32s mask_load_ptr_f32s mask_store_ptr_f32s
    );

    /// The algorithm and the constants of [`Element::exp`], with fused multiply-add where there is one.
    #[inline(always)]
    fn exponential<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
        let splat = |x: f32| simd.splat_f32s(x);
        let rounder = splat(12_582_912.);
        let rounded = Self::multiply_add(simd, x, splat(std::f32::consts::LOG2_E), rounder);
        let n = simd.sub_f32s(rounded, rounder);
        let r = Self::multiply_add(simd, n, splat(-0.693_359_4), x);
        let r = Self::multiply_add(simd, n, splat(2.121_944_4e-4), r);
        let mut p = splat(1.987_569_1e-4);
        for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
            p = Self::multiply_add(simd, p, r, splat(coefficient));
        }
        let exp_r = simd.add_f32s(Self::multiply_add(simd, p, simd.mul_f32s(r, r), r), splat(1.));
        let exponent = simd.add_u32s(simd.transmute_u32s_f32s(rounded), simd.splat_u32s(127));
        let two_to_n = simd.wrapping_dyn_shl_u32s(exponent, simd.splat_u32s(23));
        let product = simd.mul_f32s(exp_r, simd.transmute_f32s_u32s(two_to_n));
        simd.select_f32s(simd.less_than_f32s(x, splat(-87.33)), splat(0.), product)
    }
}

impl Lanes for f64 {
    lanes!(
        f64s, m64s (u64):
        splat_f64s add_f64s sub_f64s mul_f64s mul_add_e_f64s max_f64s reduce_sum_f64s
        mask_between_m64s mask_load_ptr_f64s mask_store_ptr_f64s
    );

    #[inline(always)]
    fn exponential<S: Simd>(_: S, mut x: S::f64s) -> S::f64s {
        for x in cast_slice_mut::<S::f64s, f64>(std::slice::from_mut(&mut x)) {
            *x = x.exp();
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// eˣ of a block, in place.
    struct Exp;

    impl Kernel<&mut [f32]> for Exp {
        type Number = f32;

        #[inline(always)]
        fn run<S: Simd>(&self, simd: S, block: &mut [f32]) {
            for x in vectors_mut::<f32, S>(block) {
                *x = f32::exponential(simd, *x);
            }
        }
    }

    fn exp(x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        y.resize(x.len().next_multiple_of(16), 0.);
        run(0, vec![&mut y[..]], &Exp);
        y.truncate(x.len());
        y
    }

    #[test]
    fn exp_is_accurate_and_has_limits() {
        let x: Vec<f32> = (0..=1_000_003).map(|i| -87.3 + i as f32 * 87.3 / 1e6).collect();
        for (&x, y) in x.iter().zip(exp(&x)) {
            let error = (f64::from(y) / f64::from(x).exp() - 1.).abs();
            assert!(error < 2e-7, "exp({x}) is off by {error:e}");
        }
        assert_eq!(exp(&[0., -88., -1e4, f32::MIN, f32::NEG_INFINITY]), [1., 0., 0., 0., 0.]);
        assert!(exp(&[f32::NAN])[0].is_nan());
    }
}
