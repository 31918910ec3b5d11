//! The sum of two gradients.

use candle_core::{Result, Tensor};

use crate::backend::buffer::{View, with_slice_mut};
use crate::backend::cuda::{Buffer, Launch};
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, block_len, run};

/// sum ← sum + term, contiguous tensors of one shape on the CPU.
pub(super) fn add_in_place<T: Element>(sum: &Tensor, term: &Tensor) -> Result<()> {
    let term = View::<T>::of(term)?;
    let len = block_len(1);
    with_slice_mut(sum, |sum: &mut [T]| {
        run(
            term.len(),
            sum.chunks_mut(len).zip(term.chunks(len)),
            #[inline(always)]
            |(sum, term): (&mut [T], &[T])| add_scaled(sum, term, T::ONE),
        );
        Ok(())
    })
}

/// a + b of contiguous tensors of one shape on a GPU, in new memory from the pool.
pub(crate) fn added(a: &Tensor, b: &Tensor) -> Result<Buffer> {
    let mut sum = Buffer::like(a)?;
    Launch::new("elementwise", "add", a)?
        .over(a.elem_count())
        .read(a)?
        .read(b)?
        .write(&mut sum)?
        .size(a.elem_count())
        .run()?;
    Ok(sum)
}
