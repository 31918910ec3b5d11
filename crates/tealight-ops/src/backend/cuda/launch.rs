//! A kernel with its arguments.

use candle_core::{DType, Device, Result, StorageRef, Tensor, bail};

use super::buffer::Buffer;
use super::{address, bits};

/// A kernel that is about to run. Arguments are given in the order of the kernel's parameters.
#[cfg_attr(
    not(any(feature = "cuda", feature = "emulator")),
    expect(dead_code, reason = "without kernels nothing reads what one is given")
)]
pub(crate) struct Launch<'a> {
    /// The file that the kernel is in, without its ending.
    pub(super) file: &'static str,
    pub(super) kernel: &'static str,
    /// Of the number type.
    pub(super) bits: u32,
    pub(super) grid: [u32; 3],
    pub(super) block: u32,
    pub(super) shared_bytes: u32,
    /// Each as its bytes, in words that are aligned for any of them.
    pub(super) arguments: Vec<Vec<u64>>,
    pub(super) device: Device,
    /// What is read stays as it is until the kernel has been launched.
    locks: Vec<StorageRef<'a>>,
}

/// A struct that a kernel takes by value: of plain numbers, without padding between them that would matter.
///
/// # Safety
/// It is `repr(C)`, and the kernel's struct has the same fields.
#[expect(unsafe_code, reason = "layouts cannot be compared across languages")]
pub(crate) unsafe trait Plain: Copy {}

const THREADS: usize = 256;

impl<'a> Launch<'a> {
    /// A kernel for numbers like those of `x`, on its device.
    pub(crate) fn new(file: &'static str, kernel: &'static str, x: &Tensor) -> Result<Self> {
        let Some(bits) = bits(x.dtype()) else { bail!("there is no kernel for {:?}", x.dtype()) };
        let (device, grid) = (x.device().clone(), [1; 3]);
        let (arguments, locks) = (Vec::new(), Vec::new());
        Ok(Self { file, kernel, bits, grid, block: 32, shared_bytes: 0, arguments, device, locks })
    }

    /// A kernel of `elementwise.cu` that makes `y` of `x` and begins with both and `n`: a thread for each of
    /// `n` elements.
    pub(crate) fn map(
        kernel: &'static str,
        x: &'a Tensor,
        y: &mut Buffer,
        n: usize,
    ) -> Result<Self> {
        Ok(Self::new("elementwise", kernel, x)?.over(n).read(x)?.write(y)?.size(n))
    }

    /// A thread for each of `n` elements.
    pub(crate) fn over(self, n: usize) -> Self {
        self.grid([n.div_ceil(THREADS), 1, 1], THREADS)
    }

    /// A block for each of `n` rows.
    pub(crate) fn rows(self, n: usize, width: usize) -> Self {
        let threads = width.clamp(1, 512).next_power_of_two().max(32);
        self.grid([n, 1, 1], threads)
    }

    pub(crate) fn grid(mut self, grid: [usize; 3], block: usize) -> Self {
        self.grid = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        self.block = block as u32;
        self
    }

    pub(crate) fn shared(mut self, bytes: usize) -> Self {
        self.shared_bytes = bytes as u32;
        self
    }

    /// A tensor, from its first element on.
    pub(crate) fn read(mut self, x: &'a Tensor) -> Result<Self> {
        let address = self.address(x)?;
        self.arguments.push(vec![address]);
        Ok(self)
    }

    /// Where the first element of `x` is, and stays until the kernel has been launched.
    pub(super) fn address(&mut self, x: &'a Tensor) -> Result<u64> {
        let (storage, layout) = x.storage_and_layout();
        let start = layout.start_offset() as u64 * address::size_of(x.dtype());
        let address = address::of(&storage)? + start;
        self.locks.push(storage);
        Ok(address)
    }

    /// A tensor, or a null pointer.
    pub(crate) fn read_if(mut self, x: Option<&'a Tensor>) -> Result<Self> {
        if let Some(x) = x {
            return self.read(x);
        }
        self.arguments.push(vec![0]);
        Ok(self)
    }

    /// What another kernel has written.
    pub(crate) fn read_buffer(mut self, buffer: &Buffer) -> Result<Self> {
        self.arguments.push(vec![buffer.address()?]);
        Ok(self)
    }

    /// The same, but for its first `skip` elements of `dtype`.
    pub(crate) fn read_buffer_from(
        mut self,
        buffer: &Buffer,
        skip: usize,
        dtype: DType,
    ) -> Result<Self> {
        self.arguments.push(vec![buffer.address()? + skip as u64 * address::size_of(dtype)]);
        Ok(self)
    }

    pub(crate) fn write(self, buffer: &mut Buffer) -> Result<Self> {
        self.read_buffer(buffer)
    }

    /// All but the first `skip` elements of `dtype`.
    pub(crate) fn write_from(self, buffer: &mut Buffer, skip: usize, dtype: DType) -> Result<Self> {
        self.read_buffer_from(buffer, skip, dtype)
    }

    /// An `i64`.
    pub(crate) fn size(mut self, n: usize) -> Self {
        self.arguments.push(vec![n as u64]);
        self
    }

    /// An `i64` that may be negative.
    pub(crate) fn long(mut self, n: i64) -> Self {
        self.arguments.push(vec![n.cast_unsigned()]);
        self
    }

    /// An `int`.
    pub(crate) fn int(mut self, n: i32) -> Self {
        self.arguments.push(vec![u64::from(n.cast_unsigned())]);
        self
    }

    /// A `u32`.
    pub(crate) fn word(mut self, n: u32) -> Self {
        self.arguments.push(vec![u64::from(n)]);
        self
    }

    /// A `double`.
    pub(crate) fn number(mut self, x: f64) -> Self {
        self.arguments.push(vec![x.to_bits()]);
        self
    }

    /// A struct by value.
    pub(crate) fn plain<S: Plain>(mut self, s: S) -> Self {
        let mut words = vec![0_u64; size_of::<S>().div_ceil(8)];
        #[expect(unsafe_code, reason = "a kernel's argument is bytes")]
        // SAFETY: the words have room for `s`, and are aligned for whatever has the alignment of a word or less.
        unsafe {
            const { assert!(align_of::<S>() <= 8) };
            words.as_mut_ptr().cast::<S>().write(s);
        }
        self.arguments.push(words);
        self
    }

    /// Several structs by value, one after the other.
    pub(crate) fn all_plain<S: Plain>(self, all: impl IntoIterator<Item = S>) -> Self {
        all.into_iter().fold(self, Self::plain)
    }
}
