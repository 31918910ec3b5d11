//! The model: an encoder, and the map from its pooled states to vectors of another length.

use candle_core::{Result as TensorResult, Tensor};
use candle_nn::VarBuilder;
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{Bias, BuildResult, Initializer, Linear, ModelConfig};

/// An encoder of texts, and the map behind its pooling, if vectors have another length than its width.
#[derive(Debug)]
pub struct Model {
    pub(super) encoder: Transformer,
    dense: Option<Linear>,
}

impl Model {
    /// An encoder with these settings, whose vectors have `dim` numbers.
    pub(super) fn build(
        config: &ModelConfig,
        spec: &MaskedLmSpec,
        dim: usize,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let dense = (dim != config.d_model).then(|| {
            let init = Initializer::build(&config.init, config.n_layers)?;
            let weight = init.weight(config.d_model);
            BuildResult::Ok(Linear::build(
                [config.d_model, dim],
                Bias::With,
                weight,
                &vb.pp("dense"),
            )?)
        });
        Ok(Self { encoder: MaskedLm::build_encoder(config, spec, vb)?, dense: dense.transpose()? })
    }

    /// `(n, d_model)` → `(n, dim)`
    pub(super) fn mapped(&self, pooled: Tensor) -> TensorResult<Tensor> {
        match &self.dense {
            None => Ok(pooled),
            Some(dense) => dense.forward(&pooled),
        }
    }
}

/// The parameters of the map to vectors of `dim` numbers.
pub(super) fn n_dense(config: &ModelConfig, dim: usize) -> usize {
    if dim == config.d_model { 0 } else { (config.d_model + 1) * dim }
}
