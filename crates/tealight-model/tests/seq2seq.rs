//! Encoder-decoder: masks, refused configurations, and generation.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{DType, Error, Result, Tensor};
use common::{normal, values};
use differences::checked_gradients;
use tealight_model::attention::support::Support;
use tealight_model::attention::{AttentionConfig, Memory};
use tealight_model::generation::{
    Predictor, Sampling, Sequence, StopRules, Strategy, generate, rows,
};
use tealight_model::models::seq2seq::{CachedPredictor, Seq2Seq, Seq2SeqSpec, Tokens};
use tealight_model::position::PositionConfig;
use tealight_model::{Activations, BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::backward;
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const BATCH: usize = 2;
const SOURCE_LEN: usize = 7;
const TARGET_LEN: usize = 5;
const VOCAB: usize = 11;
/// The number of positions of each example that are not padding.
const SOURCE_LENGTHS: [usize; BATCH] = [7, 4];
const SPEC: Seq2SeqSpec =
    Seq2SeqSpec { vocab_size: VOCAB, source_len: SOURCE_LEN, target_len: TARGET_LEN };
const NEVER: [u32; 2] = [0, BEGIN];
const BEGIN: u32 = 1;
const ENDS: StopRules<'_> = StopRules { stop: &[2], max_len: TARGET_LEN };
/// Rounding error of sums of a few products in f32.
const ERROR: f64 = 1e-5;

fn config() -> ModelConfig {
    ModelConfig { d_model: 33, n_heads: 3, ..ModelConfig::default() }
}

fn store(dtype: DType) -> ParamStore {
    ParamStore::new(17, dtype, device())
}

fn built(store: &ParamStore, config: &ModelConfig) -> Result<Seq2Seq> {
    Seq2Seq::build(config, &SPEC, &store.trainable()).map_err(candle_core::Error::wrap)
}

/// `(batch, len)`; `garbage` determines the values of the padding.
fn ids(seed: u64, lengths: [usize; BATCH], len: usize, garbage: u32) -> Result<Tensor> {
    let stream = Stream::new(seed, Purpose::Data);
    let id = |row: usize, at: usize| {
        let real = 3 + stream.below((row * len + at) as u64, VOCAB as u64 - 3) as u32;
        if at < lengths[row] { real } else { garbage }
    };
    let ids = (0..BATCH).flat_map(|row| (0..len).map(move |at| id(row, at))).collect();
    Tensor::from_vec(ids, (BATCH, len), device())
}

fn padding(lengths: [usize; BATCH], len: usize) -> Result<Mask> {
    let row = |real: usize| (0..len).map(move |at| u8::from(at >= real));
    let flags = lengths.into_iter().flat_map(row).collect();
    Mask::none().with_key_padding_mask(&Tensor::from_vec(flags, (BATCH, len), device())?)
}

fn logits(model: &Seq2Seq, source: &Tensor, target: &Tensor) -> Result<Tensor> {
    let mask = padding(SOURCE_LENGTHS, SOURCE_LEN)?;
    let (source, target) =
        (Tokens { ids: source, mask: &mask }, Tokens { ids: target, mask: &Mask::none() });
    model.forward(source, target, Mode::Eval)
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < ERROR)
}

/// Every position encoding, with tied and untied output.
fn variants() -> Vec<ModelConfig> {
    let positions = PositionConfig::of_sequences();
    let even = ModelConfig { d_model: 36, n_heads: 3, n_layers: 1, ..ModelConfig::default() };
    let mut all: Vec<_> =
        positions.map(|position| ModelConfig { position, ..even.clone() }).collect();
    all.push(ModelConfig { tied_output: true, ..config() });
    all
}

#[test]
fn padding_of_the_source_is_not_read() -> Result<()> {
    for config in variants() {
        let store = store(DType::F32);
        let model = built(&store, &config)?;
        let target = ids(5, [TARGET_LEN; BATCH], TARGET_LEN, 0)?;
        let of = |garbage| logits(&model, &ids(3, SOURCE_LENGTHS, SOURCE_LEN, garbage)?, &target);
        let (a, b) = (of(0)?, of(4)?);
        assert_eq!(a.dims(), [BATCH, TARGET_LEN, VOCAB]);
        assert_eq!(values(&a)?, values(&b)?, "{:?}", config.position);
    }
    Ok(())
}

