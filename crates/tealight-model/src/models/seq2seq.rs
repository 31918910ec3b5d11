//! Encoder and decoder (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>): one sequence in,
//! another one out, token by token.
//!
//! ```text
//! memory           = Encoder(x₁ … x_n)                          every position reads all others
//! P(y_t | y_<t, x) = softmax(W Decoder(y_<t, memory))           a position reads its past, and the memory
//! ```
//!
//! The encoder's layers read as `[model.encoder_attention]` says, or `[model.attention]` where that
//! table is absent; the decoder's as `[model.attention]`; and how the decoder reads the encoder is
//! `[model.cross_attention]`, softmax when absent. Source and target share one vocabulary and one table
//! of token embeddings, as in T5 (Raffel et al. 2020, <https://arxiv.org/abs/1910.10683>), which the
//! output uses, too, under `model.tied_output` (Vaswani et al. 2017, §3.4). Each side has its own blocks,
//! `model.n_encoder_layers` and `model.n_layers` of them, and its own positions.

use candle_core::{D, Device, IndexOp, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::linear_cross_entropy::Scored;
use tealight_ops::reshape;

use super::cost::{Cost, Estimate, Positions, attention_cost};
use crate::attention::{AttentionConfig, BY_CAUSAL, Memory, Reads};
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::generation::{self, Predictor};
use crate::layers::linear::Linear;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Embedding, Input, InputSpec};
use crate::transformer::spec::{Place, StackSpec};
use crate::transformer::{Decoding, Transformer};

/// What data and task decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seq2SeqSpec {
    /// Number of different tokens, on both sides.
    pub vocab_size: usize,
    /// The longest sequence that is read.
    pub source_len: usize,
    /// The longest sequence that is written.
    pub target_len: usize,
}

/// An encoder, a decoder that reads it, and a linear map to the vocabulary.
#[derive(Debug)]
pub struct Seq2Seq {
    encoder: Transformer,
    decoder: Transformer,
    output: Option<Linear>,
}

/// Token ids `(batch, len)`, and which of them are padding.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// `(batch, len)` of any integer dtype.
    pub ids: &'a Tensor,
    /// Padding, which is not read.
    pub mask: &'a Mask,
}

/// What the layers of both sides read.
#[derive(Debug)]
pub struct Seq2SeqMaps {
    /// Of each layer of the encoder.
    pub encoder: Vec<BlockMaps>,
    /// Of each layer of the decoder, cross-attention included.
    pub decoder: Vec<BlockMaps>,
}

impl Seq2Seq {
    /// Builds `embedding`, `encoder`, `decoder` and, unless it is tied, `output`.
    pub fn build(
        config: &ModelConfig,
        spec: &Seq2SeqSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        config.validate()?;
        config.refuse_lm_head()?;
        if config.causal {
            let message = "`model.causal` = true, but an encoder-decoder is causal in its decoder \
                           and nowhere else, without being told";
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
            let embedding = Embedding::build_on(config, input, &shared, &vb.pp("embedding"))?;
            Transformer::build_on(embedding, config, stack, &vb)
        };
        let softmax = AttentionConfig::default();
        let Stacks { encoder, decoder } = Stacks::new(config, spec, &softmax);
        let init = config.initializer()?;
        let shape = [config.d_model, spec.vocab_size];
        let output = (!config.tied_output).then(|| {
            let weight = init.weight(config.d_model);
            Linear::build(shape, config.linear_bias(), weight, &vb.pp("output"))
        });
        Ok(Self {
            encoder: side("encoder", &encoder).map_err(not_causal)?,
            decoder: side("decoder", &decoder).map_err(always_causal)?,
            output: output.transpose()?,
        })
    }

    /// What is read before the first token is written, `(batch, source_len, d_model)`.
    pub fn encode(&self, source: Tokens<'_>, mode: Mode) -> Result<Tensor> {
        let context = BlockInput { mask: source.mask, memory: None, mode };
        self.encoder.forward(&Input::tokens(source.ids), &context)
    }

    /// Logits `(batch, target_len, vocab_size)` for what follows each token of the target.
    pub fn forward(&self, source: Tokens<'_>, target: Tokens<'_>, mode: Mode) -> Result<Tensor> {
        self.logits(&self.hidden(source, target, mode)?)
    }

    /// What [`Self::forward`] gives the logits of: `(batch, target_len, d_model)`.
    pub fn hidden(&self, source: Tokens<'_>, target: Tokens<'_>, mode: Mode) -> Result<Tensor> {
        let states = self.encode(source, mode)?;
        let memory = Some(Memory { states: &states, mask: source.mask });
        let context = BlockInput { mask: target.mask, memory, mode };
        self.decoder.forward(&Input::tokens(target.ids), &context)
    }

    /// The decoder before the first token of the target; `memory` holds what [`Self::encode`] gave.
    pub fn decoding<'a>(&'a self, memory: Memory<'a>) -> Result<Decoding<'a>> {
        self.decoder.decoding(Some(memory))
    }

