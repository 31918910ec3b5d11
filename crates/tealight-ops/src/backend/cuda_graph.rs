//! A pass over tensors of the same shapes again and again, recorded once: a CUDA graph.
//!
//! A small model's kernels are done sooner than a program can ask for them one by one. Of a recorded pass all
//! are asked for at once, with what they read in the places where it was the first time.

use std::result;

use candle_core::{Device, Error, Result, Tensor, bail};

use crate::backend::cuda::graph::{self, Graph, overwrite};
use crate::rng::Stream;

/// A pass that can be made again.
#[derive(Debug)]
pub struct CudaGraph<R> {
    inputs: Vec<Tensor>,
    result: R,
    graph: Graph,
}

/// Makes a pass that is soon to be recorded: what it needs on `device` stays there.
pub fn warm_up<R>(device: &Device, pass: impl FnOnce() -> R) -> R {
    graph::warm_up(device, pass)
}

impl<R> CudaGraph<R> {
    /// Records `pass`, and has it done for the first time.
    ///
    /// It reads `inputs` (at least one, contiguous, on one GPU), which [`replay`](Self::replay) overwrites. All
    /// else that it reads must be there before, and stay where it is: parameters may change, but not move. Its
    /// random numbers are those of forks of `stream`. It has to have been [warmed up](warm_up), so that kernels and
    /// tables are there.
    ///
    /// # Errors
    /// Without CUDA; and where the pass waits for the GPU or brings something to it, which cannot be recorded.
    /// Then nothing of it has been done.
    pub fn capture<E: From<Error>>(
        inputs: Vec<Tensor>,
        stream: Stream,
        pass: impl FnOnce() -> result::Result<R, E>,
    ) -> result::Result<Self, E> {
        let no = || Error::Msg("a pass is recorded over contiguous inputs".into());
        let are_fit = inputs.iter().all(Tensor::is_contiguous);
        let device = inputs.first().filter(|_| are_fit).ok_or_else(no)?.device().clone();
        let (graph, result) = Graph::capture(&device, stream, pass)?;
        Ok(Self { inputs, result, graph })
    }

    /// Whether the pass can be made again with these in place of its inputs.
    pub fn fits(&self, inputs: &[&Tensor]) -> bool {
        let like = |(a, b): (&Tensor, &&Tensor)| {
            a.shape() == b.shape() && a.dtype() == b.dtype() && b.is_contiguous()
        };
        self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(like)
    }

    /// Has the pass done again with `inputs` in place of those that it was recorded with, and with the random
    /// numbers of `stream`. Its result is in the same tensors as before: those that were given out earlier
    /// change with it.
    ///
    /// # Errors
    /// If the inputs do not [fit](Self::fits).
    pub fn replay(&mut self, inputs: &[&Tensor], stream: Stream) -> Result<&R> {
        if !self.fits(inputs) {
            bail!("a recorded pass with inputs of other shapes")
        }
        self.inputs.iter().zip(inputs).try_for_each(|(to, from)| overwrite(to, from))?;
        self.graph.replay(stream)?;
        Ok(&self.result)
    }

    /// What came of it last.
    pub fn result(&self) -> &R {
        &self.result
    }
}
