//! The backbone: embedding, positions, blocks.

use candle_core::Result;

use super::attention::{Layer, Output, attention};
use super::layers::{feed_forward, norm};
use super::pictures::Pictures;
use super::position::{self, Angles, Tokens};
use crate::attention::Reads;
use crate::config::{EmbeddingConfig, LayerConfig, ModelConfig, NormPlacement};
use crate::layers::feed_forward::FeedForwardConfig;
use crate::onnx_graph::{Graph, OnnxResult, Parameters, Scope, Sequence, Value};
use crate::position::rotary::Rotary;
use crate::position::{Position, PositionConfig, PositionSpec};

/// What a backbone reads.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub(super) tokens: Tokens<'a>,
    /// Of a model of pictures, which does not look its tokens up.
    pub(super) pictures: Option<&'a Pictures<'a>>,
    /// `(batch, q_len)`, of models with several token types.
    pub(super) token_type_ids: Option<Value>,
    /// For each layer the keys and values of the past positions, if there is a cache.
    pub(super) past: Vec<[Value; 2]>,
}

/// What a backbone gives.
#[derive(Debug)]
pub(super) struct Hidden {
    /// `(batch, q_len, d_model)`
    pub(super) states: Value,
    /// For each layer keys and values of all positions, if there is a cache.
    pub(super) present: Vec<[Value; 2]>,
}

/// A backbone for sequences of up to `max_seq_len`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backbone<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) sequence: &'a Sequence<'a>,
    pub(super) parameters: &'a Parameters,
    pub(super) max_seq_len: usize,
}

