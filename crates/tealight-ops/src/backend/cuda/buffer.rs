//! Memory that kernels write.

use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor, bail};

use super::address;

/// Numbers on a device, of which no tensor knows yet.
#[derive(Debug)]
pub(crate) struct Buffer {
    storage: Storage,
    len: usize,
}

impl Buffer {
    /// For a kernel that writes all of it.
    pub(crate) fn unwritten(len: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = Shape::from(len);
        let storage = match device {
            Device::Cpu => Storage::Cpu(conspicuous(len, dtype)?),
            #[expect(unsafe_code, reason = "candle's word for memory that is not cleared")]
            // SAFETY: numbers of any bits are numbers, and the kernel that asks for them writes all of them.
            Device::Cuda(device) => Storage::Cuda(unsafe { device.alloc_uninit(&shape, dtype) }?),
            Device::Metal(_) => bail!("there are no kernels for Metal"),
        };
        Ok(Self { storage, len })
    }

    /// Of the shape and dtype of `x`.
    pub(crate) fn like(x: &Tensor) -> Result<Self> {
        Self::unwritten(x.elem_count(), x.dtype(), x.device())
    }

    pub(crate) fn zeros(len: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = Shape::from(len);
        let storage = match device {
            Device::Cpu => Storage::Cpu(CpuDevice.zeros_impl(&shape, dtype)?),
            Device::Cuda(device) => Storage::Cuda(device.zeros_impl(&shape, dtype)?),
            Device::Metal(_) => bail!("there are no kernels for Metal"),
        };
        Ok(Self { storage, len })
    }

    pub(super) fn address(&self) -> Result<u64> {
        address::of(&self.storage)
    }

    /// As the result of an operation.
    pub(crate) fn value(self, shape: impl Into<Shape>) -> (Storage, Shape) {
        (self.storage, shape.into())
    }

    /// As a tensor without a history.
    ///
    /// # Errors
    /// If the shape has another number of elements.
    pub(crate) fn tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.elem_count() != self.len {
            bail!("a buffer of {} elements as a tensor of shape {shape:?}", self.len)
        }
        Ok(Tensor::from_storage(self.storage, shape, BackpropOp::none(), false))
    }
}

/// NaN, so that an element that no kernel has written shows.
fn conspicuous(len: usize, dtype: DType) -> Result<CpuStorage> {
    Ok(match dtype {
        DType::F32 => CpuStorage::F32(vec![f32::NAN; len]),
        DType::F64 => CpuStorage::F64(vec![f64::NAN; len]),
        DType::U32 => CpuStorage::U32(vec![u32::MAX; len]),
        _ => CpuDevice.zeros_impl(&Shape::from(len), dtype)?,
    })
}
