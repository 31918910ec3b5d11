//! The memory that a session needs and holds.

use tealight_model::Activations;

use super::session::Session;
use crate::config::memory::{self, BytesPerScalar};
use crate::error::Result;
use crate::storage::tensors::NamedTensors;
use crate::task::Task;

impl<T: Task> Session<T> {
    /// Estimated bytes of training by one of `n_ranks` processes: parameters, gradients, moments, and the activations
    /// of a batch.
    pub fn memory_needed(&self, n_ranks: usize) -> f64 {
        let estimate = self.task.estimate(&self.config.model);
        let activations = memory::activations(&self.config, &estimate);
        self.bytes_per_scalar(n_ranks).total(estimate.parameters, activations)
    }

    /// Checks that memory suffices for a batch in one of `n_ranks` processes; on the CPU only.
    pub fn check_memory(&self, n_ranks: usize) -> Result<()> {
        let Self { config, task, params, .. } = self;
        if !params.device().is_cpu() {
            return Ok(());
        }
        memory::check_batch(config, &task.estimate(&config.model), task.seq_len(), n_ranks)
    }

    /// The estimated largest batch whose training fits into `bytes`.
    pub fn largest_batch(&self, bytes: f64, activations: Activations) -> usize {
        let estimate = self.task.estimate(&self.config.model);
        let bytes_per_scalar = self.bytes_per_scalar(self.ranks.size());
        let of_parameters = bytes_per_scalar.total(estimate.parameters, 0.);
        let of_example = bytes_per_scalar.total(0., estimate.kept(activations));
        ((bytes - of_parameters) / of_example).max(0.) as usize
    }

    fn bytes_per_scalar(&self, n_ranks: usize) -> BytesPerScalar {
        let dtype = self.config.training.precision.computes_in(self.params.device());
        BytesPerScalar::of_run(&self.config, dtype, n_ranks)
    }

    /// Bytes of parameters and optimizer state, which are already allocated.
    pub fn bytes_held(&self) -> u64 {
        bytes(&self.params.tensors()) + bytes(&self.optimizer.state())
    }

    /// Bytes of a checkpoint's tensors.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.bytes_held() + self.ema.as_ref().map_or(0, |ema| bytes(&ema.state()))
    }
}

fn bytes(tensors: &NamedTensors) -> u64 {
    tensors.values().map(|x| (x.elem_count() * x.dtype().size_in_bytes()) as u64).sum()
}
