//! A GPU as training wants it, and what is brought there.

use candle_core::{Device, Result, Shape, Tensor, WithDType};

#[cfg(feature = "cuda")]
use crate::backend::cuda::staging;

/// GPU number `ordinal`, to be opened once in a program.
///
/// - It has one queue, which all threads put their work into: what one thread has asked for is done before what
///   another asks for afterwards. `Device::new_cuda` has a queue for each thread, and nothing that orders them.
/// - With one queue no tensor needs events that say when it was read and written, and none are made.
/// - What is freed stays with the program: what a step gives back the next one takes, without asking the driver.
///
/// # Errors
/// In a build without the feature `cuda`, and where the driver, the GPU or one of CUDA's libraries is missing.
pub fn open_cuda(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    return crate::backend::cuda::cuda::open(ordinal).map(Device::Cuda);
    #[cfg(not(feature = "cuda"))]
    Device::new_cuda(ordinal)
}

/// Whether `device` is a GPU that another thread may bring something to: one that [`open_cuda`] has opened.
pub fn has_one_queue(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => !device.is_event_tracking(),
        _ => false,
    }
}

/// `values` as a tensor of `shape` on `device`. Where that is a GPU, nobody waits for the copy.
///
/// # Errors
/// If the shape has another number of elements, or there is no memory left.
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
    #[expect(unsafe_code, reason = "numbers are bytes")]
    // SAFETY: these are numbers without padding between them, and any bytes are bytes.
    unsafe {
        std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values))
    }
}
