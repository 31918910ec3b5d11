//! A kernel with its grid and its arguments.

use bytemuck::{NoUninit, bytes_of};
use candle_core::{Device, Result, StorageRef, Tensor, bail};

use super::buffer::Buffer;
use super::source::Source;
#[cfg(any(feature = "cuda", feature = "emulator"))]
use super::unsigned;
use super::{address, bits};

/// A kernel that is about to run. Arguments are given in the order of the kernel's parameters.
///
/// A kernel finds its operands by address. `'a` is the borrow of all of them: until [`run`](Self::run), the
/// compiler refuses to drop, move or change a buffer whose address was taken. After `run` they may be
/// dropped, because a device frees memory in the order of its stream, so after the kernel.
///
/// ```text
/// let mut y = Buffer::like(&x)?;
/// let launch = Launch::new(&KERNELS, "softmax_forward", &x)?.write(&mut y)?;
/// let y = y.tensor(x.shape())?; // error[E0505]: cannot move out of `y` because it is borrowed
/// launch.run()?;
/// ```
///
/// The compiler does not compare the arguments with the kernel's parameters. The emulator does so in the tests:
/// it compares their number and the size of each.
#[cfg_attr(
    not(any(feature = "cuda", feature = "emulator")),
    expect(dead_code, reason = "read by the driver and the emulator only")
)]
pub(crate) struct Launch<'a> {
    pub(super) source: &'static Source,
    pub(super) kernel: &'static str,
    /// `NUMBER_BITS`: which number type the kernel is compiled for.
    pub(super) bits: u32,
    grid: [usize; 3],
    block: usize,
    shared_bytes: usize,
    /// The bytes of each argument, in words, which are aligned for all types.
    pub(super) arguments: Vec<Vec<u64>>,
    pub(super) device: Device,
    /// Read locks: no other thread replaces the storage of a tensor before the launch.
    locks: Vec<StorageRef<'a>>,
}

/// Grid, threads per block, and bytes of dynamic shared memory, as CUDA takes them.
#[cfg(any(feature = "cuda", feature = "emulator"))]
pub(super) struct Dims {
    pub(super) grid: [u32; 3],
    pub(super) block: u32,
    pub(super) shared_bytes: u32,
}

const THREADS: usize = 256;

impl<'a> Launch<'a> {
    /// A kernel compiled for the dtype of `x`, on its device.
    pub(crate) fn new(source: &'static Source, kernel: &'static str, x: &Tensor) -> Result<Self> {
        let Some(bits) = bits(x.dtype()) else { bail!("there is no kernel for {:?}", x.dtype()) };
        Ok(Self {
            source,
            kernel,
            bits,
            grid: [1; 3],
            block: 32,
            shared_bytes: 0,
            arguments: Vec::new(),
            device: x.device().clone(),
            locks: Vec::new(),
        })
    }

