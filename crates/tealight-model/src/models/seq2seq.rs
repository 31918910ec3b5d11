//! Encoder-decoder (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>): generates a target
//! sequence from a source sequence, token by token.
//!
//! ```text
//! memory           = Encoder(x₁ … x_n)                          bidirectional
//! P(y_t | y_<t, x) = softmax(W Decoder(y_<t, memory))           causal, with cross-attention to the memory
//! ```
//!
//! `[model.encoder_attention]` sets the encoder's self-attention (`[model.attention]` when absent),
//! `[model.attention]` the decoder's, and `[model.cross_attention]` the decoder's attention to the
//! encoder (softmax when absent). Source and target share one vocabulary and one table of token
//! embeddings, as in T5 (Raffel et al. 2020, <https://arxiv.org/abs/1910.10683>); under
//! `model.tied_output` the output layer shares it, too (Vaswani et al. 2017, §3.4). Encoder and decoder
//! have their own blocks (`model.n_encoder_layers` and `model.n_layers`) and their own positions.

use std::sync::LazyLock;

use candle_core::{Device, IndexOp, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::linear_cross_entropy::Scored;

use super::cost::{Cost, Estimate, PositionCounts, attention_cost};
use super::output::OutputLayer;
use crate::attention::{AttentionConfig, BY_CAUSAL, Memory, Reads};
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::generation::{self, Predictor};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Embedding, Input, InputSpec};
use crate::transformer::spec::{Place, StackSpec};
use crate::transformer::{Decoding, Transformer};

/// Settings that data and task determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seq2SeqSpec {
    /// Number of different tokens, on both sides.
    pub vocab_size: usize,
    /// The longest source sequence.
    pub source_len: usize,
    /// The longest target sequence.
    pub target_len: usize,
}

/// An encoder, a decoder with cross-attention to it, and a linear map to the vocabulary.
#[derive(Debug)]
pub struct Seq2Seq {
    encoder: Transformer,
    decoder: Transformer,
    output: OutputLayer,
}

/// Token ids and their padding mask.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// `(batch, len)` of any integer dtype.
    pub ids: &'a Tensor,
    /// The padding, which is not attended to.
    pub mask: &'a Mask,
}

/// The attention weights of encoder and decoder.
#[derive(Debug)]
pub struct Seq2SeqMaps {
    /// One entry per encoder layer.
    pub encoder: Vec<BlockMaps>,
    /// One entry per decoder layer, including cross-attention.
    pub decoder: Vec<BlockMaps>,
}

