//! One kernel for the tensors of a whole model: see `optimizers.cu`.

use candle_core::{DType, Result, Tensor};

use super::address;
use super::buffer::Buffer;
use super::launch::{Launch, Plain};

/// Tensors in a list that a kernel takes.
pub(crate) const MOST: usize = 48;
/// Lists that a kernel takes.
const LISTS: usize = 4;
const THREADS: usize = 256;

/// `Lists` in `optimizers.cu`: all in 64 bits.
#[derive(Clone, Copy)]
#[repr(C)]
struct Lists {
    at: [[u64; MOST]; LISTS],
    len: [u64; MOST],
}

#[expect(unsafe_code, reason = "see `Plain`")]
// SAFETY: the kernels' struct has these fields, in this order.
unsafe impl Plain for Lists {}

/// `Rates` in `optimizers.cu`: of each slot.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Rates {
    pub(crate) lr: [f64; MOST],
    pub(crate) weight_decay: [f64; MOST],
}

#[expect(unsafe_code, reason = "see `Plain`")]
// SAFETY: the kernels' struct has these fields, in this order.
unsafe impl Plain for Rates {}

impl Default for Rates {
    fn default() -> Self {
        Self { lr: [0.; MOST], weight_decay: [0.; MOST] }
    }
}

/// What one list has in a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item<'a> {
    Tensor(&'a Tensor),
    Buffer(&'a Buffer),
    /// From this element on, of this dtype.
    Part(&'a Buffer, usize, DType),
}

/// How many blocks each tensor has, of those that are as long as these.
pub(crate) fn n_blocks(lens: impl IntoIterator<Item = usize>) -> usize {
    let longest = lens.into_iter().max().unwrap_or(0);
    longest.div_ceil(4 * THREADS).clamp(1, 256)
}

impl<'a> Launch<'a> {
    /// A kernel over up to [`MOST`] slots, each with its tensors of as many lists as the kernel has, all of
    /// one length. It is compiled for numbers like those of `x`.
    pub(crate) fn lists<const N: usize>(
        kernel: &'static str,
        x: &Tensor,
        slots: &[(usize, [Item<'a>; N])],
    ) -> Result<Self> {
        let mut launch = Launch::new("optimizers", kernel, x)?
            .grid([n_blocks(slots.iter().map(|slot| slot.0)), slots.len(), 1], THREADS);
        let mut lists = Lists { at: [[0; MOST]; LISTS], len: [0; MOST] };
        for (slot, (len, items)) in slots.iter().enumerate() {
            lists.len[slot] = *len as u64;
            for (list, item) in items.iter().enumerate() {
                lists.at[list][slot] = match item {
                    Item::Tensor(x) => launch.address(x)?,
                    Item::Buffer(buffer) => buffer.address()?,
                    Item::Part(buffer, skip, dtype) => {
                        buffer.address()? + *skip as u64 * address::size_of(*dtype)
                    }
                };
            }
        }
        Ok(launch.plain(lists))
    }
}