#[test]
fn padding_of_the_target_is_not_read() -> Result<()> {
    let store = store(DType::F32);
    let model = built(&store, &config())?;
    let source = ids(3, [SOURCE_LEN; BATCH], SOURCE_LEN, 0)?;
    let lengths = [5, 2];
    let mask = padding(lengths, TARGET_LEN)?;
    let none = Mask::none();
    let of = |garbage| {
        let target = ids(5, lengths, TARGET_LEN, garbage)?;
        let source = Tokens { ids: &source, mask: &none };
        model
            .forward(source, Tokens { ids: &target, mask: &mask }, Mode::Eval)?
            .get(1)?
            .narrow(0, 0, 2)
    };
    assert_eq!(values(&of(0)?)?, values(&of(4)?)?);
    Ok(())
}

#[test]
fn target_positions_read_the_whole_source_and_earlier_targets() -> Result<()> {
    let store = store(DType::F32);
    let model = built(&store, &config())?;
    let source = ids(3, [SOURCE_LEN; BATCH], SOURCE_LEN, 0)?;
    let target = ids(5, [TARGET_LEN; BATCH], TARGET_LEN, 0)?;
    let of = |source: &Tensor, target: &Tensor| {
        let mask = &Mask::none();
        let (source, target) = (Tokens { ids: source, mask }, Tokens { ids: target, mask });
        model.forward(source, target, Mode::Eval)
    };
    let whole = of(&source, &target)?;
    for len in 1..=TARGET_LEN {
        let past = of(&source, &target.narrow(1, 0, len)?.contiguous()?)?;
        let (past, now) = (past.narrow(1, len - 1, 1)?, whole.narrow(1, len - 1, 1)?);
        assert!(close(&values(&past)?, &values(&now)?), "after {len} tokens");
    }
    for at in 0..SOURCE_LEN {
        let ids = source.to_vec2::<u32>()?;
        let other = |row: &Vec<u32>| {
            let mut row = row.clone();
            row[at] = if row[at] == 3 { 4 } else { 3 };
            row
        };
        let changed: Vec<Vec<u32>> = ids.iter().map(other).collect();
        let changed = of(&Tensor::new(changed, device())?, &target)?;
        let (a, b) = (changed.narrow(1, 0, 1)?, whole.narrow(1, 0, 1)?);
        assert!(!close(&values(&a)?, &values(&b)?), "the source at {at}");
    }
    Ok(())
}

#[test]
fn every_parameter_of_both_sides_has_a_right_gradient() -> Result<()> {
    for config in variants() {
        let store = store(DType::F64);
        let config = ModelConfig { d_model: 6, ..config };
        let model = built(&store, &config)?;
        let source = ids(3, SOURCE_LENGTHS, SOURCE_LEN, 0)?;
        let target = ids(5, [TARGET_LEN; BATCH], TARGET_LEN, 0)?;
        let labels = ids(7, [TARGET_LEN; BATCH], TARGET_LEN, 0)?.flatten_all()?;
        let loss =
            || cross_entropy(&logits(&model, &source, &target)?.flatten_to(1)?, &labels, 0.1);
        let label = format!("{:?}, tied {}", config.position, config.tied_output);
        let gradients = checked_gradients(&label, &store, 1, loss)?;
        for (name, gradient) in gradients.iter() {
            let gradient = values(gradient.ok_or_else(|| candle_core::Error::msg(name))?)?;
            let is_zero = gradient.iter().all(|g| g.abs() < 1e-12);
            assert!(!is_zero || name.ends_with(".key.bias"), "{label}: `{name}`");
        }
    }
    Ok(())
}

