//! Many tensors in one launch, as optimizers update them: see `lists.cuh`.

use bytemuck::NoUninit;
use candle_core::{Result, Tensor, Var};

use super::buffer::{Buffer, Part};
use super::launch::Launch;
use super::source::Source;
use super::{takes, wide};

/// Included by the kernels that take lists.
pub(crate) const HEADER: &str = include_str!("lists.cuh");

/// The most slots of a launch.
pub(crate) const MOST: usize = 48;
/// The most lists of a kernel.
const LISTS: usize = 4;
const THREADS: usize = 256;

/// `Lists` in `lists.cuh`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Lists {
    at: [[u64; MOST]; LISTS],
    len: [u64; MOST],
}

/// `Rates` in `lists.cuh`: of each slot.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
pub(crate) struct Rates {
    pub(crate) lr: [f64; MOST],
    pub(crate) weight_decay: [f64; MOST],
}

/// The entry of one list in a slot.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    /// Read, or updated in place: a parameter and its state.
    Tensor(&'a Tensor),
    /// Written.
    Buffer(&'a mut Buffer),
    /// Written.
    Part(Part<'a>),
}

/// The number of elements of a slot's tensors, and its entry in each list.
pub(crate) type Slot<'a, const N: usize> = (usize, [Item<'a>; N]);

/// The number of blocks for each slot, if the tensors have these lengths.
pub(crate) fn n_blocks(lens: impl IntoIterator<Item = usize>) -> usize {
    let longest = lens.into_iter().max().unwrap_or(0);
    longest.div_ceil(4 * THREADS).clamp(1, 256)
}

/// Whether a kernel can update `state`, variables of the gradient's shape, from a gradient that may have half their
/// precision.
pub(crate) fn can_update(state: &[&Var], gradient: &Tensor) -> bool {
    takes(&[gradient])
        && state.iter().all(|x| {
            takes(&[x])
                && x.dims() == gradient.dims()
                && x.dtype() == wide(gradient.dtype())
                && x.device().same_device(gradient.device())
        })
}

impl<'a> Launch<'a> {
    /// A kernel over up to [`MOST`] slots of up to four lists, compiled for the dtype of `x`.
    pub(crate) fn lists<const N: usize>(
        source: &'static Source,
        kernel: &'static str,
        x: &Tensor,
        slots: Vec<Slot<'a, N>>,
    ) -> Result<Self> {
        let grid = [n_blocks(slots.iter().map(|slot| slot.0)), slots.len(), 1];
        let mut launch = Launch::new(source, kernel, x)?.grid(grid, THREADS);
        let mut lists = Lists { at: [[0; MOST]; LISTS], len: [0; MOST] };
        // By value: otherwise the caller could replace a buffer through its slot before the launch.
        for (slot, (len, items)) in slots.into_iter().enumerate() {
            lists.len[slot] = len as u64;
            for (list, item) in items.into_iter().enumerate() {
                lists.at[list][slot] = match item {
                    Item::Tensor(x) => launch.address(x)?,
                    Item::Buffer(buffer) => buffer.address_of(0)?,
                    Item::Part(part) => part.address,
                };
            }
        }
        Ok(launch.plain(lists))
    }
}
