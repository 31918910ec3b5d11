//! Models as files of ONNX (<https://onnx.ai>): graphs of standard operators with the parameters, which run without
//! Tealight.
//!
//! ```text
//! inputs    input_ids, attention_mask (1 = real), token_type_ids (int64)
//!           with a cache also past_key_values.N.{key, value}, and position_ids if positions are rows of a table
//!           of pictures: pixel_values (batch, channels, height, width), normalised
//! outputs   logits, or last_hidden_state of an encoder, pooled also as sentence_embedding; present.N.{key, value}
//! ```
//!
//! The names are those of Optimum and transformers.js. Batch and length are chosen by each call. The graph is built
//! from a [`ModelConfig`] and the names of the parameters, so it does not depend on a family of `transformers`. A
//! parameter that no part uses is an error, so a part that this export does not know cannot be left out silently. A
//! query that may read nothing gets zeros, as in Tealight.
//!
//! This module writes no file.

mod head;
mod pictures;
mod pooled;
mod transformer;

use std::collections::BTreeMap;

use candle_core::Tensor;

pub use crate::onnx_graph::{OnnxError, OnnxResult, Weights, proto};

use crate::config::ModelConfig;
use crate::models::classifier::ClassifierSpec;
use crate::models::image_classifier::ImageClassifierSpec;
use crate::models::pooling::VectorSpec;
use crate::models::spec::ModelSpec;
use crate::onnx_graph::{Axis, Graph, Lengths, Parameters, Sequence, Type, Value};
use crate::patches::PictureSize;
use pictures::Pictures;
use transformer::{Backbone, Hidden, Inputs, Positions};

/// Whether a decoder takes and gives the keys and values of all positions, so that a call reads only new tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Each call reads the whole sequence.
    #[default]
    Without,
    /// `past_key_values.N.{key, value}` and `present.N.{key, value} (batch, n_kv_heads, positions, head_dim)`. The
    /// first call passes 0 positions. If positions are rows of a table, `position_ids (batch, seq_len)` names them.
    With,
}

/// What a graph contains besides the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Whether a decoder takes and gives keys and values.
    pub cache: Cache,
    /// The vectors of texts of an encoder. The graph then also has the outputs `token_embeddings`, the hidden states, and
    /// `sentence_embedding (batch, dim)`, the names of sentence-transformers.
    pub vectors: Option<&'a VectorSpec>,
    /// The format of weights.
    pub weights: Weights,
}

/// The bytes of the file for the model of this `config` with these `parameters`.
///
/// # Errors
/// If this export has no such kind of model; if the settings or parameters are no such model; if ONNX cannot express a
/// part of it, by name; if the parameters take more than 2 GiB; or if `vectors` are asked of a model that is no encoder, or
/// do not fit its width.
pub fn export(
    config: &ModelConfig,
    spec: &ModelSpec,
    options: Options<'_>,
    parameters: &BTreeMap<String, Tensor>,
) -> OnnxResult<Vec<u8>> {
    let Options { cache, vectors, weights } = options;
    lists_every_setting(config);
    check(spec, cache)?;
    if vectors.is_some() && !matches!(spec, ModelSpec::Encoder(_)) {
        let reason = "only the hidden states of an encoder are pooled to vectors of texts";
        return Err(OnnxError::unsupported(spec.to_string(), reason));
    }
    let parameters =
        Parameters::from_requests(parameters, |vb| spec.request_parameters(config, vb))?;
    let graph = Graph::new(weights);
    Writer { graph: &graph, config, spec, cache, vectors, parameters: &parameters }.write()?;
    parameters.check_all_taken()?;
    graph.into_bytes()
}