#[test]
fn both_sides_share_one_table_of_tokens_and_drop_differently() -> Result<()> {
    let store = store(DType::F32);
    let config = ModelConfig { tied_output: true, dropout: 0.5, ..config() };
    let model = built(&store, &config)?;
    let tables: Vec<String> =
        store.iter().map(|(name, _)| name).filter(|name| name.contains("token")).collect();
    assert_eq!(tables, ["embedding.token.weight"]);
    assert!(!store.iter().any(|(name, _)| name.starts_with("output")));
    let hidden = normal(0, &[BATCH, TARGET_LEN, 33], DType::F32)?;
    assert_eq!(model.logits(&hidden)?.dims(), [BATCH, TARGET_LEN, VOCAB]);
    let mode = Mode::train(Stream::new(3, Purpose::Dropout));
    let x = ids(3, [TARGET_LEN; BATCH], TARGET_LEN, 0)?;
    let none = Mask::none();
    let tokens = Tokens { ids: &x, mask: &none };
    let a = values(&model.forward(tokens, tokens, mode)?)?;
    assert_eq!(a, values(&model.forward(tokens, tokens, mode)?)?);
    assert_ne!(a, values(&model.forward(tokens, tokens, Mode::Eval)?)?);
    Ok(())
}

/// With recomputation, gradients must also reach the encoder's states and the shared position bias.
#[test]
fn gradients_of_blocks_that_are_computed_again_are_the_same() -> Result<()> {
    let store = store(DType::F64);
    let position = PositionConfig::default_of("relative").expect("a kind");
    let config = ModelConfig { dropout: 0.5, position, ..config() };
    let model = built(&store, &config)?;
    let (x, none) = (ids(3, [TARGET_LEN; BATCH], TARGET_LEN, 0)?, Mask::none());
    let tokens = Tokens { ids: &x, mask: &none };
    let gradients = |activations| -> Result<Vec<Vec<f64>>> {
        let mode = Mode::Train { stream: Stream::new(3, Purpose::Dropout), activations };
        let loss = model.forward(tokens, tokens, mode)?.sqr()?.sum_all()?;
        let variables: Vec<_> = store.iter().collect();
        let named = variables.iter().map(|(name, variable)| (name.as_str(), &**variable));
        let gradients = backward(&loss, named)?;
        let names = variables.iter().map(|(name, _)| name);
        names.map(|name| values(gradients.get(name).expect("a gradient"))).collect()
    };
    let kept = gradients(Activations::Kept)?;
    for (kept, again) in kept.iter().zip(gradients(Activations::Recomputed)?) {
        assert!(kept.iter().zip(again).all(|(a, b)| (a - b).abs() <= 1e-12 * a.abs().max(1.)));
    }
    Ok(())
}

/// A predictor without a decoding state: it reads the whole sequence again at every step.
struct Again<'a> {
    model: &'a Seq2Seq,
    source: Tensor,
    padding: Tensor,
    written: Vec<Vec<u32>>,
}

impl Predictor for Again<'_> {
    fn next(&mut self, new: &[Vec<u32>]) -> Result<Vec<Vec<f64>>> {
        self.written.resize(new.len(), Vec::new());
        for (row, new) in self.written.iter_mut().zip(new) {
            row.extend(new);
        }
        let mask = Mask::none().with_key_padding_mask(&self.padding)?;
        let source = Tokens { ids: &self.source, mask: &mask };
        let target = Tensor::new(self.written.clone(), device())?;
        let target = Tokens { ids: &target, mask: &Mask::none() };
        let logits = self.model.forward(source, target, Mode::Eval)?;
        let (_batch, len, _vocab_size) = logits.dims3()?;
        rows(&logits.narrow(1, len - 1, 1)?.squeeze(1)?, &NEVER)
    }

    fn select(&mut self, rows: &[u32]) -> Result<()> {
        self.written = rows.iter().map(|&row| self.written[row as usize].clone()).collect();
        let rows = Tensor::new(rows, device())?;
        self.source = self.source.index_select(&rows, 0)?;
        self.padding = self.padding.index_select(&rows, 0)?;
        Ok(())
    }
}

fn strategies() -> [Strategy; 5] {
    let stream = Stream::new(3, Purpose::Sampling);
    let sampling = Sampling { temperature: 1.5, top_k: Some(7), ..Sampling::default() };
    [
        Strategy::Greedy,
        Strategy::Sample { stream, sampling },
        Strategy::Beams { n_beams: 1, length_penalty: 1. },
        Strategy::Beams { n_beams: 3, length_penalty: 0. },
        Strategy::Beams { n_beams: 5, length_penalty: 0.6 },
    ]
}

