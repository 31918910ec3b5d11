//! Whole models in f64: every parameter has a gradient, and it agrees with finite differences.
//!
//! The product of all settings is too large to enumerate. Each case takes one value of every axis; in any
//! n consecutive cases, an axis of n values takes each of them once, in an order given by the seed.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{D, DType, Result, Tensor};
use common::{normal, values};
use differences::checked_gradients;
use tealight_model::attention::{AttentionConfig, sigmoid};
use tealight_model::block::{BlockInput, NormPlacement};
use tealight_model::embedding::{self, Input, InputSpec};
use tealight_model::feed_forward::{Activation, FeedForwardConfig, GluConfig, MlpConfig};
use tealight_model::init::{InitConfig, Normal};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::names::Named;
use tealight_model::norm::{LayerNormConfig, NormConfig};
use tealight_model::position::{AttentionNeeds, PositionConfig, learned};
use tealight_model::stack::{Place, Stack, StackSpec};
use tealight_model::transformer::Transformer;
use tealight_model::{BuildError, Mask, Memory, Mode, ModelConfig, ParamStore};
use tealight_ops::Gradients;
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::gradients::FaultKind;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const BATCH: usize = 2;
const SEQ_LEN: usize = 5;
const KV_LEN: usize = 7;
const N_CLASSES: usize = 7;
const N_TOKEN_TYPES: usize = 2;
const N_FEATURES: usize = 3;
const N_HEADS: usize = 3;
const DROPOUT: f64 = 0.2;

/// Four times every pair of feed-forward network and activation.
const N_CASES: usize = 44;
const N_DIRECTIONS: u64 = 1;

/// The index of the value that a case takes on an axis.
#[derive(Clone, Copy)]
struct Pick(usize);

impl Pick {
    fn value<T: Clone>(self, axis: &str, values: &[T]) -> T {
        let (round, place) = (self.0 / values.len(), self.0 % values.len());
        let stream = Stream::new(5, Purpose::Sampling).fork_name(axis).fork(round as u64);
        values[stream.permutation(values.len())[place]].clone()
    }

    fn flag(self, axis: &str) -> bool {
        self.value(axis, &[false, true])
    }
}

/// The inputs of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    Tokens,
    Typed,
    TypesLeftOut,
    Features,
}

#[derive(Debug)]
struct Case {
    config: ModelConfig,
    spec: ForecasterSpec,
    source: Source,
    is_padded: bool,
    is_training: bool,
}

impl Case {
    fn new(pick: Pick) -> Self {
        let sources = [Source::Tokens, Source::Typed, Source::TypesLeftOut, Source::Features];
        let source = pick.value("source", &sources);
        let read_out = pick.value("read_out", ReadOut::ALL);
        let is_training = pick.flag("is_training");
        let config = ModelConfig {
            causal: match read_out {
                ReadOut::EveryPosition => true,
                ReadOut::Cls => false,
                ReadOut::Mean | ReadOut::Last => pick.flag("causal"),
            },
            dropout: if is_training { DROPOUT } else { 0. },
            tied_output: source != Source::Features && pick.flag("tied_output"),
            ..config(pick)
        };
        let input = match source {
            Source::Tokens => {
                InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None }
            }
            Source::Typed | Source::TypesLeftOut => InputSpec::Tokens {
                vocab_size: N_CLASSES,
                n_token_types: N_TOKEN_TYPES,
                pad_id: None,
            },
            Source::Features => InputSpec::Features { n_features: N_FEATURES },
        };
        let spec = ForecasterSpec { input, seq_len: SEQ_LEN, n_classes: N_CLASSES, read_out };
        Self { config, spec, source, is_padded: pick.flag("is_padded"), is_training }
    }

    /// `None` if the attention refuses the case with an error that names the key.
    fn build(&self, store: &ParamStore) -> Result<Option<Forecaster>> {
        match Forecaster::build(&self.config, &self.spec, &store.trainable()) {
            Ok(model) => Ok(Some(model)),
            Err(BuildError::Candle(error)) => Err(error),
            Err(BuildError::Config(fault)) => {
                let attention = fault.keys.iter().any(|key| key.starts_with("model.attention"));
                assert!(attention, "{fault}: {self:?}");
                Ok(None)
            }
        }
    }

    /// The summed loss of a batch, the same at every call.
    fn loss(&self, model: &Forecaster) -> Result<Tensor> {
        let (ids, types) = (ids(0, N_CLASSES, SEQ_LEN)?, ids(1, N_TOKEN_TYPES, SEQ_LEN)?);
        let features = normal(2, &[BATCH, SEQ_LEN, N_FEATURES], DType::F64)?;
        let input = match self.source {
            Source::Tokens | Source::TypesLeftOut => Input::tokens(&ids),
            Source::Typed => Input::Tokens { input_ids: &ids, token_type_ids: Some(&types) },
            Source::Features => Input::Features(&features),
        };
        let mask = if self.is_padded { padding(SEQ_LEN)? } else { Mask::none() };
        let stream = Stream::new(5, Purpose::Dropout);
        let mode = if self.is_training { Mode::train(stream) } else { Mode::Eval };
        let rows = model.forward(&input, &mask, mode)?.flatten_to(D::Minus2)?; // (items, n_classes)
        let (items, _n_classes) = rows.dims2()?;
        let labels: Vec<u32> = (0..items).map(|i| (3 * i % N_CLASSES) as u32).collect();
        cross_entropy(&rows, &Tensor::from_vec(labels, items, device())?, 0.)
    }
}

