//! The kernels: some blocks for each gradient of a list.

use candle_core::{Result, Tensor};

use crate::backend::cuda::lists::{Item, MOST};
use crate::backend::cuda::{Buffer, Launch};

/// Contiguous gradients of one dtype, each times `factor`.
pub(super) fn scaled(gradients: &[&Tensor], factor: f64) -> Result<Vec<Tensor>> {
    let mut all = Vec::with_capacity(gradients.len());
    for chunk in gradients.chunks(MOST) {
        let results = chunk.iter().map(|x| Buffer::like(x)).collect::<Result<Vec<_>>>()?;
        let slots = chunk.iter().zip(&results);
        let slots = slots.map(|(x, y)| (x.elem_count(), [Item::Tensor(x), Item::Buffer(y)]));
        let slots: Vec<_> = slots.collect();
        Launch::lists("scale_lists", chunk[0], &slots)?.number(factor).run()?;
        for (y, x) in results.into_iter().zip(chunk) {
            all.push(y.tensor(x.shape())?);
        }
    }
    Ok(all)
}
