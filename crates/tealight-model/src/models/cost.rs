//! Estimates of a model's FLOPs, parameters and activations, before it is trained.
//!
//! ```text
//! forward FLOPs                2·Σ (scalars of a matrix)·(positions it is applied to) + attention
//! training FLOPs               3·forward: the backward pass computes two products for each one
//! ```
//!
//! With activation checkpointing, the kept activations are the inputs of all blocks and the inner
//! activations of one block.

use std::ops::Add;

use crate::attention::{AttentionCost, Reads};
use crate::config::ModelConfig;
use crate::layers::feed_forward::FeedForwardCost;
use crate::mode::Activations;
use crate::params::ParamStore;
use crate::params::init::Initializer;
use crate::transformer::spec::StackSpec;

/// The estimate for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Scalars in all parameters.
    pub n_parameters: usize,
    /// Positions of the sequence, including a `[CLS]`; for pairs, of source and target together.
    pub positions: usize,
    /// Operations of the forward pass over the sequence (a multiply-add counts as two).
    pub forward_flops: u64,
    /// Activations of f32 kept for the backward pass of the sequence.
    pub activations: usize,
    /// The same with activation checkpointing.
    pub recomputed: usize,
}

/// Numbers of positions of one sequence at which the parts of a model are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PositionCounts {
    /// Inputs from the data.
    pub(super) inputs: usize,
    /// Positions in the residual stream, including a `[CLS]`.
    pub(super) residual: usize,
    /// Positions at which the feed-forward network of the last block is applied.
    pub(super) last_feed_forward: usize,
    /// Positions at which the output layer is applied.
    pub(super) output: usize,
}

impl PositionCounts {
    /// All parts are applied at all `positions`.
    pub(super) fn everywhere(positions: usize) -> Self {
        Self {
            inputs: positions,
            residual: positions,
            last_feed_forward: positions,
            output: positions,
        }
    }

    /// The number of positions to which the matrix `name` of a model of this `config` is applied.
    pub(super) fn of_matrix(&self, name: &str, config: &ModelConfig) -> usize {
        match name.split_once('.') {
            Some(("embedding", "token.weight")) if config.tied_output => self.output,
            Some(("embedding", "features.weight")) => self.inputs,
            // Table lookups, not products.
            Some(("embedding" | "position", _)) => 0,
            Some(("lm_head" | "output" | "classifier", _)) => self.output,
            Some(("layer", rest)) if is_last_feed_forward(rest, config) => self.last_feed_forward,
            _ => self.residual,
        }
    }
}

impl Cost {
    /// The cost of a model of a single `stack`; `estimate` counts its activations.
    pub(super) fn single_stack(
        config: &ModelConfig,
        stack: &StackSpec<'_>,
        counts: PositionCounts,
        estimate: &Estimate,
        store: &ParamStore,
    ) -> Self {
        let attention = attention_cost(config, stack, [counts.residual, 0]);
        let applied = |name: &str| counts.of_matrix(name, config);
        Self::new(store, counts.residual, applied, &attention, estimate)
    }

    /// Estimates from the shapes of the parameters in `store`; `applied` returns the number of positions
    /// to which a matrix is applied, `attention` is the cost of all attention layers together, and
    /// `estimate` counts the activations.
    pub(super) fn new(
        store: &ParamStore,
        positions: usize,
        applied: impl Fn(&str) -> usize,
        attention: &AttentionCost,
        estimate: &Estimate,
    ) -> Self {
        let products: usize = store
            .iter()
            .filter(|(name, variable)| variable.rank() == 2 && !is_of_an_attention(name))
            .map(|(name, variable)| variable.elem_count() * applied(&name))
            .sum();
        Self {
            n_parameters: store.n_parameters(),
            positions,
            forward_flops: 2 * products as u64 + attention.flops as u64,
            activations: estimate.activations as usize,
            recomputed: estimate.recomputed as usize,
        }
    }

    /// FLOPs of the forward pass per position of the sequence.
    pub fn forward_flops_per_position(&self) -> u64 {
        self.forward_flops / self.positions.max(1) as u64
    }

    /// FLOPs of a training step per position.
    pub fn training_flops_per_position(&self) -> u64 {
        3 * self.forward_flops_per_position()
    }

    /// The scalars alone, of all parameters and of the activations.
    pub fn estimate(&self) -> Estimate {
        Estimate {
            parameters: self.n_parameters as f64,
            activations: self.activations as f64,
            recomputed: self.recomputed as f64,
        }
    }
}

/// Whether `name`, after `layer.`, is a parameter of the feed-forward network of the last block.
fn is_last_feed_forward(name: &str, config: &ModelConfig) -> bool {
    let mut parts = name.split('.');
    let block = parts.next().and_then(|block| block.parse::<usize>().ok());
    block.is_some_and(|block| block + 1 == config.n_layers) && parts.next() == Some("feed_forward")
}

fn is_of_an_attention(name: &str) -> bool {
    name.split('.').any(|part| part == "attention" || part == "cross_attention")
}

