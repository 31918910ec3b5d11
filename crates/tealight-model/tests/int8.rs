//! Models that are not trained compute their linear maps on integers of 8 bits, for every attention and feed-forward
//! network, near what they compute in f32.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use tealight_model::attention::AttentionConfig;
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::feed_forward::FeedForwardConfig;
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::{Bias, Linear, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::{cross_entropy, hits};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::{ProductPrecision, threads, with_product_precision};

const BATCH: usize = 3;
const SEQ_LEN: usize = 37;
const N_CLASSES: usize = 7;

/// A model of random weights that records no graph.
fn model(config: &ModelConfig) -> Result<Forecaster> {
    let store = ParamStore::new(17, DType::F32, &Device::Cpu);
    let input = InputSpec::Tokens { vocab_size: 50, n_token_types: 0, pad_id: None };
    let spec =
        ForecasterSpec { input, seq_len: SEQ_LEN, n_classes: N_CLASSES, read_out: ReadOut::Mean };
    let build = |vb| Forecaster::build(config, &spec, &vb).map_err(candle_core::Error::wrap);
    build(store.trainable())?;
    build(store.without_gradients())
}

fn logits(model: &Forecaster, precision: ProductPrecision) -> Result<Vec<f32>> {
    let stream = Stream::new(3, Purpose::Data);
    let ids = (0..(BATCH * SEQ_LEN) as u64).map(|i| stream.below(i, 50) as u32);
    let ids = Tensor::from_vec(ids.collect::<Vec<_>>(), (BATCH, SEQ_LEN), &Device::Cpu)?;
    let forward = || model.forward(&Input::tokens(&ids), &Mask::none(), Mode::Eval);
    with_product_precision(precision, forward)?.flatten_all()?.to_vec1()
}

/// ‖a − b‖ / ‖b‖
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

fn assert_near(name: &str, config: &ModelConfig) -> Result<()> {
    let model = model(config)?;
    let exact = logits(&model, ProductPrecision::F32)?;
    let rounded = logits(&model, ProductPrecision::Int8)?;
    let off = distance(&rounded, &exact);
    assert!(off > 0. && off < 0.05, "{name}: off by {off}");
    assert_eq!(logits(&model, ProductPrecision::F32)?, exact, "{name}: f32 after int8");
    Ok(())
}

fn config() -> ModelConfig {
    ModelConfig { d_model: 64, n_heads: 2, n_layers: 2, ..ModelConfig::default() }
}

#[test]
fn every_attention_is_near() -> Result<()> {
    for kind in AttentionConfig::KINDS {
        let mut n_built = 0;
        for causal in [false, true] {
            let attention = AttentionConfig::default_of(kind.name).unwrap();
            let config = ModelConfig { attention, causal, ..config() };
            match assert_near(&format!("{}, causal {causal}", kind.name), &config) {
                // Some kinds must be causal, and some cannot be.
                Err(error) if error.to_string().contains("causal") => {}
                result => {
                    result?;
                    n_built += 1;
                }
            }
        }
        assert!(n_built > 0, "{}", kind.name);
    }
    Ok(())
}

#[test]
fn every_feed_forward_network_is_near() -> Result<()> {
    for kind in FeedForwardConfig::KINDS {
        let feed_forward = FeedForwardConfig::default_of(kind.name).unwrap();
        assert_near(kind.name, &ModelConfig { feed_forward, ..config() })?;
    }
    Ok(())
}

#[test]
fn threads_change_no_bit() -> Result<()> {
    let model = model(&config())?;
    let run = || logits(&model, ProductPrecision::Int8);
    let one = threads::with(1, run)?;
    for n_threads in [2, 5] {
        assert_eq!(threads::with(n_threads, run)?, one, "{n_threads} threads");
    }
    Ok(())
}

#[test]
fn the_cross_entropy_is_that_of_the_logits() -> Result<()> {
    let store = ParamStore::new(5, DType::F32, &Device::Cpu);
    let build = |vb: &VarBuilder<'_>| {
        Linear::build([40, 90], Bias::With, Init::Randn { mean: 0., stdev: 0.1 }, vb)
    };
    build(&store.trainable())?;
    let linear = build(&store.without_gradients())?;
    let stream = Stream::new(7, Purpose::Data);
    let x = (0..300 * 40).map(|i| stream.normal(i) as f32).collect::<Vec<_>>();
    let x = Tensor::from_vec(x, (300, 40), &Device::Cpu)?;
    let labels =
        (0..300).map(|i| if i % 7 == 0 { -100 } else { stream.below(i, 90).cast_signed() });
    let labels = Tensor::from_vec(labels.collect::<Vec<_>>(), 300, &Device::Cpu)?;
    with_product_precision(ProductPrecision::Int8, || {
        let scored = linear.cross_entropy(&x, &labels, 0.)?;
        let logits = linear.forward(&x)?;
        let whole = cross_entropy(&logits, &labels, 0.)?.to_scalar::<f32>()?;
        assert!((scored.loss.to_scalar::<f32>()? / whole - 1.).abs() < 1e-5);
        let all_hits = hits(&logits, &labels)?.to_scalar::<u32>()?;
        assert_eq!(scored.hits.to_scalar::<u32>()?, all_hits);
        Ok(())
    })
}
