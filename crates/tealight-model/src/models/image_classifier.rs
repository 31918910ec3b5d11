//! Classification of pictures: the Vision Transformer (Dosovitskiy et al. 2021, <https://arxiv.org/abs/2010.11929>)
//! and, with `model.patches = "convolution"` and `task.read_out = "attention"`, the Compact Convolutional Transformer
//! (Hassani et al. 2021, <https://arxiv.org/abs/2104.05704>).
//!
//! ```text
//! z_0 = ([CLS]; x_1 E; …; x_N E) + positions        eq. (1); [CLS] only under the read-out `cls`
//! z_l = block_l(z_{l−1})                            eq. (2), (3)
//! P(class | picture) = softmax(W C)                 eq. (4); C: see the read-outs
//! ```
//!
//! The number of positions follows from the pictures and the patches, so `model.max_seq_len` has no use here.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::cost::{Cost, Estimate, PositionCounts};
use super::read_out::{ReadOut, ReadOutHead, refuse_causal_cls};
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::patches::{Grid, LayerCost, PictureSize};
use crate::transformer::Transformer;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Input, InputSpec};
use crate::transformer::spec::StackSpec;

/// Settings that data and task determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageClassifierSpec {
    /// The size of all pictures.
    pub size: PictureSize,
    /// Number of classes.
    pub n_classes: usize,
    /// Which hidden state is classified.
    pub read_out: ReadOut,
}

impl ImageClassifierSpec {
    fn has_cls(&self) -> bool {
        self.read_out == ReadOut::Cls
    }

    /// Where the patches are among the positions.
    ///
    /// # Errors
    /// If `[model.patches]` is absent, or the patches do not fit the pictures.
    pub fn grid(&self, config: &ModelConfig) -> BuildResult<Grid> {
        let [rows, columns] = config.patches()?.grid(self.size)?;
        Ok(Grid { n_prefix: usize::from(self.has_cls()), rows, columns })
    }
}

/// A backbone of pictures, a read-out and a head that maps to the classes.
#[derive(Debug)]
pub struct ImageClassifier {
    transformer: Transformer,
    grid: Grid,
    head: ReadOutHead,
}

impl ImageClassifier {
    /// Builds the backbone, `pooling` of the read-out `attention`, and `classifier`.
    pub fn build(
        config: &ModelConfig,
        spec: &ImageClassifierSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let grid = spec.grid(config)?;
        let transformer = Self::build_backbone(config, spec, vb)?;
        let head = ReadOutHead::build(config, spec.n_classes, spec.read_out, vb)?;
        Ok(Self { transformer, grid, head })
    }

    /// Builds the backbone alone: embedding, positions and blocks.
    pub fn build_backbone(
        config: &ModelConfig,
        spec: &ImageClassifierSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Transformer> {
        let n_tokens = spec.grid(config)?.n_tokens();
        refuse(config, spec, n_tokens)?;
        let input = InputSpec::Pictures { size: spec.size, has_cls: spec.has_cls() };
        Transformer::build(config, input, &StackSpec::single(config, n_tokens), vb)
    }

    /// Normalised pixels `(batch, height, width, channels)` → logits `(batch, n_classes)`
    pub fn forward(&self, pictures: &Tensor, mode: Mode) -> Result<Tensor> {
        let mask = Mask::none();
        let context = BlockInput::new(&mask, mode);
        let hidden = self.transformer.forward(&Input::Pictures(pictures), &context)?; // (batch, n_tokens, d_model)
        self.head.forward(&hidden, &mask, mode)
    }

    /// The attention weights of each layer; [`Self::grid`] says which positions are which patches.
    pub fn attention_maps(&self, pictures: &Tensor) -> Result<Vec<BlockMaps>> {
        let mask = Mask::none();
        let context = BlockInput::new(&mask, Mode::Eval);
        self.transformer.attention_maps(&Input::Pictures(pictures), &context)
    }

    /// The share of each position in the state that is classified, whose sum is 1: 1 of `[CLS]`, equal shares of the
    /// mean, or the weights of the read-out `attention`. `(batch, height, width, channels)` → `(batch, n_tokens)`
    pub fn read_out_shares(&self, pictures: &Tensor) -> Result<Tensor> {
        let mask = Mask::none();
        let context = BlockInput::new(&mask, Mode::Eval);
        self.head.shares(&self.transformer.forward(&Input::Pictures(pictures), &context)?)
    }

    /// Where the patches are among the positions.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Which hidden state is classified.
    pub fn read_out(&self) -> ReadOut {
        self.head.read_out()
    }

    /// The embeddings, positions and blocks.
    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// The memory that the model of this `config` needs. Patches that do not fit count as none: [`Self::build`] refuses
    /// them.
    pub fn estimate(config: &ModelConfig, spec: &ImageClassifierSpec) -> Estimate {
        let n_tokens = spec.grid(config).map_or(0, |grid| grid.n_tokens());
        let patches = costs(config, spec)
            .into_iter()
            .map(|layer: LayerCost| Estimate::outside_blocks(layer.parameters, layer.activations));
        patches.fold(Estimate::single_stack(config, n_tokens), |sum, layer| sum + layer)
    }

    /// The cost of training on one picture, with the parameters in `store`.
    pub fn cost(config: &ModelConfig, spec: &ImageClassifierSpec, store: &ParamStore) -> Cost {
        let n_tokens = spec.grid(config).map_or(0, |grid| grid.n_tokens());
        let counts = PositionCounts { output: 1, ..PositionCounts::everywhere(n_tokens) };
        let stack = StackSpec::single(config, n_tokens);
        let estimate = Self::estimate(config, spec);
        let mut cost = Cost::single_stack(config, &stack, counts, &estimate, store);
        let patches: f64 = costs(config, spec).iter().map(|layer| layer.flops).sum();
        cost.forward_flops += patches as u64;
        cost
    }
}

fn costs(config: &ModelConfig, spec: &ImageClassifierSpec) -> Vec<LayerCost> {
    let patches = config.patches.as_ref();
    patches.map_or_else(Vec::new, |patches| patches.costs(spec.size, config.d_model))
}

/// Refuses settings that a classifier of pictures of `n_tokens` positions cannot honour.
fn refuse(config: &ModelConfig, spec: &ImageClassifierSpec, n_tokens: usize) -> BuildResult<()> {
    config.refuse_second_stack()?;
    config.refuse_lm_head()?;
    refuse_causal_cls(config, spec.has_cls(), "position")?;
    if config.max_seq_len.is_some_and(|len| len != n_tokens) {
        let key = "model.max_seq_len";
        let message = format!(
            "`{key}` is set, but a picture of {} has {n_tokens} positions under `model.patches`: leave it out",
            spec.size
        );
        return Err(BuildError::config([key, "model.patches.kind"], message));
    }
    if config.embedding.scale {
        let key = "model.embedding.scale";
        let message = format!("`{key}` = true multiplies token embeddings, and pictures have none");
        return Err(BuildError::config([key], message));
    }
    match config.required_len() {
        Some(len) if len != n_tokens => {
            let key = "model.attention.kind";
            let message = format!(
                "`{key}` = \"{}\" is set to sequences of {len} positions, but a picture of {} has {n_tokens} positions",
                config.attention_kinds(),
                spec.size
            );
            Err(BuildError::config([key, "model.patches.kind"], message))
        }
        _ => Ok(()),
    }
}
