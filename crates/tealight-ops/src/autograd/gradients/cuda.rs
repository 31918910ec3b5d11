//! Gradients scaled by one kernel over lists of them.

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