/// A kind with its default settings, but for those that would make its outputs too small for differences here.
fn attention_of(kind: &str) -> AttentionConfig {
    match AttentionConfig::default_of(kind).expect("invariant: it is one of KINDS") {
        AttentionConfig::Sigmoid(config) => {
            AttentionConfig::Sigmoid(sigmoid::Config { length: SEQ_LEN, ..config })
        }
        attention => attention,
    }
}

/// The settings that do not depend on the read-out.
fn config(pick: Pick) -> ModelConfig {
    let positions: Vec<PositionConfig> = PositionConfig::of_sequences().collect();
    let position = match pick.value("position", &positions) {
        PositionConfig::Learned(config) => {
            PositionConfig::Learned(learned::Config { std: 0.5, ..config })
        }
        position => position,
    };
    // Sinusoidal and rotary positions need an even width.
    let is_even = matches!(position, PositionConfig::Sinusoidal(_) | PositionConfig::Rotary(_));
    let attention = pick.value("attention", AttentionConfig::KINDS).name;
    ModelConfig {
        d_model: if is_even { 30 } else { 33 },
        n_heads: N_HEADS,
        norm_placement: pick.value("norm_placement", &[NormPlacement::Pre, NormPlacement::Post]),
        residual: pick.flag("residual"),
        bias: pick.flag("bias"),
        embedding: embedding::Config {
            scale: pick.flag("embedding.scale"),
            norm: pick.flag("embedding.norm"),
        },
        position,
        attention: attention_of(attention),
        norm: pick.value("norm", &norms()),
        feed_forward: pick.value("feed_forward", &feed_forwards()),
        // With BERT's 0.02, gradients are too small for finite differences.
        init: pick.value(
            "init",
            &[
                InitConfig::default(),
                InitConfig::Normal(Normal { std: 0.15, scale_residual: false }),
                InitConfig::Normal(Normal { std: 0.15, scale_residual: true }),
            ],
        ),
        ..ModelConfig::default()
    }
}

fn norms() -> Vec<NormConfig> {
    let without_bias = LayerNormConfig { bias: false, ..LayerNormConfig::default() };
    let kinds = NormConfig::KINDS.iter().filter_map(|kind| NormConfig::default_of(kind.name));
    kinds.chain([NormConfig::LayerNorm(without_bias)]).collect()
}

/// Every feed-forward network with every activation, and none.
fn feed_forwards() -> Vec<FeedForwardConfig> {
    let d_ff = Some(13);
    let with = |&activation: &Activation| {
        [
            FeedForwardConfig::Mlp(MlpConfig { activation, d_ff }),
            FeedForwardConfig::Glu(GluConfig { activation, d_ff }),
        ]
    };
    Activation::ALL.iter().flat_map(with).chain([FeedForwardConfig::None]).collect()
}

/// `(batch, len)`, each below `n`, different for every `index`.
fn ids(index: u64, n: usize, len: usize) -> Result<Tensor> {
    let stream = Stream::new(5, Purpose::Data).fork(index);
    let ids = (0..(BATCH * len) as u64).map(|i| stream.below(i, n as u64) as u32).collect();
    Tensor::from_vec(ids, (BATCH, len), device())
}

/// The last position of the second example is padding.
fn padding(len: usize) -> Result<Mask> {
    let flags = (0..BATCH * len).map(|i| u8::from(i == BATCH * len - 1)).collect();
    Mask::none().with_key_padding_mask(&Tensor::from_vec(flags, (BATCH, len), device())?)
}

/// The bias of the keys shifts all scores of a row alike, so its gradient may be zero.
fn assert_complete(label: &str, gradients: &Gradients) -> Result<()> {
    for fault in gradients.audit()? {
        let excused = fault.kind == FaultKind::Zero && fault.name.ends_with("key.bias");
        assert!(excused, "{label}: {fault}");
    }
    Ok(())
}

#[test]
fn every_setting_has_right_gradients() -> Result<()> {
    let mut n_built = 0;
    for case in (0..N_CASES).map(|i| Case::new(Pick(i))) {
        let store = ParamStore::new(17, DType::F64, device());
        let Some(model) = case.build(&store)? else { continue };
        let label = format!("{case:?}");
        let gradients = checked_gradients(&label, &store, N_DIRECTIONS, || case.loss(&model))?;
        assert_complete(&label, &gradients)?;
        n_built += 1;
    }
    assert!(2 * n_built > N_CASES, "most cases cannot be built");
    Ok(())
}