/// The cost of all attention layers of one stack together, on a sequence of `seq_len` positions with a
/// memory of `memory_len`.
pub fn attention_cost(
    config: &ModelConfig,
    stack: &StackSpec<'_>,
    [seq_len, memory_len]: [usize; 2],
) -> AttentionCost {
    let init = Initializer::FAN_IN;
    // Layers are built for at least one position; an estimate may be for none.
    let lens = [stack.max_seq_len.max(1); 2];
    let of_entry = |i: usize| {
        let (kind, key) = stack.attention_of(i);
        let of_layer = |i| {
            let spec = config.attention_spec(&init, &key, stack.reads, lens, stack.place(i));
            kind.cost(&spec, seq_len, seq_len)
        };
        // Layers i, i + period, i + 2·period, … The first layer of all may differ from the others.
        let n_layers = stack.n_layers.saturating_sub(i).div_ceil(stack.period());
        let n_first = n_layers.min(1);
        times(n_first, of_layer(i)) + times(n_layers - n_first, of_layer(i + stack.period()))
    };
    let mut cost = (0..stack.period()).map(of_entry).fold(AttentionCost::default(), Add::add);
    if let Some((own, max_memory_len)) = stack.cross_attention {
        let lens = [stack.max_seq_len, max_memory_len].map(|len| len.max(1));
        let spec = config.attention_spec(&init, own.key, Reads::Memory, lens, stack.place(0));
        cost = cost + times(stack.n_layers, own.config.cost(&spec, seq_len, memory_len));
    }
    cost
}

fn times(n_layers: usize, cost: AttentionCost) -> AttentionCost {
    let n_layers = n_layers as f64;
    AttentionCost {
        parameters: n_layers * cost.parameters,
        flops: n_layers * cost.flops,
        activations: n_layers * cost.activations,
    }
}

/// The scalars that training a model keeps, computed from its configuration before anything is allocated. In
/// floating point, so that no size overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Scalars in the parameters of attention, feed-forward matrices and the position table. Parameters
    /// whose size the data determine, biases and norms are left out.
    pub parameters: f64,
    /// Activations of f32 kept for the backward pass of one example.
    pub activations: f64,
    /// The same with activation checkpointing.
    pub recomputed: f64,
}

impl Estimate {
    /// The activations kept for the backward pass of one example.
    pub fn kept(&self, activations: Activations) -> f64 {
        match activations {
            Activations::Kept => self.activations,
            Activations::Recomputed => self.recomputed,
        }
    }

    /// A model of a single stack, for sequences of `positions`.
    pub fn single_stack(config: &ModelConfig, positions: usize) -> Self {
        let max_seq_len = config.max_seq_len.unwrap_or(positions);
        Self::of_stack(config, &StackSpec::single(config, max_seq_len), [positions, 0])
    }

    /// As [`Self::single_stack`], if only `n_read` of the `positions` are read after all blocks: the feed-forward
    /// network of the last block has activations at these only.
    pub(super) fn read_at(config: &ModelConfig, positions: usize, n_read: usize) -> Self {
        let all = Self::single_stack(config, positions);
        let of_position = feed_forward_cost(config).activations;
        let skipped = positions.saturating_sub(n_read) as f64 * of_position;
        // Activation checkpointing keeps the inner activations of one block at a time. Of several, the last is not the
        // largest.
        let recomputed = if config.n_layers > 1 { 0. } else { skipped };
        Self {
            parameters: all.parameters,
            activations: all.activations - skipped,
            recomputed: all.recomputed - recomputed,
        }
    }

    /// Layers outside the blocks, which activation checkpointing does not recompute.
    pub fn outside_blocks(parameters: f64, activations: f64) -> Self {
        Self { parameters, activations, recomputed: activations }
    }

    /// One stack with its positions, on a sequence and a memory of these `lens`.
    ///
    /// Activations per block: the attentions, a norm and a residual sum around each, and the feed-forward network with
    /// its own.
    pub fn of_stack(config: &ModelConfig, stack: &StackSpec<'_>, lens: [usize; 2]) -> Self {
        let (d_model, n_layers) = (config.d_model as f64, stack.n_layers as f64);
        let attention = attention_cost(config, stack, lens);
        let n_attentions = if stack.cross_attention.is_some() { 2. } else { 1. };
        let network = feed_forward_cost(config);
        let of_position = n_attentions * 2. * d_model + network.activations;
        let (seq_len, ends) = (lens[0] as f64, 2. * d_model);
        let blocks = attention.activations + seq_len * n_layers * of_position;
        let between = seq_len * n_layers * d_model;
        Self {
            parameters: attention.parameters
                + n_layers * network.parameters
                + config.position.settings().n_parameters(
                    config.d_model,
                    config.n_heads,
                    stack.max_seq_len,
                ),
            activations: seq_len * ends + blocks,
            recomputed: seq_len * ends + between + blocks / n_layers.max(1.),
        }
    }
}

impl Add for Estimate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            parameters: self.parameters + other.parameters,
            activations: self.activations + other.activations,
            recomputed: self.recomputed + other.recomputed,
        }
    }
}

/// What one feed-forward network needs, with its norm and its residual sum.
fn feed_forward_cost(config: &ModelConfig) -> FeedForwardCost {
    let network = config.feed_forward.settings().cost(config.d_model);
    let activations = 2. * config.d_model as f64 + network.activations;
    FeedForwardCost { activations, ..network }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::AttentionConfig;

    #[test]
    fn invalid_sizes_have_a_finite_estimate() {
        for kind in AttentionConfig::KINDS {
            let attention = AttentionConfig::default_of(kind.name).expect("a kind");
            for (n_heads, d_model) in [(0, 33), (3, 0), (64, 33), (3, 1 << 20)] {
                let config = ModelConfig {
                    d_model,
                    n_heads,
                    attention: attention.clone(),
                    ..ModelConfig::default()
                };
                for positions in [0, 1, 1 << 20] {
                    let Estimate { parameters, activations, recomputed } =
                        Estimate::single_stack(&config, positions);
                    let sizes = [parameters, activations, recomputed];
                    let label = format!("{}, {n_heads}, {d_model}, {positions}", kind.name);
                    assert!(sizes.iter().all(|size| size.is_finite() && *size >= 0.), "{label}");
                }
            }
        }
    }
}
