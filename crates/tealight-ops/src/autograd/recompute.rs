//! Activation checkpointing (Chen et al. 2016, <https://arxiv.org/abs/1604.06174>): what a part of a
//! model needs for its backward is not kept but computed again.
//!
//! ```text
//! forward    y = f()            nothing is kept of it but f and y
//! backward   f() again; then back through it, as if it had been kept
//! ```
//!
//! Exact: the same operations on the same elements. A model of n parts, each in a checkpoint, keeps
//! what stands between them and the inside of one, for the time of one more forward pass.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Result, Shape, Storage, Tensor, bail};

use crate::autograd::graph::record_again;

/// `f()`, which is called once more when a gradient comes back to it: it must give the same again.
/// Whatever it reads may have a gradient.
///
/// On other devices than the CPU it is called once, and what it needs is kept.
///
/// # Errors
/// Those of `f`.
pub fn checkpoint<F>(f: F) -> Result<Tensor>
where
    F: Fn() -> Result<Tensor> + Send + Sync + 'static,
{
    let y = f()?;
    if !(y.track_op() && y.device().is_cpu()) {
        return Ok(y);
    }
    let value = copied(&y)?;
    record_again(f, value)
}

/// The elements of `y`, in their order.
fn copied(y: &Tensor) -> Result<(CpuStorage, Shape)> {
    let y = y.detach().force_contiguous()?;
    let (storage, layout) = y.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok((storage.try_clone(layout)?, y.shape().clone())),
        _ => bail!("expected a tensor on the CPU"),
    }
}
