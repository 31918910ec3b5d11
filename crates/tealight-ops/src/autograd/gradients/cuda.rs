//! Kernels over lists of gradients.

use bytemuck::NoUninit;
use candle_core::{Result, Tensor};

use crate::backend::cuda::lists::{self, Item, MOST};
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("gradients", &[lists::HEADER, include_str!("kernel.cu")]);

/// `factor` times each of `gradients`, which are contiguous and of one dtype.
pub(super) fn scaled(gradients: &[&Tensor], factor: f64) -> Result<Vec<Tensor>> {
    let mut all = Vec::with_capacity(gradients.len());
    for chunk in gradients.chunks(MOST) {
        let mut results = chunk.iter().map(|x| Buffer::like(x)).collect::<Result<Vec<_>>>()?;
        let slots = chunk.iter().zip(&mut results);
        let slots = slots.map(|(x, y)| (x.elem_count(), [Item::Tensor(x), Item::Buffer(y)]));
        Launch::lists(&KERNELS, "scale_lists", chunk[0], slots.collect())?.number(factor).run()?;
        for (y, x) in results.into_iter().zip(chunk) {
            all.push(y.tensor(x.shape())?);
        }
    }
    Ok(all)
}

/// The most terms of one launch.
pub(super) const MOST_TERMS: usize = 128;

/// `Terms` in `kernel.cu`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Terms {
    at: [u64; MOST_TERMS],
    additions: [u64; MOST_TERMS],
    n: u64,
}

/// See [`sum_in_order`](super::sum_in_order): at most [`MOST_TERMS`], contiguous.
pub(super) fn sum_in_order(terms: &[&Tensor], additions: &[usize]) -> Result<Tensor> {
    let first = terms[0];
    let mut sum = Buffer::like(first)?;
    let mut launch = Launch::new(&KERNELS, "sum_in_order", first)?.over(first.elem_count());
    let mut list = Terms { at: [0; MOST_TERMS], additions: [0; MOST_TERMS], n: terms.len() as u64 };
    for (slot, (term, n)) in terms.iter().zip(additions).enumerate() {
        list.at[slot] = launch.address(term)?;
        list.additions[slot] = *n as u64;
    }
    launch.plain(list).write(&mut sum)?.size(first.elem_count()).run()?;
    sum.tensor(first.shape())
}