impl Seq2Seq {
    /// Builds `embedding`, `encoder`, `decoder` and, unless the output is tied, `output`.
    pub fn build(
        config: &ModelConfig,
        spec: &Seq2SeqSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        config.validate()?;
        config.refuse_lm_head()?;
        config.refuse_layers()?;
        config.refuse_classifier_head()?;
        if config.causal {
            let message = "`model.causal` = true has no meaning here: an encoder-decoder is always causal in its decoder, \
                           and never in its encoder";
            return Err(BuildError::config(["model.causal"], message));
        }
        for len in [spec.source_len, spec.target_len] {
            config.resolve_max_seq_len(len)?;
        }
        let shared = vb.pp("embedding");
        let side = |name: &str, stack: &StackSpec<'_>| {
            let vb = vb.pp(name);
            let input =
                InputSpec::Tokens { vocab_size: spec.vocab_size, n_token_types: 0, pad_id: None };
            let embedding = Embedding::build(config, input, &shared, &vb.pp("embedding"))?;
            Transformer::build_on(embedding, config, stack, &vb)
        };
        let [encoder, decoder] = stacks(config, spec);
        let (vocab_size, bias, at) = (spec.vocab_size, config.output_bias(), vb.pp("output"));
        // The parameters of an untied output are the first, those of a tied one are in the embedding.
        let untied = (!config.tied_output)
            .then(|| OutputLayer::untied(config, vocab_size, bias, &at))
            .transpose()?;
        let encoder = side("encoder", &encoder).map_err(|error| about_causality(error, ENCODER))?;
        let decoder = side("decoder", &decoder).map_err(|error| about_causality(error, DECODER))?;
        let output = match untied {
            Some(output) => output,
            None => OutputLayer::build(config, vocab_size, bias, decoder.embedding(), &at)?,
        };
        Ok(Self { encoder, decoder, output })
    }

    /// The states of the encoder, `(batch, source_len, d_model)`.
    pub fn encode(&self, source: Tokens<'_>, mode: Mode) -> Result<Tensor> {
        let context = BlockInput::new(source.mask, mode);
        self.encoder.forward(&Input::tokens(source.ids), &context)
    }

    /// Logits `(batch, target_len, vocab_size)` of the token after each token of the target.
    pub fn forward(&self, source: Tokens<'_>, target: Tokens<'_>, mode: Mode) -> Result<Tensor> {
        self.logits(&self.hidden(source, target, mode)?)
    }

    /// The decoder's hidden states `(batch, target_len, d_model)`, from which [`Self::forward`] computes
    /// the logits.
    pub fn hidden(&self, source: Tokens<'_>, target: Tokens<'_>, mode: Mode) -> Result<Tensor> {
        let states = self.encode(source, mode)?;
        let memory = Some(Memory { states: &states, mask: source.mask });
        let context = BlockInput { memory, ..BlockInput::new(target.mask, mode) };
        self.decoder.forward(&Input::tokens(target.ids), &context)
    }

    /// Starts incremental decoding of the target; `memory` holds the states of [`Self::encode`].
    pub fn decoding<'a>(&'a self, memory: Memory<'a>) -> Result<Decoding<'a>> {
        self.decoder.decoding(Some(memory))
    }

    /// Hidden states `(batch, len, d_model)` of the decoder → logits `(batch, len, vocab_size)`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.output.forward(hidden)
    }

    /// The cross-entropy of `labels (n)` under hidden states `(.., d_model)` of n positions.
    pub fn cross_entropy(
        &self,
        hidden: &Tensor,
        labels: &Tensor,
        label_smoothing: f64,
    ) -> Result<Scored> {
        self.output.cross_entropy(hidden, labels, label_smoothing)
    }

    /// The encoder, which reads the source.
    pub fn encoder(&self) -> &Transformer {
        &self.encoder
    }

    /// The decoder, which reads the target and the encoder's states.
    pub fn decoder(&self) -> &Transformer {
        &self.decoder
    }

    /// The attention weights of each layer.
    pub fn attention_maps(&self, source: Tokens<'_>, target: Tokens<'_>) -> Result<Seq2SeqMaps> {
        let context = BlockInput::new(source.mask, Mode::Eval);
        let encoder = self.encoder.attention_maps(&Input::tokens(source.ids), &context)?;
        let states = self.encode(source, Mode::Eval)?;
        let memory = Some(Memory { states: &states, mask: source.mask });
        let context = BlockInput { memory, ..BlockInput::new(target.mask, Mode::Eval) };
        let decoder = self.decoder.attention_maps(&Input::tokens(target.ids), &context)?;
        Ok(Seq2SeqMaps { encoder, decoder })
    }

    /// The memory that the model of this `config` needs.
    pub fn estimate(config: &ModelConfig, spec: &Seq2SeqSpec) -> Estimate {
        let Seq2SeqSpec { vocab_size, source_len, target_len } = *spec;
        let [encoder, decoder] = stacks(config, spec);
        let logits = vocab_size as f64 * target_len as f64;
        Estimate::of_stack(config, &encoder, [source_len, 0])
            + Estimate::of_stack(config, &decoder, [target_len, source_len])
            + Estimate::outside_blocks(0., logits)
    }

    /// The cost of training on the longest pairs, with the parameters in `store`.
    pub fn cost(config: &ModelConfig, spec: &Seq2SeqSpec, store: &ParamStore) -> Cost {
        let Seq2SeqSpec { source_len, target_len, .. } = *spec;
        let [encoder, decoder] = stacks(config, spec);
        let attention = attention_cost(config, &encoder, [source_len, 0])
            + attention_cost(config, &decoder, [target_len, source_len]);
        let [source, target] = [source_len, target_len].map(PositionCounts::everywhere);
        let applied = |name: &str| match name.split_once('.') {
            Some(("encoder", rest)) => source.of_matrix(rest, config),
            Some(("decoder", rest)) => target.of_matrix(rest, config),
            _ => target.of_matrix(name, config),
        };
        let estimate = Self::estimate(config, spec);
        Cost::new(store, source_len + target_len, applied, &attention, &estimate)
    }
}

