//! Embeddings of ids or features into the residual stream.
//!
//! ```text
//! tokens    x_t = E[id_t]·√d_model if scaled (+ token type) (+ position)   Vaswani et al. 2017, §3.4
//! features  x_t = W f_t (+ b) (+ position)
//! pictures  x = ([CLS]; patches) + positions                               Dosovitskiy et al. 2021, eq. (1)
//! ```
//!
//! Scaled: <https://arxiv.org/abs/1706.03762>. Pictures: <https://arxiv.org/abs/2010.11929>;
//! [`patches`](crate::patches) has the map from patches to vectors.
//!
//! The lookup of a padding id gives its row no gradient, as in PyTorch's
//! `nn.Embedding(padding_idx = …)`. A tied output does give it one.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::broadcast::broadcast_add;
use tealight_ops::embedding::{embedding, embedding_with_padding};

pub use crate::config::EmbeddingConfig as Config;
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::layers::norm::BoxNorm;
use crate::mode::Mode;
use crate::patches::{Grid, Patches, PatchesSpec, PictureSize};
use crate::position::{EmbeddingPosition, PaddedTokens, TokenPositions};

/// The kind of input and its sizes, which the data determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSpec {
    /// Ids below `vocab_size`, with types below `n_token_types` (`0` = no types).
    Tokens {
        /// Number of different ids.
        vocab_size: usize,
        /// Number of different token types, or `0`.
        n_token_types: usize,
        /// The padding id, if there is one.
        pad_id: Option<u32>,
    },
    /// Vectors of `n_features` numbers.
    Features {
        /// Width of the vectors.
        n_features: usize,
    },
    /// Pictures of one size, whose patches are the positions.
    Pictures {
        /// Their size.
        size: PictureSize,
        /// Whether a learnt vector, `[CLS]`, is the first position.
        has_cls: bool,
    },
}

impl InputSpec {
    /// What the inputs are, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Tokens { .. } => "token ids",
            Self::Features { .. } => "features",
            Self::Pictures { .. } => "pictures",
        }
    }
}

/// A batch of inputs.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids.
    Tokens {
        /// `(batch, seq_len)` of any integer dtype.
        input_ids: &'a Tensor,
        /// `(batch, seq_len)` of any integer dtype, only for models with token types; `None` means all 0.
        token_type_ids: Option<&'a Tensor>,
    },
    /// `(batch, seq_len, n_features)`
    Features(&'a Tensor),
    /// Normalised pixels `(batch, height, width, channels)`.
    Pictures(&'a Tensor),
    /// Embeddings without positions `(batch, seq_len, d_model)`, from a model that changes them. Their
    /// positions cannot depend on the tokens.
    Embedded(&'a Tensor),
}

impl<'a> Input<'a> {
    /// Token ids `(batch, seq_len)` without types.
    pub fn tokens(input_ids: &'a Tensor) -> Self {
        Self::Tokens { input_ids, token_type_ids: None }
    }

    /// What the inputs are, for messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Tokens { .. } => "token ids",
            Self::Features(_) => "features",
            Self::Pictures(_) => "pictures",
            Self::Embedded(_) => "embeddings",
        }
    }
}

/// The layers before the first block: lookup or linear map, positions, norm, dropout.
#[derive(Debug)]
pub struct Embedding {
    source: Source,
    norm: Option<BoxNorm>,
    dropout: Dropout,
}

#[derive(Debug)]
enum Source {
    Tokens(Tokens),
    Features(Linear),
    Pictures(Pictures),
}

#[derive(Debug)]
struct Pictures {
    patches: Patches,
    /// `(1, 1, d_model)`
    cls: Option<Tensor>,
    grid: Grid,
}

#[derive(Debug)]
struct Tokens {
    /// `(vocab_size, d_model)`
    token: Tensor,
    /// `(n_token_types, d_model)`
    token_type: Option<Tensor>,
    pad_id: Option<u32>,
    scale: Option<f64>,
}

impl Source {
    /// What the inputs are, for messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Tokens(_) => "token ids",
            Self::Features(_) => "features",
            Self::Pictures(_) => "pictures",
        }
    }
}

impl Tokens {
    /// `(batch, seq_len)` ids and types → `(batch, seq_len, d_model)`
    fn embed(&self, input_ids: &Tensor, token_type_ids: Option<&Tensor>) -> Result<Tensor> {
        let Self { token, token_type, pad_id, scale } = self;
        let x = match *pad_id {
            Some(pad_id) => embedding_with_padding(token, input_ids, pad_id)?,
            None => embedding(token, input_ids)?,
        };
        let x = if let Some(scale) = *scale { (x * scale)? } else { x };
        match (token_type, token_type_ids) {
            (None, None) => Ok(x),
            (Some(table), Some(ids)) => x + embedding(table, ids)?,
            (Some(table), None) => broadcast_add(&x, &table.get(0)?),
            (None, Some(_)) => bail!("token_type_ids are given to a model without token types"),
        }
    }
}

