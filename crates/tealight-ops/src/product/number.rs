//! The two number types, and the vectors of them that the micro-kernels are written with.

#![expect(unsafe_code, reason = "only what the mask selects lies within the matrix")]

use std::cell::RefCell;
use std::fmt::Debug;

use pulp::Simd;
use pulp::bytemuck::Pod;

use crate::simd::is_fused;

/// A number that matrices are made of.
pub(crate) trait Number: Pod + Send + Sync + PartialEq + Debug {
    /// As many as an instruction works on.
    type Vector<S: Simd>: Pod;
    /// Some of the lanes of a vector.
    type Mask<S: Simd>: Copy;

    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;

    /// x in every lane.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;

    /// a · b + c, rounded once where the processor can.
    fn multiply_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    /// The sum of the lanes.
    fn sum<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;

    /// self · b + c, rounded twice.
    #[must_use]
    fn multiply_plus(self, b: Self, c: Self) -> Self;

    /// The first n lanes.
    fn first<S: Simd>(simd: S, n: usize) -> Self::Mask<S>;

    /// The lanes of the mask from memory, 0 in the others.
    ///
    /// # Safety
    /// What the mask selects can be read.
    unsafe fn load<S: Simd>(simd: S, mask: Self::Mask<S>, from: *const Self) -> Self::Vector<S>;

    /// The lanes of the mask to memory, the others nowhere.
    ///
    /// # Safety
    /// What the mask selects can be written.
    unsafe fn store<S: Simd>(simd: S, mask: Self::Mask<S>, to: *mut Self, x: Self::Vector<S>);

    /// Runs `f` with the thread's own memory for packed blocks.
    fn with_buffer<R>(f: impl FnOnce(&mut Vec<Self>) -> R) -> R;
}

/// The numbers of a vector.
#[inline(always)]
pub(super) fn lanes<T: Number, S: Simd>() -> usize {
    size_of::<T::Vector<S>>() / size_of::<T>()
}

impl Number for f32 {
    type Vector<S: Simd> = S::f32s;
    type Mask<S: Simd> = S::m32s;

    const ZERO: Self = 0.;
    const ONE: Self = 1.;

    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: Self) -> S::f32s {
        simd.splat_f32s(x)
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        if is_fused::<S>() {
            simd.mul_add_e_f32s(a, b, c)
        } else {
            simd.add_f32s(simd.mul_f32s(a, b), c)
        }
    }

    #[inline(always)]
    fn sum<S: Simd>(simd: S, x: S::f32s) -> Self {
        simd.reduce_sum_f32s(x)
    }

    #[inline(always)]
    fn multiply_plus(self, b: Self, c: Self) -> Self {
        self * b + c
    }

    #[inline(always)]
    fn first<S: Simd>(simd: S, n: usize) -> S::m32s {
        simd.mask_between_m32s(0, n as u32).mask()
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, mask: S::m32s, from: *const Self) -> S::f32s {
        // SAFETY: as the caller promises.
        unsafe { simd.mask_load_ptr_f32s(mask.into(), from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, mask: S::m32s, to: *mut Self, x: S::f32s) {
        // SAFETY: as the caller promises.
        unsafe { simd.mask_store_ptr_f32s(mask.into(), to, x) }
    }

    fn with_buffer<R>(f: impl FnOnce(&mut Vec<Self>) -> R) -> R {
        thread_local!(static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(f)
    }
}

impl Number for f64 {
    type Vector<S: Simd> = S::f64s;
    type Mask<S: Simd> = S::m64s;

    const ZERO: Self = 0.;
    const ONE: Self = 1.;

    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: Self) -> S::f64s {
        simd.splat_f64s(x)
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f64s, b: S::f64s, c: S::f64s) -> S::f64s {
        if is_fused::<S>() {
            simd.mul_add_e_f64s(a, b, c)
        } else {
            simd.add_f64s(simd.mul_f64s(a, b), c)
        }
    }

    #[inline(always)]
    fn sum<S: Simd>(simd: S, x: S::f64s) -> Self {
        simd.reduce_sum_f64s(x)
    }

    #[inline(always)]
    fn multiply_plus(self, b: Self, c: Self) -> Self {
        self * b + c
    }

    #[inline(always)]
    fn first<S: Simd>(simd: S, n: usize) -> S::m64s {
        simd.mask_between_m64s(0, n as u64).mask()
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, mask: S::m64s, from: *const Self) -> S::f64s {
        // SAFETY: as the caller promises.
        unsafe { simd.mask_load_ptr_f64s(mask.into(), from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, mask: S::m64s, to: *mut Self, x: S::f64s) {
        // SAFETY: as the caller promises.
        unsafe { simd.mask_store_ptr_f64s(mask.into(), to, x) }
    }

    fn with_buffer<R>(f: impl FnOnce(&mut Vec<Self>) -> R) -> R {
        thread_local!(static BUFFER: RefCell<Vec<f64>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(f)
    }
}
