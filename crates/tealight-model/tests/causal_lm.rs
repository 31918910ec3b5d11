//! The causal language model: masks, refused configurations, decoding and costs.

use candle_core::{DType, Error, Result, Tensor};
use tealight_model::attention::AttentionConfig;
use tealight_model::generation::{
    Predictor, Sampling, Sequence, StopRules, Strategy, generate, rows,
};
use tealight_model::models::causal_lm::{CachedPredictor, CausalLm, CausalLmSpec};
use tealight_model::position::PositionConfig;
use tealight_model::{BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const BATCH: usize = 2;
const SEQ_LEN: usize = 7;
const VOCAB: usize = 11;
const SPEC: CausalLmSpec = CausalLmSpec { vocab_size: VOCAB, seq_len: SEQ_LEN, packed: false };

fn config() -> ModelConfig {
    ModelConfig { d_model: 33, n_heads: 3, causal: true, ..ModelConfig::default() }
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

fn built(store: &ParamStore, config: &ModelConfig) -> Result<CausalLm> {
    CausalLm::build(config, &SPEC, &store.trainable()).map_err(candle_core::Error::wrap)
}

/// `(batch, len)`
fn ids(seed: u64, len: usize) -> Result<Tensor> {
    let stream = Stream::new(seed, Purpose::Data);
    let ids = (0..(BATCH * len) as u64).map(|at| stream.below(at, VOCAB as u64) as u32).collect();
    Tensor::from_vec(ids, (BATCH, len), device())
}

fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.flatten_all()?.to_vec1()
}

#[test]
fn every_position_forecasts_from_its_past_alone() -> Result<()> {
    for tied_output in [false, true] {
        let store = store();
        let model = built(&store, &ModelConfig { tied_output, ..config() })?;
        let ids = ids(3, SEQ_LEN)?;
        let logits = model.forward(&ids, &Mask::none(), Mode::Eval)?;
        assert_eq!(logits.dims(), [BATCH, SEQ_LEN, VOCAB]);
        let start = ids.narrow(1, 0, 4)?;
        let of_start = model.forward(&start, &Mask::none(), Mode::Eval)?;
        let (all, start) = (values(&logits.narrow(1, 0, 4)?)?, values(&of_start)?);
        assert!(all.iter().zip(&start).all(|(a, b)| (a - b).abs() < 1e-12));
        assert_eq!(model.attention_maps(&ids, &Mask::none())?.len(), 2);
        let names: Vec<String> = store.iter().map(|(name, _)| name).collect();
        assert_eq!(names.iter().any(|name| name == "output.weight"), !tied_output);
        assert!(!names.iter().any(|name| name == "output.bias"));
    }
    Ok(())
}

/// The keys and the message of a model that cannot be built.
fn refused(config: &ModelConfig) -> (Vec<String>, String) {
    match CausalLm::build(config, &SPEC, &store().trainable()) {
        Err(BuildError::Config(fault)) => (fault.keys.clone(), fault.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_built_is_refused_by_key() {
    let (keys, message) = refused(&ModelConfig { causal: false, ..config() });
    assert_eq!(keys, ["model.causal"]);
    assert!(message.contains("needs true"), "{message}");
    let (keys, _) = refused(&ModelConfig { max_seq_len: Some(6), ..config() });
    assert_eq!(keys, ["model.max_seq_len"]);
    let cross_attention = Some(config().attention);
    let (keys, _) = refused(&ModelConfig { cross_attention, ..config() });
    assert_eq!(keys, ["model.cross_attention"]);
    let (keys, _) = refused(&ModelConfig { n_encoder_layers: Some(1), ..config() });
    assert_eq!(keys, ["model.n_encoder_layers"]);
    let (keys, _) = refused(&ModelConfig { head_dim: Some(0), ..config() });
    assert_eq!(keys, ["model.head_dim"]);
    let (keys, message) = refused(&ModelConfig { scale_output: true, ..config() });
    assert_eq!(keys, ["model.scale_output", "model.tied_output"]);
    assert!(message.contains("weights of its own"), "{message}");
}

#[test]
fn kinds_with_heads_accept_any_head_dim() -> Result<()> {
    let base = ModelConfig { n_heads: 5, head_dim: Some(8), ..config() };
    for kind in ["none", "rotary", "relative", "alibi"] {
        let position = PositionConfig::default_of(kind).unwrap_or_default();
        let (store, config) = (store(), ModelConfig { position, ..base.clone() });
        let model = built(&store, &config)?;
        let logits = model.forward(&ids(3, SEQ_LEN)?, &Mask::none(), Mode::Eval)?;
        assert_eq!(logits.dims(), [BATCH, SEQ_LEN, VOCAB]);
        let tensors = store.tensors();
        assert_eq!(tensors["layer.0.attention.query.weight"].dims(), [40, 33]);
        assert_eq!(tensors["layer.1.attention.output.weight"].dims(), [33, 40]);
    }
    for kind in ["aft_full", "aft_local", "aft_simple", "aft_conv", "rwkv"] {
        let attention = AttentionConfig::default_of(kind).unwrap_or_default();
        let position = PositionConfig::None;
        let (keys, message) = refused(&ModelConfig { attention, position, ..base.clone() });
        assert_eq!(keys, ["model.head_dim", "model.attention.kind"]);
        assert!(message.contains("40 features") && message.contains("33"), "{message}");
    }
    Ok(())
}

#[test]
fn scaled_output_equals_tied_output_of_scaled_states() -> Result<()> {
    let config = ModelConfig { tied_output: true, ..config() };
    let store = store();
    let plain = built(&store, &config)?;
    let scaled = built(&store, &ModelConfig { scale_output: true, ..config })?;
    let ids = ids(3, SEQ_LEN)?;
    let [plain, scaled] =
        [plain, scaled].map(|model| values(&model.forward(&ids, &Mask::none(), Mode::Eval)?));
    let root = 33_f64.sqrt();
    for (plain, scaled) in plain?.iter().zip(scaled?) {
        assert!((plain - scaled * root).abs() < 1e-12);
    }
    Ok(())
}

#[test]
fn the_cost_counts_every_product() -> Result<()> {
    let config = ModelConfig { bias: false, n_layers: 1, ..config() };
    let store = store();
    built(&store, &config)?;
    let (d, len) = (33, SEQ_LEN);
    let d_ff = config.feed_forward.d_ff(d).unwrap_or(0);
    let maps = len * (4 * d * d + 2 * d * d_ff + d * VOCAB);
    let cost = CausalLm::cost(&config, &SPEC, &store);
    assert_eq!(cost.forward_flops, 2 * (maps + 2 * d * len * len) as u64);
    assert_eq!(cost.positions, len);
    let estimate = CausalLm::estimate(&config, &SPEC);
    assert!(estimate.parameters < cost.n_parameters as f64);
    assert_eq!(cost.activations, estimate.activations as usize);
    Ok(())
}

/// A predictor without a decoding state: it reads the whole window of the text again at every step.
struct Again<'a> {
    model: &'a CausalLm,
    texts: Vec<Vec<u32>>,
    n_seen: usize,
}

impl Predictor for Again<'_> {
    fn next(&mut self, new: &[Vec<u32>]) -> Result<Vec<Vec<f64>>> {
        self.texts.resize(new.len(), Vec::new());
        for (text, new) in self.texts.iter_mut().zip(new) {
            text.extend(new);
        }
        self.n_seen += new[0].len();
        if self.n_seen > SEQ_LEN {
            self.n_seen = self.texts[0].len().min(SEQ_LEN / 2);
        }
        let seen = |text: &Vec<u32>| text[text.len() - self.n_seen..].to_vec();
        let ids = Tensor::new(self.texts.iter().map(seen).collect::<Vec<_>>(), device())?;
        let logits = self.model.forward(&ids, &Mask::none(), Mode::Eval)?;
        rows(&logits.narrow(1, self.n_seen - 1, 1)?.squeeze(1)?, &[0])
    }

    fn select(&mut self, rows: &[u32]) -> Result<()> {
        self.texts = rows.iter().map(|&row| self.texts[row as usize].clone()).collect();
        Ok(())
    }
}

#[test]
fn generation_beyond_max_seq_len_restarts_from_its_last_half() -> Result<()> {
    let stream = Stream::new(3, Purpose::Sampling);
    let sampling = Sampling {
        temperature: 1.5,
        top_k: Some(9),
        top_p: Some(0.9),
        min_p: Some(0.01),
        repetition_penalty: 1.2,
    };
    let strategies = [
        Strategy::Greedy,
        Strategy::Sample { stream, sampling },
        Strategy::Beams { n_beams: 3, length_penalty: 0.6 },
    ];
    let ends = StopRules { stop: &[1, 2], max_len: 3 * SEQ_LEN };
    let relative = PositionConfig::default_of("relative").unwrap_or_default();
    for position in [PositionConfig::default(), relative] {
        let store = store();
        let model = built(&store, &ModelConfig { position, ..config() })?;
        for strategy in strategies {
            // Shorter than the longest sequence, equally long, and longer.
            for prompt_len in [1, 3, SEQ_LEN, 2 * SEQ_LEN] {
                let prompts = ids(5, prompt_len)?.to_vec2()?;
                let mut predictor = CachedPredictor::new(&model, &[0], device())?;
                let written =
                    generate(&mut predictor, &prompts, &ends, &strategy).map_err(Error::wrap)?;
                let mut again = Again { model: &model, texts: Vec::new(), n_seen: 0 };
                let expected =
                    generate(&mut again, &prompts, &ends, &strategy).map_err(Error::wrap)?;
                let n_beams =
                    if let Strategy::Beams { n_beams, .. } = strategy { n_beams } else { 1 };
                assert!(written.iter().all(|sequences| sequences.len() == n_beams));
                for (written, expected) in written.iter().flatten().zip(expected.iter().flatten()) {
                    let Sequence { ids, log_probability, .. } = written;
                    assert_eq!(ids, &expected.ids, "{strategy:?}, {prompt_len}");
                    assert!((log_probability - expected.log_probability).abs() < 1e-9);
                    assert!(ids.iter().all(|&id| id > 2));
                }
            }
        }
    }
    Ok(())
}
