//! The backbone: embedding, positions, blocks.

use candle_core::Result;

use super::pictures::Pictures;
use crate::attention::Reads;
use crate::attention::onnx::{Layer, Output};
use crate::config::{EmbeddingConfig, ModelConfig, NormPlacement};
use crate::error::BuildResult;
use crate::layers::feed_forward::FeedForwardConfig;
use crate::onnx_graph::{OnnxResult, Parameters, Scope, Sequence, Value};
use crate::patches::Grid;
use crate::position::onnx::{Angles, Call};
use crate::position::{Position, PositionConfig, PositionSpec};

/// What a backbone reads.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    /// `(batch, q_len)`
    pub(super) ids: &'a Value,
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

/// The positions of a backbone.
#[derive(Debug)]
pub(super) struct Positions {
    max_seq_len: usize,
    pad_id: Option<u32>,
    /// Of `[model.position]`.
    shared: Position,
    /// Of each entry of `[[model.layers]]` that has its own; one `None` if there is no entry.
    own: Vec<Option<Position>>,
}

impl Positions {
    /// For sequences of up to `max_seq_len`: of tokens with a padding id, or of a picture with a `grid`.
    pub(super) fn build(
        config: &ModelConfig,
        parameters: &Parameters,
        max_seq_len: usize,
        pad_id: Option<u32>,
        grid: Option<Grid>,
    ) -> BuildResult<Self> {
        let spec = PositionSpec {
            d_model: config.d_model,
            n_heads: config.n_heads,
            head_dim: config.head_dim(),
            max_seq_len,
            causal: config.reads() == Reads::Past,
            has_padding: pad_id.is_some(),
            grid,
        };
        let build =
            |position: &PositionConfig| position.build(&spec, &parameters.builder().pp("position"));
        let own = config.layers.iter().map(|layer| layer.position.as_ref().map(build).transpose());
        let mut own = own.collect::<BuildResult<Vec<_>>>()?;
        if own.is_empty() {
            own.push(None);
        }
        Ok(Self { max_seq_len, pad_id, shared: build(&config.position)?, own })
    }

    /// Whether a call may choose the positions: in some layer they are rows of a table.
    pub(super) fn are_chosen(&self) -> bool {
        self.own.iter().any(|own| own.as_ref().unwrap_or(&self.shared).is_table())
    }

    /// The rotation of each entry.
    fn angles(&self, sequence: &Sequence<'_>) -> Result<Vec<Option<Angles>>> {
        let of = |position: &Position, name: &str| {
            let rotary = position.rotary.as_ref();
            rotary.map(|rotary| Angles::new(sequence, rotary, self.max_seq_len, name)).transpose()
        };
        let shared = of(&self.shared, "position")?;
        let entry = |(i, own): (usize, &Option<Position>)| match own {
            None => Ok(shared.clone()),
            Some(own) => of(own, &format!("layers.{i}.position")),
        };
        self.own.iter().enumerate().map(entry).collect()
    }
}

/// A backbone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backbone<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) sequence: &'a Sequence<'a>,
    pub(super) parameters: &'a Parameters,
    pub(super) positions: &'a Positions,
}

impl Backbone<'_> {
    /// Embeds the tokens and passes them through the blocks.
    pub(super) fn hidden(&self, inputs: &Inputs<'_>) -> OnnxResult<Hidden> {
        let Self { config, sequence, parameters, positions } = *self;
        let call = Call {
            sequence,
            max_seq_len: positions.max_seq_len,
            ids: inputs.ids,
            pad_id: positions.pad_id,
            at: parameters.at("position"),
        };
        let mut x = self.embedded(inputs, &call)?;
        let angles = positions.angles(sequence)?;
        let score_bias = positions.shared.score_bias.as_deref();
        let score_bias = score_bias.map(|encoding| call.score_bias(encoding)).transpose()?;
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
        if config.norm_placement != NormPlacement::Post {
            x = config.norm.onnx(sequence.graph, &parameters.at("final_norm"), &x)?;
        }
        Ok(Hidden { states: x, present })
    }

    /// The residual stream before the first block.
    fn embedded(&self, inputs: &Inputs<'_>, call: &Call<'_>) -> OnnxResult<Value> {
        let Self { config, sequence, parameters, positions } = *self;
        let (graph, at) = (sequence.graph, parameters.at("embedding"));
        let EmbeddingConfig { scale, norm: has_norm } = config.embedding;
        let Inputs { ids, token_type_ids, pictures, .. } = inputs;
        let mut x = match pictures {
            Some(pictures) => pictures.tokens(graph, &at, config.d_model)?,
            None => graph.rows(&at.at("token"), ids)?,
        };
        if scale {
            x = graph.scale(&x, (config.d_model as f64).sqrt());
        }
        if at.has("token_type.weight") {
            let table = at.constant(graph, "token_type.weight")?;
            let types = token_type_ids.clone().unwrap_or_else(|| graph.int(0));
            x = graph.add(&x, &graph.gather(&table, &types, 0));
        }
        if let Some(encoding) = &positions.shared.embedding {
            x = graph.add(&x, &encoding.onnx(call)?);
        }
        if has_norm { config.norm.onnx(graph, &at.at("norm"), &x) } else { Ok(x) }
    }

    /// Self-attention and feed-forward network of block `i` at `at`.
    fn block(&self, i: usize, x: &Value, layer: &Layer<'_>, at: &Scope<'_>) -> OnnxResult<Output> {
        let Self { config, sequence: Sequence { graph, .. }, .. } = *self;
        let own = at.at("attention_residual.norm");
        let has_norm = i > 0 || config.first_norm;
        let inner = if has_norm { self.before(i, x, &own)? } else { x.clone() };
        let Output { y, present } = config.attention_of(i).onnx(layer, &inner)?;
        let x = self.after(i, x, &y, &own)?;
        let own = at.at("feed_forward_residual.norm");
        if config.feed_forward == FeedForwardConfig::None {
            return Ok(Output { y: x, present });
        }
        let inner = self.before(i, &x, &own)?;
        let change = config.feed_forward.onnx(graph, &at.at("feed_forward"), &inner)?;
        let y = self.after(i, &x, &change, &own)?;
        Ok(Output { y, present })
    }

    /// The input of a sub-layer of block `i`: normalised under pre-norm.
    fn before(&self, i: usize, x: &Value, at: &Scope<'_>) -> OnnxResult<Value> {
        self.normed(i, NormPlacement::Pre, x, at)
    }

    /// The residual sum; it or the `change` is normalised, where the norms of block `i` stand there.
    fn after(&self, i: usize, x: &Value, change: &Value, at: &Scope<'_>) -> OnnxResult<Value> {
        let change = self.normed(i, NormPlacement::Output, change, at)?;
        let sum = if self.config.residual { self.sequence.graph.add(x, &change) } else { change };
        self.normed(i, NormPlacement::Post, &sum, at)
    }

    /// `x`, normalised if the norms of block `i` stand at `place`.
    fn normed(
        &self,
        i: usize,
        place: NormPlacement,
        x: &Value,
        at: &Scope<'_>,
    ) -> OnnxResult<Value> {
        if self.config.norm_placement_of(i) == place {
            return self.config.norm.onnx(self.sequence.graph, at, x);
        }
        Ok(x.clone())
    }
}