    /// A kernel with the parameters `(operands.., y, n, ..)` and one thread for each of `n` elements, compiled for
    /// the dtype of the first operand. Its further parameters are left to the caller.
    pub(crate) fn elementwise<const N: usize>(
        source: &'static Source,
        kernel: &'static str,
        operands: [&'a Tensor; N],
        y: &'a mut Buffer,
        n: usize,
    ) -> Result<Self> {
        const { assert!(N > 0, "the first operand gives dtype and device") };
        Ok(Self::new(source, kernel, operands[0])?.over(n).reads(operands)?.write(y)?.size(n))
    }

    /// The same with one thread for each pack of elements (`PACK` in `prelude.cuh`).
    pub(crate) fn packwise<const N: usize>(
        source: &'static Source,
        kernel: &'static str,
        operands: [&'a Tensor; N],
        y: &'a mut Buffer,
        n: usize,
    ) -> Result<Self> {
        Ok(Self::elementwise(source, kernel, operands, y, n)?.over_packs(n))
    }

    /// One thread for each of `n` elements.
    pub(crate) fn over(self, n: usize) -> Self {
        self.grid([n.div_ceil(THREADS), 1, 1], THREADS)
    }

    /// One thread for each 16 bytes of `n` elements.
    pub(crate) fn over_packs(self, n: usize) -> Self {
        let pack = 128 / self.bits as usize;
        self.over(n.div_ceil(pack))
    }

    /// One warp for each of `n` rows.
    pub(crate) fn warps(self, n: usize) -> Self {
        self.over(32 * n)
    }

    /// One block for each of `n` rows, of at most 512 threads.
    pub(crate) fn rows(self, n: usize, width: usize) -> Self {
        let threads = width.clamp(1, 512).next_power_of_two().max(32);
        self.grid([n, 1, 1], threads)
    }

    /// A grid of so many blocks in each direction, of `block` threads each.
    pub(crate) fn grid(mut self, grid: [usize; 3], block: usize) -> Self {
        (self.grid, self.block) = (grid, block);
        self
    }

    /// Bytes of dynamic shared memory for each block.
    pub(crate) fn shared(mut self, bytes: usize) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// # Errors
    /// If a size does not fit in 32 bits.
    #[cfg(any(feature = "cuda", feature = "emulator"))]
    pub(super) fn dims(&self) -> Result<Dims> {
        let [x, y, z] = self.grid.map(unsigned);
        let (block, shared_bytes) = (unsigned(self.block)?, unsigned(self.shared_bytes)?);
        Ok(Dims { grid: [x?, y?, z?], block, shared_bytes })
    }

    fn argument(mut self, word: u64) -> Self {
        self.arguments.push(vec![word]);
        self
    }

    /// A pointer to the first element of a tensor.
    pub(crate) fn read(mut self, x: &'a Tensor) -> Result<Self> {
        let address = self.address(x)?;
        Ok(self.argument(address))
    }

    /// The same for each of several tensors.
    pub(crate) fn reads<const N: usize>(self, tensors: [&'a Tensor; N]) -> Result<Self> {
        tensors.into_iter().try_fold(self, Self::read)
    }

    /// The address of the first element of `x`, which is locked until the launch.
    pub(crate) fn address(&mut self, x: &'a Tensor) -> Result<u64> {
        let (address, storage) = address::of_tensor(x)?;
        self.locks.push(storage);
        Ok(address)
    }

    /// A pointer to the first element of a tensor, or null.
    pub(crate) fn read_if(self, x: Option<&'a Tensor>) -> Result<Self> {
        match x {
            Some(x) => self.read(x),
            None => Ok(self.argument(0)),
        }
    }

    /// A pointer to a buffer that an earlier kernel has written.
    pub(crate) fn read_buffer(self, buffer: &'a Buffer) -> Result<Self> {
        self.read_buffer_from(buffer, 0)
    }

    /// The same for each of several buffers.
    pub(crate) fn read_buffers<const N: usize>(self, buffers: [&'a Buffer; N]) -> Result<Self> {
        buffers.into_iter().try_fold(self, Self::read_buffer)
    }

    /// A pointer to element `first` of a buffer.
    pub(crate) fn read_buffer_from(self, buffer: &'a Buffer, first: usize) -> Result<Self> {
        Ok(self.argument(buffer.address_of(first)?))
    }

    /// A pointer to a buffer that the kernel writes.
    pub(crate) fn write(self, buffer: &'a mut Buffer) -> Result<Self> {
        self.write_from(buffer, 0)
    }

    /// The same for each of several buffers.
    pub(crate) fn writes<const N: usize>(self, buffers: [&'a mut Buffer; N]) -> Result<Self> {
        buffers.into_iter().try_fold(self, Self::write)
    }

    /// The same; a null pointer if there is none.
    pub(crate) fn write_if(self, buffer: Option<&'a mut Buffer>) -> Result<Self> {
        match buffer {
            Some(buffer) => self.write(buffer),
            None => Ok(self.argument(0)),
        }
    }

    /// A pointer to element `first` of a buffer that the kernel writes.
    pub(crate) fn write_from(self, buffer: &'a mut Buffer, first: usize) -> Result<Self> {
        Ok(self.argument(buffer.address_of(first)?))
    }

    /// An `i64`. Sizes of memory are below 2⁶³.
    pub(crate) fn size(self, n: usize) -> Self {
        self.argument(n as u64)
    }

    /// Several `i64`, in this order.
    pub(crate) fn sizes<const N: usize>(self, sizes: [usize; N]) -> Self {
        sizes.into_iter().fold(self, Self::size)
    }

    /// An `i64` that may be negative.
    pub(crate) fn long(self, n: i64) -> Self {
        self.argument(n.cast_unsigned())
    }

    /// An `int`.
    pub(crate) fn int(self, n: i32) -> Self {
        self.argument(u64::from(n.cast_unsigned()))
    }

    /// A `u32`.
    pub(crate) fn word(self, n: u32) -> Self {
        self.argument(u64::from(n))
    }

    /// A `double`.
    pub(crate) fn number(self, x: f64) -> Self {
        self.argument(x.to_bits())
    }

    /// A struct by value: numbers without padding, as `NoUninit` ensures. The kernel's struct has the same fields in
    /// the same order: a struct here is named like it, and for an array a comment beside the array names it. Only their
    /// sizes are compared, by the emulator.
    pub(crate) fn plain<S: NoUninit>(mut self, s: S) -> Self {
        const { assert!(align_of::<S>() <= align_of::<u64>(), "words are aligned for the struct") };
        let mut words = vec![0_u64; size_of::<S>().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..size_of::<S>()].copy_from_slice(bytes_of(&s));
        self.arguments.push(words);
        self
    }

    /// Several structs by value, in this order.
    pub(crate) fn all_plain<S: NoUninit>(self, all: impl IntoIterator<Item = S>) -> Self {
        all.into_iter().fold(self, Self::plain)
    }
}
