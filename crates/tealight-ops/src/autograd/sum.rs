//! The sum of two gradients.

use candle_core::{Result, Tensor};

use crate::backend::buffer::{View, with_slice_mut};
use crate::backend::cuda::{Buffer, Launch, Source};
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, block_len, run};

const KERNELS: Source = Source::new("sum", &[include_str!("sum.cu")]);

/// sum ← sum + term, contiguous tensors of one shape on the CPU.
pub(super) fn add_in_place<T: Element>(sum: &Tensor, term: &Tensor) -> Result<()> {
    let term = View::<T>::from_tensor(term)?;
    let len = block_len(1);
    with_slice_mut(sum, |sum: &mut [T]| {
        run::<T, _, _>(
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
    Launch::packwise(&KERNELS, "add", [a, b], &mut sum, a.elem_count())?.run()?;
    Ok(sum)
}
