//! Operations as kernels on a CUDA device.
//!
//! The kernels are CUDA C in `kernels/`, compiled by NVRTC when they are first asked for: no compiler of
//! NVIDIA's is needed to build this crate. What launches them is compiled into every build, so that it is
//! checked where there is no CUDA; without the feature `cuda` no operand is taken.
//!
//! Where there is no GPU, the feature `emulator` runs the same launches on tensors of the CPU, with the
//! kernels compiled by `scripts/emulate_kernels.sh`: the tests that hold loops to definitions hold kernels
//! to them, too.
//!
//! Kernels take f32, f64 and bf16. They compute in f32 (of f64 in f64), and round once, at the end. A sum
//! has one order, so that a result is the same in every run.

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
mod key;
mod launch;
pub(crate) mod lists;
pub(crate) mod product;
mod run;
#[cfg(feature = "cuda")]
pub(crate) mod staging;
pub(crate) mod sums;

use candle_core::{DType, Device, Tensor};

pub(crate) use buffer::Buffer;
pub(crate) use key::Key;
pub(crate) use launch::{Launch, Plain};

/// Whether all of `operands` can be computed with by kernels: on one device, of one dtype.
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
        Device::Cpu => emulator::is_there(),
        _ => false,
    }
}

/// Whether warps multiply matrices of bf16.
pub(crate) fn has_tensor_cores(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => driver::has_tensor_cores(device),
        _ => true,
    }
}

/// Bytes of shared memory that a block of a kernel may ask for.
pub(crate) fn shared_bytes(device: &Device) -> usize {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => driver::shared_bytes(device),
        _ => 99 * 1024,
    }
}

/// What `NUMBER_BITS` is for a dtype.
fn bits(dtype: DType) -> Option<u32> {
    match dtype {
        DType::F32 => Some(32),
        DType::F64 => Some(64),
        DType::BF16 => Some(16),
        _ => None,
    }
}

/// What kernels compute in: the dtype of `Wide`.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A size as a kernel's `int`.
pub(crate) fn int(n: usize) -> i32 {
    (n as u32).cast_signed()
}

/// A size as a kernel's `i64`.
pub(crate) fn long(n: usize) -> i64 {
    (n as u64).cast_signed()
}