/// Does nothing at run time: a setting that is added to [`ModelConfig`] does not compile here until this export reads
/// it.
fn lists_every_setting(config: &ModelConfig) {
    let ModelConfig {
        // Read where the graph is built.
        d_model: _,
        n_layers: _,
        n_heads: _,
        head_dim: _,
        max_seq_len: _,
        causal: _,
        norm_placement: _,
        residual: _,
        tied_output: _,
        scale_output: _,
        embedding: _,
        position: _,
        attention: _,
        layers: _,
        first_norm: _,
        lm_head: _,
        classifier: _,
        norm: _,
        feed_forward: _,
        patches: _,
        // Seen in the parameters.
        bias: _,
        // Without effect on a trained model.
        dropout: _,
        stochastic_depth: _,
        init: _,
        // Of encoder-decoders, which are not exported.
        n_encoder_layers: _,
        encoder_attention: _,
        cross_attention: _,
    } = config;
}

/// Refuses kinds of models that this export does not write, and a cache of a model that has none.
fn check(spec: &ModelSpec, cache: Cache) -> OnnxResult<()> {
    let refused = |reason: &str| Err(OnnxError::unsupported(spec.to_string(), reason));
    match spec {
        ModelSpec::Seq2Seq { .. } => refused("its export is not supported"),
        ModelSpec::Forecaster(_) => refused("only Tealight encodes its inputs"),
        ModelSpec::ImageClassifier(spec) if spec.n_classes == 0 => refused("it has no outputs"),
        ModelSpec::CausalLm(_) => Ok(()),
        _ if cache == Cache::With => {
            Err(OnnxError::NoCache("only a causal language model has a cache of keys and values"))
        }
        _ => Ok(()),
    }
}

const BATCH: Axis = Axis::Named("batch_size");
const LEN: Axis = Axis::Named("sequence_length");
const PAST_LEN: Axis = Axis::Named("past_sequence_length");
const TOTAL_LEN: Axis = Axis::Named("total_sequence_length");

/// Writes a model into a graph.
#[derive(Clone, Copy, Debug)]
struct Writer<'a> {
    graph: &'a Graph,
    config: &'a ModelConfig,
    spec: &'a ModelSpec,
    cache: Cache,
    vectors: Option<&'a VectorSpec>,
    parameters: &'a Parameters,
}

