//! `[model]`: the description of a transformer, whatever it is used for.

use serde::{Deserialize, Serialize};

use crate::attention::{AttentionConfig, AttentionSpec, Reads};
use crate::choice::names::names;
use crate::error::{BuildError, BuildResult};
use crate::layers::feed_forward::{Activation, FeedForwardConfig};
use crate::layers::linear::Bias;
use crate::layers::norm::NormConfig;
use crate::params::init::{InitConfig, Initializer};
use crate::position::{AttentionNeeds, PositionConfig};

/// `[model]`. Sizes that data decide (`vocab_size`, `n_features`, `n_classes`) are not here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own in the TOML")]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Number of blocks of the encoder, in a model that has a decoder too; `n_layers` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_encoder_layers: Option<usize>,
    /// Number of attention heads; divides `d_model`, unless `head_dim` is set.
    pub n_heads: usize,
    /// Width of one head; d_model / n_heads when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// The longest sequence; what the task needs when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<usize>,
    /// Position i reads only j ≤ i: a decoder.
    pub causal: bool,
    /// Dropout on embeddings, attention weights, inner activations and sub-layer outputs.
    pub dropout: f64,
    /// Where the norm stands in a block.
    pub norm_placement: NormPlacement,
    /// Add each sub-layer's output to its input.
    pub residual: bool,
    /// Linear maps add a bias.
    pub bias: bool,
    /// The output layer is the transposed token embedding.
    pub tied_output: bool,
    /// Divide what the tied output reads by √d_model, as T5 does.
    pub scale_output: bool,
    /// `[model.embedding]`
    pub embedding: EmbeddingConfig,
    /// `[model.position]`
    pub position: PositionConfig,
    /// `[model.attention]`
    pub attention: AttentionConfig,
    /// `[model.encoder_attention]`: in the encoder of a model that has a decoder too, where it is not
    /// `[model.attention]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder_attention: Option<AttentionConfig>,
    /// `[model.cross_attention]`: how a decoder reads its encoder; softmax when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_attention: Option<AttentionConfig>,
    /// `[model.lm_head]`: what a masked language model has before its logits; BERT's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lm_head: Option<LmHeadConfig>,
    /// `[model.norm]`
    pub norm: NormConfig,
    /// `[model.feed_forward]`
    pub feed_forward: FeedForwardConfig,
    /// `[model.init]`
    pub init: InitConfig,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            d_model: 128,
            n_layers: 2,
            n_encoder_layers: None,
            n_heads: 4,
            head_dim: None,
            max_seq_len: None,
            causal: false,
            dropout: 0.,
            norm_placement: NormPlacement::Pre,
            residual: true,
            bias: true,
            tied_output: false,
            scale_output: false,
            embedding: EmbeddingConfig::default(),
            position: PositionConfig::default(),
            attention: AttentionConfig::default(),
            encoder_attention: None,
            cross_attention: None,
            lm_head: None,
            norm: NormConfig::default(),
            feed_forward: FeedForwardConfig::default(),
            init: InitConfig::default(),
        }
    }
}

names! {
    /// Where the norm stands in a sub-layer.
    pub enum NormPlacement {
        /// Before the sub-layer; the stack ends with one more norm.
        "pre" => Pre,
        /// After the residual sum.
        "post" => Post,
    }
}

/// `[model.embedding]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmbeddingConfig {
    /// Multiply token embeddings by √d_model (Vaswani et al. 2017, §3.4).
    pub scale: bool,
    /// Normalise the sum of token, type and position, as BERT does.
    pub norm: bool,
}

/// `[model.lm_head]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LmHeadConfig {
    /// A dense map, an activation and a norm before the output.
    pub transform: bool,
    /// φ of the transform.
    pub activation: Activation,
    /// Add a bias to the logits.
    pub bias: bool,
}

impl Default for LmHeadConfig {
    fn default() -> Self {
        Self { transform: true, activation: Activation::Gelu, bias: true }
    }
}

