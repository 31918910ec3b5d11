//! What a model costs: estimates for choosing a size, before anything runs.
//!
//! ```text
//! forward FLOPs per position   2·(scalars of all matrices applied there) + attention cores / positions
//! training FLOPs               3·forward: the backward pass makes two products of each
//! training memory              16 bytes per parameter (weight, gradient, two moments)
//!                              + 4 bytes per number that the backward pass needs
//! ```

use crate::{ModelConfig, ParamStore};

/// The estimate for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Scalars in all parameters.
    pub n_parameters: usize,
    /// Positions of the sequence, a `[CLS]` included.
    pub positions: usize,
    /// Operations of the forward pass over the sequence (a multiply-add counts as two).
    pub forward_flops: u64,
    /// Numbers of f32 kept for the backward pass of the sequence.
    pub activations: usize,
}

impl Cost {
    /// Estimates from the parameters' shapes; `attention_flops` is that of the attention cores.
    pub fn estimate(
        config: &ModelConfig,
        store: &ParamStore,
        positions: usize,
        attention_flops: u64,
    ) -> Self {
        let matrices: usize = store
            .iter()
            .filter(|(name, _)| is_applied(name))
            .filter(|(_, variable)| variable.rank() == 2)
            .map(|(_, variable)| variable.elem_count())
            .sum();
        Self {
            n_parameters: store.n_parameters(),
            positions,
            forward_flops: 2 * (matrices * positions) as u64 + attention_flops,
            activations: positions * activations_per_position(config, positions),
        }
    }

    /// Forward operations per position of the sequence.
    pub fn forward_flops_per_position(&self) -> u64 {
        self.forward_flops / self.positions.max(1) as u64
    }

    /// Operations of one training step per position.
    pub fn training_flops_per_position(&self) -> u64 {
        3 * self.forward_flops_per_position()
    }

    /// Bytes that training needs for a batch of `batch` sequences.
    pub fn training_bytes(&self, batch: usize) -> usize {
        16 * self.n_parameters + 4 * batch * self.activations
    }
}

/// Tables are looked up, not multiplied.
fn is_applied(name: &str) -> bool {
    !(name.starts_with("embedding.token") || name.starts_with("position."))
}

/// Per block: two norms, Q, K and V twice (as projected, in heads), the scaled queries, the context
/// twice, two sub-layer outputs, two sums; the inner activations before and after φ; the scores
/// before and after softmax.
fn activations_per_position(config: &ModelConfig, positions: usize) -> usize {
    let ModelConfig { d_model, n_layers, n_heads, .. } = *config;
    let inner = config.feed_forward.d_ff(d_model).unwrap_or(0);
    let block = 15 * d_model + 2 * inner + 2 * n_heads * positions;
    2 * d_model + n_layers * block
}
