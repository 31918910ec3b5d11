//! Models that compute in bf16 agree approximately with those that compute in f32, for every attention, position
//! encoding, norm and feed-forward network. On a GPU or the emulator, activations are bf16; on a CPU, the operands of
//! matrix products are rounded to it.

use candle_core::{DType, Result, Tensor};
use tealight_model::attention::AttentionConfig;
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::feed_forward::FeedForwardConfig;
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::norm::NormConfig;
use tealight_model::position::PositionConfig;
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::{ProductPrecision, with_product_precision};

const BATCH: usize = 2;
const N_CLASSES: usize = 7;

/// How a model computes.
#[derive(Clone, Copy)]
struct Setup {
    dtype: DType,
    products: ProductPrecision,
    seq_len: usize,
}

impl Setup {
    /// Activations in bf16.
    const HALF: Self = Self { dtype: DType::BF16, products: ProductPrecision::F32, seq_len: 12 };
    /// Operands of products in bf16; sizes at which they are rounded.
    const PRODUCTS: Self =
        Self { dtype: DType::F32, products: ProductPrecision::Bf16, seq_len: 37 };

    fn in_f32(self) -> Self {
        Self { dtype: DType::F32, products: ProductPrecision::F32, ..self }
    }
}

/// The logits, and the gradient of each parameter, of a model.
fn outcome(config: &ModelConfig, setup: Setup) -> Result<(Tensor, Vec<(String, Tensor)>)> {
    with_product_precision(setup.products, || forward_and_backward(config, setup))
}

fn forward_and_backward(
    config: &ModelConfig,
    Setup { dtype, seq_len, .. }: Setup,
) -> Result<(Tensor, Vec<(String, Tensor)>)> {
    let store = ParamStore::new(17, DType::F32, device()).computing_in(dtype);
    let input = InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None };
    let read_out = ReadOut::Mean;
    let spec = ForecasterSpec { input, seq_len, n_classes: N_CLASSES, read_out };
    let model =
        Forecaster::build(config, &spec, &store.trainable()).map_err(candle_core::Error::wrap)?;
    let stream = Stream::new(3, Purpose::Data);
    let ids = (0..(BATCH * seq_len) as u64).map(|i| stream.below(i, N_CLASSES as u64) as u32);
    let ids = Tensor::from_vec(ids.collect::<Vec<_>>(), (BATCH, seq_len), device())?;
    let padding: Vec<u8> =
        (0..BATCH * seq_len).map(|i| u8::from(i >= BATCH * seq_len - 4)).collect();
    let padding = Tensor::from_vec(padding, (BATCH, seq_len), device())?;
    let mask = Mask::none().with_key_padding_mask(&padding)?;
    let logits = model.forward(&Input::tokens(&ids), &mask, Mode::Eval)?;
    let loss = cross_entropy(&logits, &Tensor::new(&[1_u32, 3], device())?, 0.)?;
    let leaves = store.leaves();
    let named = leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
    let gradients = tealight_ops::backward(&loss, named)?;
    let of = |(name, gradient): (&str, Option<&Tensor>)| Some((name.to_owned(), gradient?.clone()));
    Ok((logits, gradients.iter().filter_map(of).collect()))
}

fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// ‖a − b‖ / ‖b‖, or ‖a − b‖ where b is tiny.
fn distance(a: &Tensor, b: &Tensor) -> Result<f64> {
    let (a, b) = (values(a)?, values(b)?);
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(&b).map(|(a, b)| a - b));
    Ok(difference / norm(&mut b.iter().copied()).max(0.05))
}

fn assert_near(name: &str, config: &ModelConfig, setup: Setup) -> Result<()> {
    let (logits, gradients) = outcome(config, setup)?;
    let (expected, expected_gradients) = outcome(config, setup.in_f32())?;
    assert_eq!(logits.dtype(), setup.dtype, "{name}");
    let off = distance(&logits, &expected)?;
    assert!(off < 0.03, "{name}: logits are off by {off}");
    assert_eq!(gradients.len(), expected_gradients.len(), "{name}");
    for ((parameter, actual), (_, expected)) in gradients.iter().zip(&expected_gradients) {
        // Under softmax, the gradient of a key's bias consists of rounding errors only.
        if parameter.ends_with("key.bias") {
            continue;
        }
        let off = distance(actual, expected)?;
        assert!(off < 0.1, "{name}: the gradient of {parameter} is off by {off}");
    }
    Ok(())
}

fn config() -> ModelConfig {
    ModelConfig { d_model: 32, n_heads: 2, n_layers: 2, ..ModelConfig::default() }
}

/// Heads of 32.
fn wide_config() -> ModelConfig {
    ModelConfig { d_model: 64, ..config() }
}

#[test]
fn every_attention_computes_in_bf16() -> Result<()> {
    every_attention(&config(), Setup::HALF)
}

#[test]
fn every_attention_multiplies_in_bf16() -> Result<()> {
    every_attention(&wide_config(), Setup::PRODUCTS)
}

fn every_attention(config: &ModelConfig, setup: Setup) -> Result<()> {
    for kind in AttentionConfig::KINDS {
        for causal in [false, true] {
            let attention = AttentionConfig::default_of(kind.name).unwrap();
            let config = ModelConfig { attention, causal, ..config.clone() };
            match assert_near(&format!("{}, causal {causal}", kind.name), &config, setup) {
                // Some kinds must be causal, and some cannot be.
                Err(error) if error.to_string().contains("causal") => {}
                result => result?,
            }
        }
    }
    Ok(())
}

#[test]
fn every_position_norm_and_feed_forward_network_computes_in_bf16() -> Result<()> {
    every_position_norm_and_feed_forward_network(&config(), Setup::HALF)
}

#[test]
fn every_position_norm_and_feed_forward_network_multiplies_in_bf16() -> Result<()> {
    every_position_norm_and_feed_forward_network(&wide_config(), Setup::PRODUCTS)
}

fn every_position_norm_and_feed_forward_network(config: &ModelConfig, setup: Setup) -> Result<()> {
    for position in PositionConfig::of_sequences() {
        let kind = position.kind();
        assert_near(kind, &ModelConfig { position, ..config.clone() }, setup)?;
    }
    for kind in NormConfig::KINDS.iter().filter(|kind| kind.name != "none") {
        let norm = NormConfig::default_of(kind.name).unwrap();
        assert_near(kind.name, &ModelConfig { norm, ..config.clone() }, setup)?;
    }
    for kind in FeedForwardConfig::KINDS {
        let feed_forward = FeedForwardConfig::default_of(kind.name).unwrap();
        assert_near(kind.name, &ModelConfig { feed_forward, ..config.clone() }, setup)?;
    }
    Ok(())
}
