//! The elements of CPU tensors as slices, and slices as tensors.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, Range};

use candle_core::{
    CpuStorage, Device, InplaceOp1, Layout, Result, Shape, Storage, StorageRef, Tensor, bail,
};

use crate::backend::allocator;
use crate::backend::element::Element;

/// Numbers for a loop to overwrite. Their values are arbitrary, and NaN in builds with debug assertions, so that
/// tests notice an element that no loop has written. In a program with another allocator than ours they are zeros,
/// which cost a twentieth of a training step.
pub(crate) fn unwritten<T: Element>(len: usize) -> Vec<T> {
    if cfg!(debug_assertions) {
        vec![T::NAN; len]
    } else if allocator::is_global() {
        arbitrary(len)
    } else {
        vec![T::ZERO; len]
    }
}

/// Numbers for a message to overwrite: of any value, and NaN in builds with debug assertions.
pub fn unwritten_f32(len: usize) -> Vec<f32> {
    unwritten(len)
}

/// Numbers of any value, in memory that is not cleared. Only for programs whose allocator is
/// [`Allocator`](allocator::Allocator).
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#[expect(unsafe_code, reason = "the assembly initialises it")]
fn arbitrary<T: Element>(len: usize) -> Vec<T> {
    let mut numbers = Vec::<T>::with_capacity(len);
    // SAFETY: the capacity is `len`, and `T` is `Pod`: any bytes are a number. Memory counts as uninitialised until
    // it is written. Assembly that receives its address may write it, so the compiler must assume that this block
    // has stored bytes there, unknown ones. The assembly stores none, and needs not: the memory holds bytes already,
    // and they do not change by themselves: our allocator takes it from glibc, which leaves no pages in an allocation
    // that the kernel may still discard (`MADV_FREE`).
    unsafe {
        std::arch::asm!("/* {} */", in(reg) numbers.as_mut_ptr(), options(nostack, preserves_flags));
        numbers.set_len(len);
    }
    numbers
}

/// The same where there is no such assembly, or where the allocator may discard pages: zeros.
#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
fn arbitrary<T: Element>(len: usize) -> Vec<T> {
    vec![T::ZERO; len]
}

/// The result of a loop, as a value of the graph.
pub(crate) fn stored<T: Element>(output: Vec<T>, shape: impl Into<Shape>) -> (Storage, Shape) {
    (Storage::Cpu(T::to_cpu_storage_owned(output)), shape.into())
}

/// The result of a loop as a tensor, as a backward returns it.
pub(crate) fn tensor<T: Element>(output: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(output, shape.into(), &Device::Cpu)
}

/// Refuses `x` if its elements are not integers; `what` names this operand in the error.
pub(crate) fn check_integers(what: &str, x: &Tensor) -> Result<()> {
    if !x.dtype().is_int() {
        bail!("{what} are of dtype {:?}, not integers", x.dtype())
    }
    Ok(())
}

/// `tensors`, copied where they are not contiguous.
pub(crate) fn contiguous(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    tensors.iter().map(|x| x.contiguous()).collect()
}

/// The gradients of `inputs`, each in the shape of its input.
pub(crate) fn gradients<T: Element>(
    gradients: impl IntoIterator<Item = Option<Vec<T>>>,
    inputs: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    let gradients = gradients.into_iter().zip(inputs);
    gradients.map(|(g, input)| g.map(|g| tensor(g, input.shape())).transpose()).collect()
}

fn range(layout: &Layout) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => bail!("a fused operation was given a strided {:?}", layout.shape()),
    }
}

/// The elements of a tensor on the CPU, locked for reading.
pub(crate) struct View<'a, T> {
    storage: StorageRef<'a>,
    range: Range<usize>,
    element: PhantomData<T>,
}

impl<'a, T: Element> View<'a, T> {
    /// All elements of a contiguous tensor.
    pub(crate) fn from_tensor(tensor: &'a Tensor) -> Result<Self> {
        let range = range(tensor.layout())?;
        Ok(Self { range, ..Self::from_start(tensor)? })
    }

    /// The elements from the tensor's first to the end of its storage, to be read with strides.
    pub(crate) fn from_start(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(elements) = &*storage else { bail!("expected a tensor on the CPU") };
        let range = layout.start_offset()..T::cpu_storage_as_slice(elements)?.len();
        Ok(Self { storage, range, element: PhantomData })
    }
}

impl<T: Element> Deref for View<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Storage::Cpu(storage) = &*self.storage else {
            unreachable!("invariant: the device is checked on construction")
        };
        let all = T::cpu_storage_as_slice(storage);
        &all.expect("invariant: the dtype is checked on construction")[self.range.clone()]
    }
}

/// Runs `f` on the elements of a contiguous tensor, in place. Calls nest, for several tensors at
/// once.
pub(crate) fn with_slice_mut<T: Element>(
    tensor: &Tensor,
    f: impl FnOnce(&mut [T]) -> Result<()>,
) -> Result<()> {
    tensor.inplace_op1(&InPlace { f: Cell::new(Some(f)), element: PhantomData })
}

/// Candle gives mutable storage to an `InplaceOp1` and to nothing else.
struct InPlace<F, T> {
    f: Cell<Option<F>>,
    element: PhantomData<T>,
}

impl<T: Element, F: FnOnce(&mut [T]) -> Result<()>> InplaceOp1 for InPlace<F, T> {
    fn name(&self) -> &'static str {
        "in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let range = range(layout)?;
        // Refuses another dtype while the storage is still in place.
        T::cpu_storage_as_slice(storage)?;

        // Candle has no mutable `cpu_storage_as_slice`: the storage is taken out, and put back.
        let empty = T::to_cpu_storage_owned(Vec::new());
        let mut elements = T::cpu_storage_data(std::mem::replace(storage, empty))?;
        let f = self.f.take().expect("invariant: Candle runs an operation once");
        let result = f(&mut elements[range]);
        *storage = T::to_cpu_storage_owned(elements);
        result
    }
}
