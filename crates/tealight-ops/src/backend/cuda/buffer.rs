//! Memory that kernels write.

use std::marker::PhantomData;

use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor, bail};

use super::address;

/// Elements of one dtype on a device, before they become a tensor.
#[derive(Debug)]
pub(crate) struct Buffer {
    storage: Storage,
    len: usize,
}

/// Consecutive elements of a buffer, borrowed for a kernel that writes them.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(super) address: u64,
    _buffer: PhantomData<&'a mut Buffer>,
}

impl Buffer {
    /// Uninitialised on a GPU, for a kernel that writes every element. On the CPU, f32 and f64 are NaN and u32
    /// are `u32::MAX`, so that tests find elements that no kernel has written.
    pub(crate) fn unwritten(len: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = Shape::from(len);
        let storage = match device {
            Device::Cpu => Storage::Cpu(conspicuous(len, dtype)?),
            #[expect(
                unsafe_code,
                reason = "Candle allocates uninitialised memory by an unsafe function"
            )]
            // SAFETY: all bit patterns are valid numbers, and the kernel writes every element before any is read.
            Device::Cuda(device) => Storage::Cuda(unsafe { device.alloc_uninit(&shape, dtype) }?),
            Device::Metal(_) => bail!("there are no kernels for Metal"),
        };
        Ok(Self { storage, len })
    }

    /// With the number of elements, the dtype and the device of `x`, as [`unwritten`](Self::unwritten).
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

    #[cfg(feature = "cuda")]
    pub(super) fn n_bytes(&self) -> usize {
        self.len * self.storage.dtype().size_in_bytes()
    }

    /// The address of element `i`.
    ///
    /// # Errors
    /// If there are fewer than `i` elements.
    pub(super) fn address_of(&self, i: usize) -> Result<u64> {
        if i > self.len {
            bail!("element {i} of a buffer of {}", self.len)
        }
        Ok(address::first_element(&self.storage)?
            + (i * self.storage.dtype().size_in_bytes()) as u64)
    }

    /// Disjoint parts of `len` elements each; a shorter remainder is left out.
    pub(crate) fn chunks_mut(&mut self, len: usize) -> Result<Vec<Part<'_>>> {
        let starts = (0..self.len / len).map(|i| self.address_of(i * len));
        starts.map(|address| Ok(Part { address: address?, _buffer: PhantomData })).collect()
    }

    /// The result of an operation.
    pub(crate) fn value(self, shape: impl Into<Shape>) -> (Storage, Shape) {
        (self.storage, shape.into())
    }

    /// A tensor without a history.
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

fn conspicuous(len: usize, dtype: DType) -> Result<CpuStorage> {
    Ok(match dtype {
        DType::F32 => CpuStorage::F32(vec![f32::NAN; len]),
        DType::F64 => CpuStorage::F64(vec![f64::NAN; len]),
        DType::U32 => CpuStorage::U32(vec![u32::MAX; len]),
        _ => CpuDevice.zeros_impl(&Shape::from(len), dtype)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_elements() -> Result<()> {
        let mut buffer = Buffer::unwritten(7, DType::F64, &Device::Cpu)?;
        let first = buffer.address_of(0)?;
        assert_eq!(buffer.address_of(7)?, first + 56);
        assert!(buffer.address_of(8).is_err());
        let parts: Vec<_> = buffer.chunks_mut(3)?.iter().map(|part| part.address).collect();
        assert_eq!(parts, [first, first + 24]);
        Ok(())
    }
}
