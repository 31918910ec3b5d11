//! The memory that a session needs and holds.

use tealight_model::Activations;

use super::session::Session;
use crate::config::limits;
use crate::storage::tensors::NamedTensors;
use crate::task::Task;

impl<T: Task> Session<T> {
    /// Estimated bytes of training by one of `n_ranks` processes: parameters, gradients, moments, and the activations
    /// of a batch.
    pub fn memory_needed(&self, n_ranks: usize) -> f64 {
        let estimate = self.task.estimate(&self.config.model);
        limits::memory(&self.config, &estimate, self.bytes_per_activation(), n_ranks)
    }

    /// The estimated largest batch whose training fits into `bytes`.
    pub fn largest_batch(&self, bytes: f64, activations: Activations) -> usize {
        let mut config = self.config.clone();
        config.training.activation_checkpointing = activations == Activations::Recomputed;
        let estimate = self.task.estimate(&config.model);
        let mut of_batch = |batch_size| {
            config.training.batch_size = batch_size;
            limits::memory(&config, &estimate, self.bytes_per_activation(), self.ranks.size())
        };
        let (of_none, of_one) = (of_batch(0), of_batch(1));
        ((bytes - of_none) / (of_one - of_none)).max(0.) as usize
    }

    /// Bytes of one activation.
    fn bytes_per_activation(&self) -> f64 {
        let dtype = self.config.training.precision.computes_in(self.params.device());
        dtype.size_in_bytes() as f64
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
