//! Operations as kernels on a CUDA device.
//!
//! Kernels are CUDA C, in a `kernel.cu` beside the `cuda.rs` that launches them. NVRTC compiles them at first use, so
//! that building this crate needs no CUDA compiler. The launches are compiled, and checked, in every build; without the
//! feature `cuda`, [`takes`] refuses all operands.
//!
//! The feature `emulator` runs the same launches on tensors of the CPU, with the kernels compiled by
//! `scripts/emulate_kernels.sh`: the tests that compare loops with reference implementations then compare kernels
//! with them, without a GPU.
//!
//! Kernels take f32, f64 and bf16. They compute in f32, or f64 for f64, and round once, at the end. Every sum has a
//! fixed order, so a result is bit-identical in every run.

mod address;
mod buffer;
mod capture;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
pub(crate) mod driver;
#[cfg(feature = "emulator")]
mod emulator;
pub(crate) mod factor;
#[cfg_attr(not(feature = "cuda"), path = "no_graph.rs")]
pub(crate) mod graph;
mod launch;
pub(crate) mod lists;
pub(crate) mod product;
#[cfg(any(test, feature = "cuda"))]
mod ptx_cache;
mod run;
mod source;
#[cfg(feature = "cuda")]
pub(crate) mod staging;
pub(crate) mod sums;

use candle_core::{DType, Device, Result, Tensor, bail};

pub(crate) use buffer::Buffer;
pub(crate) use capture::Key;
pub(crate) use launch::Launch;
pub(crate) use source::Source;

/// Whether kernels can compute with `operands`: not empty, of one dtype, on one device that runs kernels.
pub(crate) fn takes(operands: &[&Tensor]) -> bool {
    let Some(first) = operands.first() else { return false };
    let fits = |x: &Tensor| {
        x.dtype() == first.dtype() && x.elem_count() > 0 && x.device().same_device(first.device())
    };
    has_kernels(first.device()) && bits(first.dtype()).is_some() && operands.iter().all(|x| fits(x))
}

fn has_kernels(device: &Device) -> bool {
    match device {
        Device::Cuda(_) => cfg!(feature = "cuda"),
        #[cfg(feature = "emulator")]
        Device::Cpu => emulator::is_loaded(),
        _ => false,
    }
}

/// Whether the device multiplies matrices of bf16 by warps (Ampere and later; the emulator, too).
pub(crate) fn has_tensor_cores(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => driver::has_tensor_cores(device),
        _ => true,
    }
}

/// Bytes of dynamic shared memory that a block can have.
pub(crate) fn shared_bytes(device: &Device) -> usize {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => driver::shared_bytes(device),
        _ => 99 * 1024,
    }
}

/// `NUMBER_BITS` of `prelude.cuh` for a dtype.
fn bits(dtype: DType) -> Option<u32> {
    match dtype {
        DType::F32 => Some(32),
        DType::F64 => Some(64),
        DType::BF16 => Some(16),
        _ => None,
    }
}

/// The dtype of `Wide`, in which kernels for `dtype` compute.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A size as a kernel's `int`.
///
/// # Errors
/// From 2³¹.
pub(crate) fn int(n: usize) -> Result<i32> {
    fitting(n, "32 bits with a sign")
}

/// Sizes as a kernel's struct of `int`s.
///
/// # Errors
/// As [`int`].
pub(crate) fn ints<const N: usize>(sizes: [usize; N]) -> Result<[i32; N]> {
    let mut ints = [0; N];
    for (field, size) in ints.iter_mut().zip(sizes) {
        *field = int(size)?;
    }
    Ok(ints)
}

/// A size as a kernel's `i64`.
///
/// # Errors
/// From 2⁶³.
pub(crate) fn long(n: usize) -> Result<i64> {
    fitting(n, "64 bits with a sign")
}

/// A size of a grid.
///
/// # Errors
/// From 2³².
#[cfg(any(test, feature = "cuda", feature = "emulator"))]
fn unsigned(n: usize) -> Result<u32> {
    fitting(n, "32 bits")
}

fn fitting<T: TryFrom<usize>>(n: usize, bits: &str) -> Result<T> {
    match n.try_into() {
        Ok(n) => Ok(n),
        Err(_) => bail!("kernels cannot take a size of {n}: it does not fit in {bits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_does_not_fit_is_refused_and_not_wrapped() {
        assert_eq!(int((1 << 31) - 1).unwrap(), i32::MAX);
        let message = int(1 << 31).unwrap_err().to_string();
        assert!(message.contains("a size of 2147483648"), "{message}");
        assert_eq!(long(1 << 31).unwrap(), 1 << 31);
        assert!(long(1 << 63).is_err());
        assert_eq!(unsigned(u32::MAX as usize).unwrap(), u32::MAX);
        assert!(unsigned(1 << 32).is_err());
    }
}