    /// Hidden states `(batch, len, d_model)` of the decoder → logits `(batch, len, vocab_size)`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.output {
            Some(output) => output.forward(hidden),
            None => self.decoder.embedding().logits(hidden),
        }
    }

    /// What `labels (n)` cost under hidden states `(.., d_model)` of n positions.
    pub fn scored(&self, hidden: &Tensor, labels: &Tensor, label_smoothing: f64) -> Result<Scored> {
        let rows = reshape(hidden, ((), hidden.dim(D::Minus1)?))?;
        match &self.output {
            Some(output) => output.scored(&rows, labels, label_smoothing),
            None => self.decoder.embedding().scored(&rows, None, labels, label_smoothing),
        }
    }

    /// What reads the source.
    pub fn encoder(&self) -> &Transformer {
        &self.encoder
    }

    /// What reads the target, and the encoder's states.
    pub fn decoder(&self) -> &Transformer {
        &self.decoder
    }

    /// What each layer read.
    pub fn maps(&self, source: Tokens<'_>, target: Tokens<'_>) -> Result<Seq2SeqMaps> {
        let mode = Mode::Eval;
        let context = BlockInput { mask: source.mask, memory: None, mode };
        let x = self.encoder.embedding().embed(&Input::tokens(source.ids))?;
        let encoder = self.encoder.maps(&x, &context)?;
        let states = self.encoder.encode(&x, &context)?;
        let memory = Some(Memory { states: &states, mask: source.mask });
        let context = BlockInput { mask: target.mask, memory, mode };
        let y = self.decoder.embedding().embed(&Input::tokens(target.ids))?;
        Ok(Seq2SeqMaps { encoder, decoder: self.decoder.maps(&y, &context)? })
    }

    /// What the model of this `config` needs memory for.
    pub fn estimate(config: &ModelConfig, spec: &Seq2SeqSpec) -> Estimate {
        let Seq2SeqSpec { vocab_size, source_len, target_len } = *spec;
        let softmax = AttentionConfig::default();
        let Stacks { encoder, decoder } = Stacks::new(config, spec, &softmax);
        let logits = vocab_size as f64 * target_len as f64;
        Estimate::of_stack(config, &encoder, source_len, 0)
            + Estimate::of_stack(config, &decoder, target_len, source_len)
            + Estimate::outside(0., logits)
    }

    /// What training on the longest pairs costs, with the parameters in `store`.
    pub fn cost(config: &ModelConfig, spec: &Seq2SeqSpec, store: &ParamStore) -> Cost {
        let Seq2SeqSpec { source_len, target_len, .. } = *spec;
        let softmax = AttentionConfig::default();
        let Stacks { encoder, decoder } = Stacks::new(config, spec, &softmax);
        let attention = attention_cost(config, &encoder, source_len, 0)
            + attention_cost(config, &decoder, target_len, source_len);
        let of = |len: usize| Positions { inputs: len, held: len, read: len };
        let applied = |name: &str| match name.split_once('.') {
            Some(("encoder", rest)) => of(source_len).of(rest, config),
            Some(("decoder", rest)) => of(target_len).of(rest, config),
            _ => of(target_len).of(name, config),
        };
        let estimate = Self::estimate(config, spec);
        Cost::new(store, source_len + target_len, applied, &attention, &estimate)
    }
}

/// The descriptions of both sides.
struct Stacks<'a> {
    encoder: StackSpec<'a>,
    decoder: StackSpec<'a>,
}

impl<'a> Stacks<'a> {
    /// `default` is the cross-attention of a configuration that names none.
    fn new(config: &'a ModelConfig, spec: &Seq2SeqSpec, default: &'a AttentionConfig) -> Self {
        let own = Place { config: &config.attention, key: "model.attention" };
        let encoder = config
            .encoder_attention
            .as_ref()
            .map_or(own, |config| Place { config, key: "model.encoder_attention" });
        let cross = config.cross_attention.as_ref().unwrap_or(default);
        let cross = Place { config: cross, key: "model.cross_attention" };
        let [source_len, target_len] =
            [spec.source_len, spec.target_len].map(|len| config.max_seq_len.unwrap_or(len));
        Self {
            encoder: StackSpec {
                attention: encoder,
                reads: Reads::Everything,
                cross_attention: None,
                max_seq_len: source_len,
                packed: false,
                n_layers: config.n_encoder_layers.unwrap_or(config.n_layers),
            },
            decoder: StackSpec {
                attention: own,
                reads: Reads::Past,
                cross_attention: Some((cross, source_len)),
                max_seq_len: target_len,
                packed: false,
                n_layers: config.n_layers,
            },
        }
    }
}

/// A kind that is only causal cannot stand in the encoder, whatever `model.causal` says.
fn not_causal(error: BuildError) -> BuildError {
    about_causality(
        error,
        "the encoder of an encoder-decoder is not; its `[model.encoder_attention]` may be of another \
         kind than the decoder's `[model.attention]`",
    )
}

/// A kind that is never causal cannot stand in the decoder, whatever `model.causal` says.
fn always_causal(error: BuildError) -> BuildError {
    about_causality(
        error,
        "the decoder of an encoder-decoder is; such a kind may stand in `[model.encoder_attention]`",
    )
}

/// Says why a setting that nobody has made is in the way.
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

/// The decoder in the middle of a batch of targets: [`generate`](crate::generation::generate) asks it.
#[derive(Debug)]
pub struct Writer<'a> {
    model: &'a Seq2Seq,
    decoding: Decoding<'a>,
    never: &'a [u32],
    device: Device,
}

impl<'a> Writer<'a> {
    /// Before the first token. Those of `never` are not written: padding, and what begins a sequence.
    pub fn new(model: &'a Seq2Seq, memory: Memory<'a>, never: &'a [u32]) -> Result<Self> {
        let device = memory.states.device().clone();
        Ok(Self { model, decoding: model.decoding(memory)?, never, device })
    }
}

impl Predictor for Writer<'_> {
    fn next(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f64>>> {
        let ids = Tensor::new(rows.to_vec(), &self.device)?; // (batch, n_new)
        let hidden = self.decoding.step(&Input::tokens(&ids))?;
        generation::rows(&self.model.logits(&hidden.i((.., hidden.dim(1)? - 1))?)?, self.never)
    }

    fn select(&mut self, rows: &[u32]) -> Result<()> {
        self.decoding.select(&Tensor::new(rows, &self.device)?)
    }
}
