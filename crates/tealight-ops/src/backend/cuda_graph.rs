//! CUDA graphs: a pass is captured once and replayed on inputs of the same shapes.
//!
//! The kernels of a small model finish faster than the CPU can launch them one by one. A replay launches all
//! kernels of the pass at once; they read and write the same memory as during the capture.

use std::result;

use candle_core::{Device, Error, Result, Tensor, bail};

use crate::backend::cuda::graph::{self, Graph, overwrite};
use crate::rng::Stream;

/// A captured pass and its result.
#[derive(Debug)]
pub struct CudaGraph<R> {
    inputs: Vec<Tensor>,
    result: R,
    graph: Graph,
}

/// Runs `pass` eagerly before it is captured: kernels and tables that it needs on `device` are loaded, and stay.
pub fn warm_up<R>(device: &Device, pass: impl FnOnce() -> R) -> R {
    graph::warm_up(device, pass)
}

impl<R> CudaGraph<R> {
    /// Captures `pass` and runs it once.
    ///
    /// It reads `inputs` (at least one, contiguous, on one GPU), which [`replay`](Self::replay) overwrites. All
    /// other tensors that it reads must exist before the capture and keep their address: parameters may change
    /// in place. Random numbers must come from forks of `stream`. The pass must have been [warmed up](warm_up).
    ///
    /// # Errors
    /// Without CUDA; or if the pass synchronises with the GPU or copies data to it, which a graph cannot contain.
    /// Then no kernel has run.
    pub fn capture<E: From<Error>>(
        inputs: Vec<Tensor>,
        stream: Stream,
        pass: impl FnOnce() -> result::Result<R, E>,
    ) -> result::Result<Self, E> {
        let no = || Error::Msg("a CUDA graph needs contiguous inputs".into());
        let are_fit = inputs.iter().all(Tensor::is_contiguous);
        let device = inputs.first().filter(|_| are_fit).ok_or_else(no)?.device().clone();
        let (graph, result) = Graph::capture(&device, stream, pass)?;
        Ok(Self { inputs, result, graph })
    }

    /// Whether `inputs` can replace the inputs of the capture: they are contiguous and have the same shapes and dtypes.
    pub fn fits(&self, inputs: &[&Tensor]) -> bool {
        let like = |(a, b): (&Tensor, &&Tensor)| {
            a.shape() == b.shape() && a.dtype() == b.dtype() && b.is_contiguous()
        };
        self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(like)
    }

    /// Replays the pass on copies of `inputs`, with random numbers from `stream`. The result is written to the
    /// same tensors each time, so it overwrites earlier results.
    ///
    /// # Errors
    /// If the inputs do not [fit](Self::fits).
    pub fn replay(&mut self, inputs: &[&Tensor], stream: Stream) -> Result<&R> {
        if !self.fits(inputs) {
            bail!("a CUDA graph replayed on inputs of other shapes")
        }
        self.inputs.iter().zip(inputs).try_for_each(|(to, from)| overwrite(to, from))?;
        self.graph.replay(stream)?;
        Ok(&self.result)
    }

    /// The result of the last run.
    pub fn result(&self) -> &R {
        &self.result
    }
}
