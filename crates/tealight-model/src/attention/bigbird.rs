//! BigBird's block-sparse attention (Zaheer et al. 2020, <https://arxiv.org/abs/2007.14062>).
//!
//! ```text
//! block I of queries reads the blocks I − 1, I, I + 1, the global ones, and n_random at random; global blocks read all
//! ```
//!
//! A key counts once, however often its block is listed. Global blocks are the first `n_global` ones ("internal
//! transformer construction"). The random lists are a function of `seed`, the layer and the number of blocks; a block
//! is drawn from those that are not listed yet. `transformers` uses the first and the last block, and switches to full
//! attention below (5 + 2r) blocks; here the lists hold at every length, so a sequence of few blocks is softmax
//! attention by itself. Padding at the end makes further blocks, so a block draws others: with `n_random` = 0 padding
//! changes nothing.
//!
//! Bidirectional, as in the paper. A pair of positions has no bias, because most are not scored.
//!
//! Cost: O(T·block·(3 + n_random + n_global)·d_model) time, and as many copies of keys and values in memory; global
//! blocks add O(T·block·n_global·d_model).

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::attention::{Layout, Options, weights};
use tealight_ops::block_sparse_attention::{BlockLists, block_sparse_attention};
use tealight_ops::rng::{Purpose, Stream};

use super::projection::{self, Heads, Projection, concat_heads};
use super::reduces_to::ReducesTo;
use super::{Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;

settings! {
    /// `[model.attention] kind = "bigbird"`
    pub struct Config {
        /// Positions of a block.
        pub block: usize = 64,
        /// Blocks that a block reads at random.
        pub n_random: usize = 3,
        /// Blocks at the start that read all and are read by all.
        pub n_global: usize = 1,
        /// Of the random lists.
        pub seed: usize = 0,
    }
}

impl Config {
    /// The positions of a block in a sequence of `len`, at most all.
    fn block_of(&self, len: usize) -> usize {
        self.block.min(len).max(1)
    }

    /// The lists of `n_blocks` blocks in layer `layer`.
    fn lists(&self, n_blocks: usize, layer: usize) -> Vec<Vec<u32>> {
        let stream = Stream::new(self.seed as u64, Purpose::Pattern).fork(layer as u64);
        let stream = stream.fork(n_blocks as u64);
        let of_block = |i: usize| {
            if i < self.n_global {
                return (0..n_blocks as u32).collect();
            }
            let is_near = |j: usize| j < self.n_global || i.abs_diff(j) <= 1;
            let near = (0..n_blocks).filter(|&j| is_near(j));
            let others = stream.fork(i as u64).permutation(n_blocks);
            let drawn = others.into_iter().filter(|&j| !is_near(j)).take(self.n_random);
            near.chain(drawn).map(|j| j as u32).collect()
        };
        (0..n_blocks).map(of_block).collect()
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        let why = "its blocks read later blocks";
        spec.refuse_causal("bigbird", why)?;
        spec.refuse_memory("bigbird", "a block of one sequence has no neighbours in another")?;
        spec.refuse_score_bias("bigbird", "most pairs of positions are not scored")?;
        spec.refuse_segments("bigbird", "documents do not begin at blocks")?;
        spec.positive("block", self.block)?;
        Ok(Box::new(BigBird {
            projection: Projection::build(spec, vb, Heads::default())?,
            config: self.clone(),
            layer: spec.layer.index,
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let block = self.block_of(kv_len);
        let n_blocks = kv_len.div_ceil(block) as f64;
        let n_global = (self.n_global as f64).min(n_blocks);
        let listed = (3. + self.n_random as f64 + self.n_global as f64).min(n_blocks);
        // Of the other blocks; and of the global ones, which read all.
        let pairs = (n_blocks - n_global) * listed + n_global * n_blocks;
        let (block, d_heads) = (block as f64, spec.d_heads() as f64);
        let core = AttentionCost {
            parameters: 0.,
            flops: 4. * pairs * block * block * d_heads,
            activations: 2. * pairs * block * d_heads + 2. * (spec.n_heads * q_len) as f64,
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn ignores_padding(&self) -> bool {
        self.n_random == 0
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        // The shortest list is that of the last block, which has one neighbour.
        let listed = self.n_random.saturating_add(self.n_global).saturating_add(2);
        let listed = listed.saturating_mul(self.block);
        let effect = format!("makes blocks that read all {len} positions of a sequence");
        (listed >= len).then(|| ReducesTo::softmax("block", &self.block, &effect))
    }
}

#[derive(Debug)]
struct BigBird {
    projection: Projection,
    config: Config,
    layer: usize,
    dropout: Dropout,
    output: Linear,
}

impl BigBird {
    fn lists(&self, len: usize) -> Result<BlockLists> {
        let block = self.config.block_of(len);
        BlockLists::new(block, self.config.lists(len.div_ceil(block), self.layer))
    }
}

/// 0 where a query reads a key, else −∞: `(len, len)` of f32
pub(super) fn pattern(
    len: usize,
    reads: impl Fn(usize, usize) -> bool,
    like: &Tensor,
) -> Result<Tensor> {
    let pairs = (0..len).flat_map(|i| (0..len).map(move |j| (i, j)));
    let mask = pairs.map(|(i, j)| if reads(i, j) { 0. } else { f32::NEG_INFINITY });
    Tensor::from_vec(mask.collect(), (len, len), like.device())
}

impl Attention for BigBird {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let padding = input.mask.padding_only()?;
        let [query, key, value] = self.projection.project_rotated(input)?;
        let lists = self.lists(query.dim(1)?)?;
        let draw = self.dropout.draw(input.mode);
        let heads = block_sparse_attention([&query, &key, &value], &lists, padding, draw)?;
        self.output.forward(&concat_heads(&heads)?)
    }

    fn heads(&self, input: &AttentionInput<'_>) -> Result<Option<[Tensor; 3]>> {
        self.projection.project_rotated(input).map(Some)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let key_padding_mask = input.mask.padding_only()?;
        let [query, key, _value] = self.projection.project_rotated(input)?;
        let len = query.dim(1)?;
        let lists = self.lists(len)?;
        let pattern = pattern(len, |i, j| lists.contains(i, j), &query)?;
        let attn_mask = Some(&pattern);
        let layout = Layout::HeadsLast;
        weights(
            &query,
            &key,
            &Options { key_padding_mask, attn_mask, layout, ..Options::default() },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_its_neighbours_the_first_block_and_others_at_random() {
        let config = Config { n_random: 2, n_global: 1, ..Config::default() };
        let lists = config.lists(9, 0);
        assert_eq!(lists[0], (0..9).collect::<Vec<_>>());
        for (i, list) in lists.iter().enumerate().skip(1) {
            let is_near = |&j: &u32| j == 0 || (j as usize).abs_diff(i) <= 1;
            assert_eq!(list.iter().filter(|&j| !is_near(j)).count(), 2, "{i}: {list:?}");
            assert!((0..9_u32).filter(is_near).all(|j| list.contains(&j)), "{i}: {list:?}");
        }
        assert_ne!(lists, config.lists(9, 1), "another layer draws other blocks");
        assert!(config.reduces_to(64 * 5).is_some());
        assert_eq!(config.reduces_to(64 * 5 + 1), None);
    }
}