impl ModelConfig {
    /// Checks what does not depend on the data.
    pub fn validate(&self) -> BuildResult<()> {
        let sizes = [
            ("model.d_model", self.d_model),
            ("model.n_layers", self.n_layers),
            ("model.n_heads", self.n_heads),
            ("model.head_dim", self.head_dim.unwrap_or(1)),
            ("model.n_encoder_layers", self.n_encoder_layers.unwrap_or(1)),
        ];
        for (key, size) in sizes {
            if size == 0 {
                return Err(BuildError::config([key], format!("`{key}` = 0 must be positive")));
            }
        }
        let Self { d_model, n_heads, dropout, .. } = *self;
        if self.head_dim.is_none() && d_model % n_heads != 0 {
            return Err(BuildError::config(
                ["model.n_heads", "model.d_model"],
                format!("`model.n_heads` = {n_heads} does not divide `model.d_model` = {d_model}"),
            ));
        }
        if !(0. ..1.).contains(&dropout) {
            let key = "model.dropout";
            let message = format!("`{key}` = {dropout} must be at least 0 and less than 1");
            return Err(BuildError::config([key], message));
        }
        if self.scale_output && !self.tied_output {
            let message = "`model.scale_output` = true, but the output has weights of its own \
                           (`model.tied_output` = false), which begin at the size that they need";
            return Err(BuildError::config(["model.scale_output", "model.tied_output"], message));
        }
        Ok(())
    }

    /// The longest sequence the model must hold, given the longest that the task will feed it.
    pub fn resolve_max_seq_len(&self, seq_len: usize) -> BuildResult<usize> {
        match self.max_seq_len {
            Some(max_seq_len) if max_seq_len < seq_len => Err(BuildError::config(
                ["model.max_seq_len"],
                format!(
                    "`model.max_seq_len` = {max_seq_len} is less than the {seq_len} positions \
                     of a sequence in this task"
                ),
            )),
            Some(max_seq_len) => Ok(max_seq_len),
            None => Ok(seq_len),
        }
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or_else(|| self.d_model.checked_div(self.n_heads).unwrap_or(0))
    }

    /// What the self-attention layers read.
    pub fn reads(&self) -> Reads {
        if self.causal { Reads::Past } else { Reads::Everything }
    }

    /// Refuses settings that only a model with an encoder and a decoder has a place for.
    pub fn refuse_second_stack(&self) -> BuildResult<()> {
        let settings = [
            ("model.n_encoder_layers", self.n_encoder_layers.is_some()),
            ("model.encoder_attention", self.encoder_attention.is_some()),
            ("model.cross_attention", self.cross_attention.is_some()),
        ];
        for (key, is_set) in settings {
            if is_set {
                let message = format!(
                    "`{key}` is set, but this task's model has no encoder beside a decoder"
                );
                return Err(BuildError::config([key], message));
            }
        }
        Ok(())
    }

    /// Refuses the settings of a head that only masked language models have.
    pub fn refuse_lm_head(&self) -> BuildResult<()> {
        if self.lm_head.is_none() {
            return Ok(());
        }
        let key = "model.lm_head";
        let message = format!("`{key}` is set, but this task's model is no masked language model");
        Err(BuildError::config([key], message))
    }

    pub(crate) fn initializer(&self) -> BuildResult<Initializer> {
        Initializer::build(&self.init, self.n_layers)
    }

    pub(crate) fn linear_bias(&self) -> Bias {
        if self.bias { Bias::With } else { Bias::Without }
    }

    /// What an attention layer is told, whose settings stand in the table `key`. `init` is of this
    /// configuration.
    pub(crate) fn attention_spec<'a>(
        &self,
        init: &'a Initializer,
        key: &'a str,
        reads: Reads,
        [max_q_len, max_kv_len]: [usize; 2],
    ) -> AttentionSpec<'a> {
        AttentionSpec {
            d_model: self.d_model,
            n_heads: self.n_heads,
            head_dim: self.head_dim,
            max_q_len,
            max_kv_len,
            reads,
            dropout: self.dropout,
            bias: self.linear_bias(),
            position: AttentionNeeds::Nothing,
            packed: false,
            init,
            key,
        }
    }
}