#[test]
fn cached_generation_equals_recomputed_generation() -> Result<()> {
    let prompts = vec![vec![BEGIN]; BATCH];
    for config in variants() {
        let store = store(DType::F64);
        let model = built(&store, &config)?;
        let source = ids(3, SOURCE_LENGTHS, SOURCE_LEN, 0)?;
        let mask = padding(SOURCE_LENGTHS, SOURCE_LEN)?;
        for strategy in strategies() {
            let states = model.encode(Tokens { ids: &source, mask: &mask }, Mode::Eval)?;
            let memory = Memory { states: &states, mask: &mask };
            let mut predictor = CachedPredictor::new(&model, memory, &NEVER)?;
            let written =
                generate(&mut predictor, &prompts, &ENDS, &strategy).map_err(Error::wrap)?;
            let padding = mask.key_padding_mask().ok_or_else(|| candle_core::Error::msg("none"))?;
            let (source, padding) = (source.clone(), padding.clone());
            let mut again = Again { model: &model, source, padding, written: Vec::new() };
            let expected = generate(&mut again, &prompts, &ENDS, &strategy).map_err(Error::wrap)?;
            for (written, expected) in written.iter().flatten().zip(expected.iter().flatten()) {
                let Sequence { ids, log_probability, score, has_ended } = written;
                assert_eq!((ids, has_ended), (&expected.ids, &expected.has_ended), "{strategy:?}");
                assert!((log_probability - expected.log_probability).abs() < 1e-9);
                assert!((score - expected.score).abs() < 1e-9);
                assert!(ids.iter().all(|id| !NEVER.contains(id)));
            }
            assert_eq!(written.len(), expected.len());
        }
    }
    Ok(())
}

#[test]
fn attention_maps_cover_all_layers_of_both_sides() -> Result<()> {
    let store = store(DType::F32);
    let model = built(&store, &config())?;
    let source = ids(3, SOURCE_LENGTHS, SOURCE_LEN, 0)?;
    let target = ids(5, [TARGET_LEN; BATCH], TARGET_LEN, 0)?;
    let mask = padding(SOURCE_LENGTHS, SOURCE_LEN)?;
    let none = Mask::none();
    let maps = model.attention_maps(
        Tokens { ids: &source, mask: &mask },
        Tokens { ids: &target, mask: &none },
    )?;
    assert_eq!((maps.encoder.len(), maps.decoder.len()), (2, 2));
    for layer in &maps.encoder {
        assert_eq!(layer.attention.weights.dims(), [BATCH, 3, SOURCE_LEN, SOURCE_LEN]);
        assert!(layer.cross_attention.is_none());
    }
    for layer in &maps.decoder {
        assert_eq!(layer.attention.weights.dims(), [BATCH, 3, TARGET_LEN, TARGET_LEN]);
        let cross =
            layer.cross_attention.as_ref().ok_or_else(|| candle_core::Error::msg("none"))?;
        assert_eq!(cross.weights.dims(), [BATCH, 3, TARGET_LEN, SOURCE_LEN]);
        // The padded keys of the second source.
        let padded = cross.weights.get(1)?.narrow(2, 4, 3)?;
        assert!(values(&padded)?.iter().all(|&weight| weight == 0.));
    }
    Ok(())
}