/// An encoder and a decoder, without a head.
struct Translator {
    encoder: Transformer,
    decoder: Transformer,
}

/// A stack with cross-attention.
fn reading(config: &ModelConfig) -> StackSpec<'_> {
    let place = Place { config: &config.attention, key: "model.cross_attention" };
    StackSpec { cross_attention: Some((place, KV_LEN)), ..StackSpec::single(config, SEQ_LEN) }
}

impl Translator {
    fn build(store: &ParamStore, norm_placement: NormPlacement) -> Result<Self> {
        let config =
            ModelConfig { d_model: 33, n_heads: N_HEADS, norm_placement, ..ModelConfig::default() };
        let decoder = ModelConfig { causal: true, n_layers: 1, ..config.clone() };
        let input = InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None };
        let build = |name, config: &ModelConfig, spec: &StackSpec<'_>| {
            Transformer::build(config, input, spec, &store.trainable().pp(name))
                .map_err(candle_core::Error::wrap)
        };
        Ok(Self {
            encoder: build("encoder", &config, &StackSpec::single(&config, KV_LEN))?,
            decoder: build("decoder", &decoder, &reading(&decoder))?,
        })
    }

    /// `(batch, seq_len, d_model)`
    fn forward(&self, mode: Mode) -> Result<Tensor> {
        let (mask, memory_mask) = (padding(SEQ_LEN)?, padding(KV_LEN)?);
        let context = BlockInput::new(&memory_mask, mode);
        let states = self.encoder.forward(&Input::tokens(&ids(3, N_CLASSES, KV_LEN)?), &context)?;
        let memory = Some(Memory { states: &states, mask: &memory_mask });
        let context = BlockInput { memory, ..BlockInput::new(&mask, mode) };
        self.decoder.forward(&Input::tokens(&ids(4, N_CLASSES, SEQ_LEN)?), &context)
    }
}

#[test]
fn the_gradient_reaches_the_encoder_through_cross_attention() -> Result<()> {
    for norm_placement in [NormPlacement::Pre, NormPlacement::Post] {
        let store = ParamStore::new(17, DType::F64, device());
        let translator = Translator::build(&store, norm_placement)?;
        let loss = || {
            let hidden = translator.forward(Mode::Eval)?;
            (&hidden * normal(5, hidden.dims(), DType::F64)?)?.sum_all()
        };
        let gradients = checked_gradients("translator", &store, N_DIRECTIONS, loss)?;
        assert_complete("translator", &gradients)?;
        assert!(gradients.iter().any(|(name, _)| name.contains("decoder.layer.0.cross_attention")));
    }
    Ok(())
}

/// A decoder's output with the memory `states (batch, kv_len, d_model)`.
fn decoded(stack: &Stack, states: &Tensor, mask: &Mask) -> Result<Vec<Vec<f64>>> {
    let (batch, _kv_len, d_model) = states.dims3()?;
    let x = normal(6, &[batch, SEQ_LEN, d_model], DType::F64)?;
    let memory = Some(Memory { states, mask });
    let mask = Mask::none();
    let context = BlockInput { memory, ..BlockInput::new(&mask, Mode::Eval) };
    let y = stack.forward(&x, &context)?;
    (0..batch).map(|row| values(&y.get(row)?)).collect()
}

#[test]
fn a_mask_on_the_memory_hides_it_and_nothing_else() -> Result<()> {
    let store = ParamStore::new(17, DType::F64, device());
    let config = ModelConfig { d_model: 33, n_heads: N_HEADS, ..ModelConfig::default() };
    let needs = AttentionNeeds::Nothing;
    let stack = Stack::build(&config, &reading(&config), &[needs], &store.trainable())
        .map_err(candle_core::Error::wrap)?;
    let states = normal(7, &[BATCH, KV_LEN, 33], DType::F64)?;
    // Only the last position of each example differs.
    let kept = states.narrow(1, 0, KV_LEN - 1)?;
    let other = Tensor::cat(&[&kept, &normal(8, &[BATCH, 1, 33], DType::F64)?], 1)?;

    let mask = padding(KV_LEN)?;
    let (a, b) = (decoded(&stack, &states, &mask)?, decoded(&stack, &other, &mask)?);
    assert_ne!(a[0], b[0], "the first example reads the last position");
    assert_eq!(a[1], b[1], "for the second example it is padding");

    let dropped = (0..SEQ_LEN * KV_LEN).map(|i| i % KV_LEN == KV_LEN - 1);
    let dropped = dropped.map(|dropped| if dropped { f64::NEG_INFINITY } else { 0. }).collect();
    let dropped = Tensor::from_vec(dropped, (SEQ_LEN, KV_LEN), device())?;
    let mask = Mask::none().with_attn_mask(&dropped)?;
    assert_eq!(decoded(&stack, &states, &mask)?, decoded(&stack, &other, &mask)?);
    Ok(())
}