/// The cross-attention of a configuration without `[model.cross_attention]`.
static DEFAULT_CROSS: LazyLock<AttentionConfig> = LazyLock::new(AttentionConfig::default);

/// The specifications of encoder and decoder.
fn stacks<'a>(config: &'a ModelConfig, spec: &Seq2SeqSpec) -> [StackSpec<'a>; 2] {
    let own = Place { config: &config.attention, key: "model.attention" };
    let encoder = config.encoder_attention.as_ref();
    let encoder = encoder.map_or(own, |config| Place { config, key: "model.encoder_attention" });
    let cross = config.cross_attention.as_ref().unwrap_or(&DEFAULT_CROSS);
    let cross = Place { config: cross, key: "model.cross_attention" };
    let [source_len, target_len] =
        [spec.source_len, spec.target_len].map(|len| config.max_seq_len.unwrap_or(len));
    [
        StackSpec {
            attention: encoder,
            layers: &[],
            reads: Reads::Everything,
            cross_attention: None,
            max_seq_len: source_len,
            packed: false,
            n_layers: config.n_encoder_layers.unwrap_or(config.n_layers),
        },
        StackSpec {
            attention: own,
            layers: &[],
            reads: Reads::Past,
            cross_attention: Some((cross, source_len)),
            max_seq_len: target_len,
            packed: false,
            n_layers: config.n_layers,
        },
    ]
}

/// Why a kind of attention that must be causal cannot be used in the encoder.
const ENCODER: &str = "the encoder of an encoder-decoder is not causal; its `[model.encoder_attention]` may be of \
                       another kind than the decoder's `[model.attention]`";
/// Why a kind of attention that cannot be causal cannot be used in the decoder.
const DECODER: &str =
    "the decoder of an encoder-decoder is causal; use such a kind in `[model.encoder_attention]`";

/// Replaces the mention of `model.causal`, which does not apply to an encoder-decoder, by the reason `why`.
fn about_causality(error: BuildError, why: &str) -> BuildError {
    match error {
        BuildError::Config(mut fault) if fault.keys.iter().any(|key| key == "model.causal") => {
            fault.keys.retain(|key| key != "model.causal");
            fault.message = format!("{}: {why}", fault.message.replace(BY_CAUSAL, ""));
            BuildError::Config(fault)
        }
        other => other,
    }
}

/// A [`Predictor`] for [`generate`](crate::generation::generate): the decoder with its decoding state.
#[derive(Debug)]
pub struct CachedPredictor<'a> {
    model: &'a Seq2Seq,
    decoding: Decoding<'a>,
    never: &'a [u32],
    device: Device,
}

impl<'a> CachedPredictor<'a> {
    /// Starts before the first token. Tokens in `never`, such as padding and the start token, are not
    /// generated.
    pub fn new(model: &'a Seq2Seq, memory: Memory<'a>, never: &'a [u32]) -> Result<Self> {
        let device = memory.states.device().clone();
        Ok(Self { model, decoding: model.decoding(memory)?, never, device })
    }
}

impl Predictor for CachedPredictor<'_> {
    fn next(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f64>>> {
        let ids = Tensor::new(rows.to_vec(), &self.device)?; // (batch, n_new)
        let hidden = self.decoding.step(&Input::tokens(&ids))?; // (batch, n_new, d_model)
        let (_batch, n_new, _d_model) = hidden.dims3()?;
        generation::rows(&self.model.logits(&hidden.i((.., n_new - 1))?)?, self.never)
    }

    fn select(&mut self, rows: &[u32]) -> Result<()> {
        self.decoding.select(&Tensor::new(rows, &self.device)?)
    }
}
