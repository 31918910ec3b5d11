//! Activation checkpointing (Chen et al. 2016, <https://arxiv.org/abs/1604.06174>): the activations inside a
//! part of a model are not saved for the backward but computed again.
//!
//! ```text
//! forward    y = f()                                  saves f and y
//! backward   y = f() again, then its backward
//! ```
//!
//! Gradients are exact, as the same operations run on the same elements.
//!
//! Cost: one more forward pass. A model of n checkpointed parts saves the activations between the parts and, during the
//! backward, the activations inside one part.

use candle_core::{Result, Shape, Storage, Tensor, bail};

use crate::autograd::graph::reads::with_reads;
use crate::autograd::graph::record_recomputed;

/// `f()`, without saving its activations. The backward calls `f` again, which must return the same result.
/// Gradients flow to the tensors that `f` captures.
///
/// # Errors
/// The errors of `f`; or if a gradient is needed on a device that is neither a CPU nor a CUDA device.
pub fn checkpoint<F>(f: F) -> Result<Tensor>
where
    F: Fn() -> Result<Tensor> + Send + Sync + 'static,
{
    let (y, reads) = with_reads(&f)?;
    if !y.track_op() {
        return Ok(y);
    }
    if !(y.device().is_cpu() || y.device().is_cuda()) {
        bail!("recomputation of activations works on CPUs and NVIDIA GPUs only")
    }
    record_recomputed(f, copied(&y)?, reads)
}

/// A contiguous copy of the elements of `y`.
fn copied(y: &Tensor) -> Result<(Storage, Shape)> {
    let y = y.detach().force_contiguous()?;
    let (storage, layout) = y.storage_and_layout();
    Ok((storage.try_clone(layout)?, y.shape().clone()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::Var;

    use super::*;
    use crate::autograd::gradients::backward;
    use crate::testing::device;

    /// On every device that tests run on (`TEALIGHT_TEST_DEVICE`).
    #[test]
    fn activations_are_computed_again_for_the_backward() -> Result<()> {
        let x = Var::new(&[2_f32, -3., 5.], device())?;
        let n_runs = Arc::new(AtomicUsize::new(0));
        let (input, runs) = (x.as_tensor().clone(), n_runs.clone());
        let y = checkpoint(move || {
            runs.fetch_add(1, Ordering::Relaxed);
            input.sqr()?.sqr()
        })?;
        assert_eq!(n_runs.load(Ordering::Relaxed), 1);
        let gradients = backward(&y.sum_all()?, [("x", x.as_tensor())])?;
        assert_eq!(n_runs.load(Ordering::Relaxed), 2);
        let gradient = gradients.get("x").map(Tensor::to_vec1::<f32>).transpose()?;
        assert_eq!(gradient, Some(vec![32., -108., 500.]));
        Ok(())
    }
}
