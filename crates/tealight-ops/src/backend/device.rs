//! Opening GPUs, and copying data to them.

use candle_core::{Device, Result, Shape, Tensor, WithDType};

#[cfg(feature = "cuda")]
use crate::backend::cuda::staging;

/// Opens GPU number `ordinal`, once per program.
///
/// - All threads share one stream, so that their work runs in the order of its launches. `Device::new_cuda` has a
///   stream per thread and does not order them.
/// - With one stream, tensors need no events that record reads and writes. None are created.
/// - Freed memory stays in a pool of the process, so that a step reuses the memory of the step before.
///
/// # Errors
/// In a build without the feature `cuda`, or if the driver, the GPU or a CUDA library is missing.
pub fn open_cuda(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    return crate::backend::cuda::driver::open(ordinal).map(Device::Cuda);
    #[cfg(not(feature = "cuda"))]
    Device::new_cuda(ordinal)
}

/// Whether `device` was opened by [`open_cuda`], so that other threads may copy data to it: all work is on one stream.
pub fn shares_one_stream(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => !device.is_event_tracking(),
        _ => false,
    }
}

/// The maker's name of a GPU, such as `NVIDIA H200`; `None` for a CPU, and for a GPU that does not tell it.
pub fn gpu_name(device: &Device) -> Option<String> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => device.cuda_stream().context().name().ok(),
        _ => None,
    }
}

/// A tensor of `values` in `shape` on `device`. Copies to a GPU are asynchronous.
///
/// # Errors
/// If `shape` has another number of elements, or memory is exhausted.
pub fn tensor_of<T: WithDType>(
    values: Vec<T>,
    shape: impl Into<Shape>,
    device: &Device,
) -> Result<Tensor> {
    let shape = shape.into();
    #[cfg(feature = "cuda")]
    if device.is_cuda() && !values.is_empty() && values.len() == shape.elem_count() {
        return staging::copied(device, bytes(&values), values.len(), T::DTYPE)?.tensor(shape);
    }
    Tensor::from_vec(values, shape, device)
}

#[cfg(feature = "cuda")]
fn bytes<T: WithDType>(values: &[T]) -> &[u8] {
    #[expect(unsafe_code, reason = "numbers are read as bytes")]
    // SAFETY: the elements are numbers without padding, whose bytes are all initialised.
    unsafe {
        std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values))
    }
}