impl Pictures {
    fn build(
        config: &ModelConfig,
        size: PictureSize,
        has_cls: bool,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let (kind, init, d_model) = (config.patches()?, config.initializer()?, config.d_model);
        let [rows, columns] = kind.grid(size)?;
        let spec = PatchesSpec { size, d_model, bias: config.linear_bias(), init: &init };
        let patches = kind.build(&spec, &vb.pp("patches"))?;
        let cls = has_cls.then(|| vb.get_with_hints((1, 1, d_model), "cls", init.embedding()));
        let grid = Grid { n_prefix: usize::from(has_cls), rows, columns };
        Ok(Self { patches, cls: cls.transpose()?, grid })
    }

    /// `(batch, height, width, channels)` → `(batch, n_tokens, d_model)`
    fn embed(&self, pictures: &Tensor) -> Result<Tensor> {
        let x = self.patches.forward(pictures)?;
        let Some(cls) = &self.cls else { return Ok(x) };
        let (batch, _n_patches, d_model) = x.dims3()?;
        Tensor::cat(&[&cls.broadcast_as((batch, 1, d_model))?, &x], 1)
    }
}

impl Embedding {
    /// Builds the embedding tables, the linear map or the patches for the inputs of `spec` at `shared`, which several
    /// embeddings may use. The norm and the dropout are at `vb`.
    pub fn build(
        config: &ModelConfig,
        spec: InputSpec,
        shared: &VarBuilder<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let d_model = config.d_model;
        let init = config.initializer()?;
        if !matches!(spec, InputSpec::Pictures { .. }) {
            config.refuse_patches()?;
        }
        let source = match spec {
            InputSpec::Tokens { vocab_size, n_token_types, pad_id } => {
                let table = |rows, name, values| {
                    shared.pp(name).get_with_hints((rows, d_model), "weight", values)
                };
                // Multiplied by √d_model as inputs, or used as the output's weights.
                let is_multiplied =
                    config.embedding.scale || (config.tied_output && !config.scale_output);
                let token =
                    if is_multiplied { init.scaled_embedding(d_model) } else { init.embedding() };
                let types = || table(n_token_types, "token_type", init.embedding());
                Source::Tokens(Tokens {
                    token: table(vocab_size, "token", token)?,
                    token_type: (n_token_types > 0).then(types).transpose()?,
                    pad_id,
                    scale: config.embedding.scale.then(|| (d_model as f64).sqrt()),
                })
            }
            InputSpec::Features { n_features } => {
                let weight = init.weight(n_features);
                let (shape, bias) = ([n_features, d_model], config.linear_bias());
                Source::Features(Linear::build(shape, bias, weight, &shared.pp("features"))?)
            }
            InputSpec::Pictures { size, has_cls } => {
                Source::Pictures(Pictures::build(config, size, has_cls, shared)?)
            }
        };
        let norm = config.embedding.norm.then(|| config.norm.build(d_model, &vb.pp("norm")));
        let dropout = Dropout::new(config.dropout, vb);
        Ok(Self { source, norm: norm.transpose()?, dropout })
    }

    /// `(batch, seq_len)` ids, `(batch, seq_len, n_features)` or `(batch, height, width, channels)` →
    /// `(batch, seq_len, d_model)`, before positions.
    pub fn embed(&self, input: &Input<'_>) -> Result<Tensor> {
        match (&self.source, input) {
            (Source::Tokens(tokens), Input::Tokens { input_ids, token_type_ids }) => {
                tokens.embed(input_ids, *token_type_ids)
            }
            (Source::Features(linear), Input::Features(features)) => {
                linear.forward(&features.to_dtype(linear.dtype())?)
            }
            (Source::Pictures(own), Input::Pictures(pictures)) => own.embed(pictures),
            (_, Input::Embedded(x)) => Ok((*x).clone()),
            (source, input) => bail!("this model takes {}, not {}", source.name(), input.name()),
        }
    }

    /// The padding id, if the inputs are tokens that have one.
    pub fn pad_id(&self) -> Option<u32> {
        match self.source {
            Source::Tokens(Tokens { pad_id, .. }) => pad_id,
            Source::Features(_) | Source::Pictures(_) => None,
        }
    }

    /// Where the patches are among the positions, if the inputs are pictures.
    pub fn grid(&self) -> Option<Grid> {
        match &self.source {
            Source::Pictures(pictures) => Some(pictures.grid),
            Source::Tokens(_) | Source::Features(_) => None,
        }
    }

    /// Adds positions, normalises and applies dropout: `x (batch, seq_len, d_model)`, the embeddings of `input`
    /// from position `start` on → the same shape.
    pub fn add_positions(
        &self,
        mut x: Tensor,
        input: &Input<'_>,
        position: Option<&dyn EmbeddingPosition>,
        start: usize,
        mode: Mode,
    ) -> Result<Tensor> {
        if let Some(position) = position {
            let (_batch, seq_len, _d_model) = x.dims3()?;
            let padded = match (self.pad_id(), input) {
                (Some(pad_id), Input::Tokens { input_ids, .. }) => {
                    Some(PaddedTokens { input_ids, pad_id })
                }
                _ => None,
            };
            let places = TokenPositions { positions: start..start + seq_len, padded };
            x = broadcast_add(&x, &position.vectors(&places)?)?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        self.dropout.forward(&x, mode)
    }

    /// `(vocab_size, d_model)`, the weights of a tied output.
    pub fn token_table(&self) -> Result<&Tensor> {
        match &self.source {
            Source::Tokens(Tokens { token, .. }) => Ok(token),
            source => bail!("{} have no tied output", source.name()),
        }
    }
}