impl Backbone<'_> {
    /// Embeds the tokens and passes them through the blocks.
    pub(super) fn hidden(&self, inputs: &Inputs<'_>) -> OnnxResult<Hidden> {
        let Self { config, sequence, parameters, .. } = *self;
        let position = self.position(inputs)?;
        let mut x = self.embedded(inputs, &position)?;
        let angles = self.angles(&position, inputs)?;
        let at = parameters.at("position");
        let bias = |encoding: &_| position::score_bias(sequence, encoding, self.max_seq_len, &at);
        let score_bias = position.score_bias.as_deref().map(bias).transpose()?;
        let mut present = Vec::new();
        for index in 0..config.n_layers {
            let layer = Layer {
                sequence,
                at: parameters.at(format!("layer.{index}.attention")),
                n_heads: config.n_heads,
                head_dim: config.head_dim(),
                angles: angles[index % angles.len()].as_ref(),
                score_bias: score_bias.as_ref(),
                past: inputs.past.get(index).cloned(),
            };
            let at = parameters.at(format!("layer.{index}"));
            let output = self.block(index, &x, &layer, &at)?;
            x = output.y;
            present.extend(output.present);
        }
        if config.norm_placement == NormPlacement::Pre {
            x = norm(sequence.graph, &config.norm, &parameters.at("final_norm"), &x)?;
        }
        Ok(Hidden { states: x, present })
    }

    /// The rotation of each entry of `[[model.layers]]`, of which there is one if it is empty.
    fn angles(&self, position: &Position, inputs: &Inputs<'_>) -> OnnxResult<Vec<Option<Angles>>> {
        let Self { config, sequence, .. } = *self;
        let of = |rotary: &Option<Rotary>, name: &str| {
            let rotary = rotary.as_ref();
            rotary.map(|rotary| Angles::new(sequence, rotary, self.max_seq_len, name)).transpose()
        };
        let shared = of(&position.rotary, "position")?;
        if config.layers.is_empty() {
            return Ok(vec![shared]);
        }
        let entry = |(i, layer): (usize, &LayerConfig)| match &layer.position {
            None => Ok(shared.clone()),
            Some(own) => {
                let built = self.built(own, inputs)?;
                Ok(of(&built.rotary, &format!("layers.{i}.position"))?)
            }
        };
        config.layers.iter().enumerate().map(entry).collect()
    }

    fn position(&self, inputs: &Inputs<'_>) -> OnnxResult<Position> {
        self.built(&self.config.position, inputs)
    }

    fn built(&self, position: &PositionConfig, inputs: &Inputs<'_>) -> OnnxResult<Position> {
        let Self { config, parameters, max_seq_len, .. } = *self;
        let spec = PositionSpec {
            d_model: config.d_model,
            n_heads: config.n_heads,
            head_dim: config.head_dim(),
            max_seq_len,
            causal: config.reads() == Reads::Past,
            has_padding: inputs.tokens.pad_id.is_some(),
            grid: inputs.pictures.map(|pictures| pictures.grid),
        };
        Ok(position.build(&spec, &parameters.builder().pp("position"))?)
    }

    /// The residual stream before the first block.
    fn embedded(&self, inputs: &Inputs<'_>, position: &Position) -> Result<Value> {
        let Self { config, sequence, parameters, max_seq_len } = *self;
        let (graph, at) = (sequence.graph, parameters.at("embedding"));
        let EmbeddingConfig { scale, norm: has_norm } = config.embedding;
        let Inputs { tokens, token_type_ids, pictures, .. } = inputs;
        let mut x = match pictures {
            Some(pictures) => pictures.tokens(graph, &at, config.d_model)?,
            None => graph.gather(&at.at("token").constant(graph, "weight")?, tokens.ids, 0),
        };
        if scale {
            x = graph.scale(&x, (config.d_model as f64).sqrt());
        }
        if at.has("token_type.weight") {
            let table = at.constant(graph, "token_type.weight")?;
            let types = token_type_ids.clone().unwrap_or_else(|| graph.int(0));
            x = graph.add(&x, &graph.gather(&table, &types, 0));
        }
        if let Some(encoding) = &position.embedding {
            let (kind, encoding, at) =
                (&config.position, encoding.as_ref(), parameters.at("position"));
            let vectors = position::vectors(sequence, kind, encoding, *tokens, max_seq_len, &at)?;
            x = graph.add(&x, &vectors);
        }
        if has_norm { norm(graph, &config.norm, &at.at("norm"), &x) } else { Ok(x) }
    }

    /// Self-attention and feed-forward network of block `i` at `at`.
    fn block(&self, i: usize, x: &Value, layer: &Layer<'_>, at: &Scope<'_>) -> OnnxResult<Output> {
        let Self { config, sequence: Sequence { graph, .. }, .. } = *self;
        let own = at.at("attention_residual.norm");
        let has_norm = i > 0 || config.first_norm;
        let inner = if has_norm { self.before(x, &own)? } else { x.clone() };
        let Output { y, present } = attention(config.attention_of(i), layer, &inner)?;
        let x = self.after(graph, x, &y, &own)?;
        let own = at.at("feed_forward_residual.norm");
        if matches!(config.feed_forward, FeedForwardConfig::None) {
            return Ok(Output { y: x, present });
        }
        let inner = self.before(&x, &own)?;
        let change = feed_forward(graph, &config.feed_forward, &at.at("feed_forward"), &inner)?;
        let y = match change {
            Some(change) => self.after(graph, &x, &change, &own)?,
            None => x,
        };
        Ok(Output { y, present })
    }

    /// The input of a sub-layer: normalised under pre-norm.
    fn before(&self, x: &Value, at: &Scope<'_>) -> Result<Value> {
        match self.config.norm_placement {
            NormPlacement::Pre => norm(self.sequence.graph, &self.config.norm, at, x),
            NormPlacement::Post => Ok(x.clone()),
        }
    }

    /// The residual sum, normalised under post-norm.
    fn after(&self, graph: &Graph, x: &Value, change: &Value, at: &Scope<'_>) -> Result<Value> {
        let sum = if self.config.residual { graph.add(x, change) } else { change.clone() };
        match self.config.norm_placement {
            NormPlacement::Pre => Ok(sum),
            NormPlacement::Post => norm(graph, &self.config.norm, at, &sum),
        }
    }
}