impl Writer<'_> {
    fn write(&self) -> OnnxResult<()> {
        if let ModelSpec::ImageClassifier(spec) = self.spec {
            return self.write_pictures(spec);
        }
        let Self { graph, config, spec, cache, parameters, .. } = *self;
        let has_cache = cache == Cache::With;
        // Every model that gets here states a length; pictures have their own number of positions.
        let max_seq_len = config.resolve_max_seq_len(spec.seq_len().unwrap_or(1))?;
        let positions = Positions::build(config, parameters, max_seq_len, spec.pad_id(), None)?;
        let len = config.required_len().map_or(LEN, Axis::Fixed);
        let ids = graph.input("input_ids", Type::Int, &[BATCH, len]);
        let kv_len = if has_cache { TOTAL_LEN } else { len };
        let mask = graph.input("attention_mask", Type::Int, &[BATCH, kv_len]);
        // With a single token type its vector is added to every position, so there is no input for it.
        let types = (spec.n_token_types() > 1)
            .then(|| graph.input("token_type_ids", Type::Int, &[BATCH, len]));
        let places = (has_cache && positions.are_chosen())
            .then(|| graph.input("position_ids", Type::Int, &[BATCH, len]));
        let past = if has_cache { self.past() } else { Vec::new() };
        let past_len = past.first().map(|[key, _value]| graph.len(key, 2));
        let lengths = Lengths {
            ids: &ids,
            attention_mask: &mask,
            position_ids: places.as_ref(),
            past_len: past_len.as_ref(),
        };
        let sequence = Sequence::new(graph, &lengths, config.causal);
        let backbone = Backbone { config, sequence: &sequence, parameters, positions: &positions };
        let inputs = Inputs { ids: &ids, pictures: None, token_type_ids: types, past };
        let hidden = backbone.hidden(&inputs)?;
        self.outputs(&sequence, &hidden, len)
    }

    /// A model of pictures: a sequence of a fixed length, without padding.
    fn write_pictures(&self, spec: &ImageClassifierSpec) -> OnnxResult<()> {
        let Self { graph, config, parameters, .. } = *self;
        let PictureSize { height, width, channels } = spec.size;
        let shape = [BATCH, Axis::Fixed(channels), Axis::Fixed(height), Axis::Fixed(width)];
        let pixels = graph.input("pixel_values", Type::Float, &shape);
        let (patches, grid) = (config.patches()?, spec.grid(config)?);
        let pictures = Pictures { patches, size: spec.size, grid, pixels };
        let ones = pictures.ones(graph);
        let lengths =
            Lengths { ids: &ones, attention_mask: &ones, position_ids: None, past_len: None };
        let sequence = Sequence::new(graph, &lengths, config.causal);
        let len = grid.n_tokens();
        let positions = Positions::build(config, parameters, len, None, Some(grid))?;
        let backbone = Backbone { config, sequence: &sequence, parameters, positions: &positions };
        let (ids, pictures, past) = (&ones, Some(&pictures), Vec::new());
        let hidden = backbone.hidden(&Inputs { ids, pictures, token_type_ids: None, past })?;
        self.outputs(&sequence, &hidden, Axis::Fixed(len))
    }

    /// Declares keys and values of the past positions.
    fn past(&self) -> Vec<[Value; 2]> {
        let input = |layer: usize, part: &str| {
            let shape = self.cache_shape(layer, PAST_LEN);
            self.graph.input(&format!("past_key_values.{layer}.{part}"), Type::Float, &shape)
        };
        (0..self.config.n_layers).map(|i| [input(i, "key"), input(i, "value")]).collect()
    }

    fn cache_shape(&self, layer: usize, len: Axis) -> [Axis; 4] {
        let n_heads = self.config.attention_of(layer).n_kv_heads().unwrap_or(self.config.n_heads);
        [BATCH, Axis::Fixed(n_heads), len, Axis::Fixed(self.config.head_dim())]
    }

    /// Applies the head, and declares the outputs.
    fn outputs(&self, sequence: &Sequence<'_>, hidden: &Hidden, len: Axis) -> OnnxResult<()> {
        let Self { graph, config, spec, parameters, .. } = *self;
        let (x, n_outputs) = (&hidden.states, Axis::Fixed(spec.n_outputs()));
        match spec {
            ModelSpec::Encoder(_) => {
                let shape = [BATCH, len, Axis::Fixed(config.d_model)];
                graph.output("last_hidden_state", x, &shape);
                if let Some(vectors) = self.vectors {
                    graph.output("token_embeddings", x, &shape);
                    let pooled = pooled::vectors(sequence, vectors, config.d_model, x)?;
                    let shape = [BATCH, Axis::Fixed(vectors.dim)];
                    graph.output("sentence_embedding", &pooled, &shape);
                }
            }
            ModelSpec::MaskedLm(_) => {
                let logits = head::masked_lm(graph, config, parameters, x)?;
                graph.output("logits", &logits, &[BATCH, len, n_outputs]);
            }
            ModelSpec::CausalLm(_) => {
                let logits = head::output(graph, config, parameters, x)?;
                graph.output("logits", &logits, &[BATCH, len, n_outputs]);
            }
            ModelSpec::TextClassifier(ClassifierSpec { read_out, .. })
            | ModelSpec::ImageClassifier(ImageClassifierSpec { read_out, .. }) => {
                let logits = head::classifier(sequence, config, *read_out, parameters, x)?;
                graph.output("logits", &logits, &[BATCH, n_outputs]);
            }
            ModelSpec::Tagger(_) => {
                let logits = head::mapped(graph, config, parameters, x)?;
                graph.output("logits", &logits, &[BATCH, len, n_outputs]);
            }
            ModelSpec::Seq2Seq { .. } | ModelSpec::Forecaster(_) => {
                unreachable!("invariant: `check` refuses it")
            }
        }
        for (layer, parts) in hidden.present.iter().enumerate() {
            for (part, name) in parts.iter().zip(["key", "value"]) {
                let name = format!("present.{layer}.{name}");
                graph.output(&name, part, &self.cache_shape(layer, TOTAL_LEN));
            }
        }
        Ok(())
    }
}