/// The keys and the message of a model that cannot be built.
fn refused(config: &ModelConfig) -> (Vec<String>, String) {
    match Seq2Seq::build(config, &SPEC, &store(DType::F32).trainable()) {
        Err(BuildError::Config(fault)) => (fault.keys.clone(), fault.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_built_is_refused_by_key() {
    let (keys, message) = refused(&ModelConfig { causal: true, ..config() });
    assert_eq!(keys, ["model.causal"]);
    assert!(message.contains("causal in its decoder"), "{message}");
    let (keys, message) = refused(&ModelConfig { max_seq_len: Some(6), ..config() });
    assert_eq!(keys, ["model.max_seq_len"]);
    assert!(message.contains("`model.max_seq_len` = 6 is less than the 7 positions"), "{message}");
}

/// Every kind of attention in each of the three tables is either built or refused with an error that names
/// the table, and no setting that is at its default.
#[test]
fn unsupported_attention_kinds_are_refused_by_their_table() -> Result<()> {
    for support in Support::of_all()? {
        let kind = || AttentionConfig::default_of(support.kind);
        let encoder_attention = Some(AttentionConfig::default());
        let position = PositionConfig::None;
        let base = ModelConfig { d_model: 24, n_heads: 2, position, ..ModelConfig::default() };
        let base = ModelConfig { encoder_attention, ..base };
        let places = [
            ("model.encoder_attention", support.bidirectional),
            ("model.attention", support.causal),
            ("model.cross_attention", support.cross),
        ];
        for (key, can) in places {
            let mut config = base.clone();
            match key {
                "model.encoder_attention" => config.encoder_attention = kind(),
                "model.attention" => config.attention = kind().unwrap_or_default(),
                _ => config.cross_attention = kind(),
            }
            if can {
                let store = store(DType::F32);
                let model = built(&store, &config)?;
                let estimate = Seq2Seq::estimate(&config, &SPEC);
                let cost = Seq2Seq::cost(&config, &SPEC, &store);
                assert!(cost.n_parameters as f64 > estimate.parameters, "{} {key}", support.kind);
                let source = ids(3, SOURCE_LENGTHS, SOURCE_LEN, 0)?;
                let target = ids(5, [TARGET_LEN; BATCH], TARGET_LEN, 0)?;
                let all = values(&logits(&model, &source, &target)?)?;
                assert!(all.iter().all(|x| x.is_finite()), "{} {key}", support.kind);
            } else {
                let (keys, message) = refused(&config);
                assert_eq!(keys, [format!("{key}.kind")], "{message}");
                assert!(message.contains(key) && !message.contains("model.causal"), "{message}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_estimate_is_near_the_parameters_and_the_cost_counts_every_product() -> Result<()> {
    for config in variants() {
        let store = store(DType::F32);
        built(&store, &config)?;
        let estimate = Seq2Seq::estimate(&config, &SPEC);
        let real = store.n_parameters() as f64;
        let ratio = estimate.parameters / real;
        assert!((0.8..1.).contains(&ratio), "{:?}: {ratio}", config.position);
    }
    // Computed by hand, without biases: 4 d² per attention, 2·d·d_ff per block, and d·vocab_size.
    let config = ModelConfig { bias: false, n_layers: 1, ..config() };
    let store = store(DType::F32);
    built(&store, &config)?;
    let (d, source, target) = (33, SOURCE_LEN, TARGET_LEN);
    let d_ff = config.feed_forward.d_ff(d).unwrap_or(0);
    let maps = source * (4 * d * d + 2 * d * d_ff) // the encoder
        + target * (4 * d * d + 2 * d * d_ff) // the decoder
        + (2 * target + 2 * source) * d * d // cross-attention: queries and outputs, keys and values
        + target * d * VOCAB; // the output
    let products = 2 * d * (source * source + target * target + target * source);
    let cost = Seq2Seq::cost(&config, &SPEC, &store);
    assert_eq!(cost.forward_flops, 2 * (maps + products) as u64);
    assert_eq!(cost.positions, source + target);
    Ok(())
}

#[test]
fn each_side_has_its_own_number_of_layers() -> Result<()> {
    let config = ModelConfig { n_encoder_layers: Some(1), n_layers: 3, ..config() };
    let store = store(DType::F32);
    let model = built(&store, &config)?;
    let source = ids(3, SOURCE_LENGTHS, SOURCE_LEN, 0)?;
    let target = ids(5, [TARGET_LEN; BATCH], TARGET_LEN, 0)?;
    let none = Mask::none();
    let maps = model.attention_maps(
        Tokens { ids: &source, mask: &none },
        Tokens { ids: &target, mask: &none },
    )?;
    assert_eq!((maps.encoder.len(), maps.decoder.len()), (1, 3));
    let ratio = Seq2Seq::estimate(&config, &SPEC).parameters / store.n_parameters() as f64;
    assert!((0.8..1.).contains(&ratio), "{ratio}");
    Ok(())
}
