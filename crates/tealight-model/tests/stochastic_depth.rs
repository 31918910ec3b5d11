//! `model.stochastic_depth`: which examples leave out which blocks, and that nothing else changes.

mod common;

use candle_core::{DType, Result, Tensor};
use common::{normal, values};
use tealight_model::attention::AttentionConfig;
use tealight_model::block::BlockInput;
use tealight_model::config::LayerConfig;
use tealight_model::feed_forward::FeedForwardConfig;
use tealight_model::models::seq2seq::{Seq2Seq, Seq2SeqSpec, Tokens};
use tealight_model::norm::NormConfig;
use tealight_model::position::AttentionNeeds;
use tealight_model::stack::{Stack, StackSpec};
use tealight_model::{Activations, BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const LEN: usize = 3;
const RATE: f64 = 0.8;

/// Blocks of nothing but attention, without norms: what they leave out is seen in the residual stream.
fn bare(n_layers: usize) -> ModelConfig {
    ModelConfig {
        d_model: 6,
        n_heads: 2,
        n_layers,
        stochastic_depth: RATE,
        norm: NormConfig::None,
        feed_forward: FeedForwardConfig::None,
        ..ModelConfig::default()
    }
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

fn stack(config: &ModelConfig, store: &ParamStore) -> Result<Stack> {
    let spec = StackSpec::single(config, LEN);
    let needs = vec![AttentionNeeds::Nothing; spec.period()];
    Stack::build(config, &spec, &needs, &store.trainable()).map_err(candle_core::Error::wrap)
}

fn train(seed: u64) -> Mode {
    Mode::train(Stream::new(seed, Purpose::Dropout))
}

fn examples(x: &Tensor) -> Result<Vec<Vec<f64>>> {
    (0..x.dim(0)?).map(|i| values(&x.get(i)?)).collect()
}

fn states(stack: &Stack, x: &Tensor, mode: Mode) -> Result<Vec<Tensor>> {
    stack.hidden_states(x, &BlockInput::new(&Mask::none(), mode))
}

#[test]
fn a_block_is_left_out_or_scaled_and_evaluation_keeps_it() -> Result<()> {
    let stack = stack(&bare(1), &store())?;
    let x = normal(1, &[40, LEN, 6], DType::F64)?;
    let full = examples(&states(&stack, &x, Mode::Eval)?[1])?;
    let drawn = examples(&states(&stack, &x, train(1))?[1])?;
    let mut n_left_out = 0;
    for ((x, full), drawn) in examples(&x)?.iter().zip(&full).zip(&drawn) {
        if x == drawn {
            n_left_out += 1;
            continue;
        }
        for ((x, full), drawn) in x.iter().zip(full).zip(drawn) {
            let expected = x + (full - x) / (1. - RATE);
            assert!((drawn - expected).abs() < 1e-12, "{drawn} is not {expected}");
        }
    }
    assert!((24..40).contains(&n_left_out), "{n_left_out} of 40 at a rate of {RATE}");
    Ok(())
}

#[test]
fn the_rate_grows_linearly_with_the_depth() -> Result<()> {
    let n_layers = 4;
    let stack = stack(&bare(n_layers), &store())?;
    let n = 2_000;
    let states = states(&stack, &normal(1, &[n, LEN, 6], DType::F64)?, train(1))?;
    for l in 1..=n_layers {
        let (before, after) = (examples(&states[l - 1])?, examples(&states[l])?);
        let n_left_out =
            before.iter().zip(&after).filter(|(before, after)| before == after).count();
        let rate = RATE * l as f64 / n_layers as f64;
        let difference = n_left_out as f64 / n as f64 - rate;
        assert!(
            difference.abs() < 4. * (rate * (1. - rate) / n as f64).sqrt(),
            "{l}: {difference}"
        );
    }
    Ok(())
}

#[test]
fn draws_are_a_function_of_the_stream_and_differ_between_sub_layers() -> Result<()> {
    let config = ModelConfig { feed_forward: FeedForwardConfig::default(), ..bare(2) };
    let stack = stack(&config, &store())?;
    let x = normal(1, &[40, LEN, 6], DType::F64)?;
    let last = |seed| values(states(&stack, &x, train(seed))?.last().expect("a state"));
    assert_eq!(last(1)?, last(1)?);
    assert_ne!(last(1)?, last(2)?);
    // One of the first block's sub-layers is left out for some examples, and the other kept.
    let left_out = examples(&states(&stack, &x, train(1))?[1])?;
    let x = examples(&x)?;
    let all = x.iter().zip(&left_out).filter(|(x, y)| x == y).count();
    // At a rate of .4: 16 % of the examples if the draws are independent, 40 % if they are the same.
    assert!(all < 13, "{all} of 40 examples left both out");
    Ok(())
}

#[test]
fn activation_checkpointing_and_layers_that_differ_draw_the_same() -> Result<()> {
    let own =
        LayerConfig { attention: AttentionConfig::default_of("linear"), ..LayerConfig::default() };
    let config = ModelConfig {
        dropout: 0.1,
        feed_forward: FeedForwardConfig::default(),
        layers: vec![own, LayerConfig::default()],
        ..bare(4)
    };
    let store = store();
    let stack = stack(&config, &store)?;
    let x = normal(1, &[11, LEN, 6], DType::F64)?;
    let gradients = |activations| {
        let mode = Mode::Train { stream: Stream::new(3, Purpose::Dropout), activations };
        let y = stack.forward(&x, &BlockInput::new(&Mask::none(), mode))?;
        let parameters: Vec<_> = store.iter().collect();
        let named = parameters.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
        let gradients = tealight_ops::backward(&(&y * &y)?.sum_all()?, named)?;
        let all = gradients.iter().map(|(name, gradient)| {
            values(gradient.unwrap_or_else(|| panic!("`{name}` has no gradient")))
        });
        all.collect::<Result<Vec<_>>>()
    };
    assert_eq!(gradients(Activations::Kept)?, gradients(Activations::Recomputed)?);
    Ok(())
}

#[test]
fn both_stacks_of_an_encoder_decoder_have_it() -> Result<()> {
    let of = |n_encoder_layers, n_layers| -> Result<usize> {
        let config = ModelConfig {
            n_encoder_layers: Some(n_encoder_layers),
            norm: NormConfig::default(),
            feed_forward: FeedForwardConfig::default(),
            ..bare(n_layers)
        };
        let spec = Seq2SeqSpec { vocab_size: 7, source_len: 5, target_len: 4 };
        let model = Seq2Seq::build(&config, &spec, &store().trainable());
        let model = model.map_err(candle_core::Error::wrap)?;
        let ids = |len: usize| Tensor::ones((2, len), DType::U32, device());
        let (source, target, mask) = (ids(5)?, ids(4)?, Mask::none());
        let source = Tokens { ids: &source, mask: &mask };
        let target = Tokens { ids: &target, mask: &mask };
        let mut seen: Vec<Vec<f64>> = Vec::new();
        for seed in 0..8 {
            let logits = values(&model.forward(source, target, train(seed))?)?;
            if !seen.contains(&logits) {
                seen.push(logits);
            }
        }
        Ok(seen.len())
    };
    assert!(of(1, 1)? > 2);
    assert!(of(2, 3)? > 2);
    Ok(())
}

#[test]
fn rates_that_cannot_be_are_refused() {
    let refused = |config: &ModelConfig| match config.validate() {
        Err(BuildError::Config(fault)) => fault,
        _ => panic!("not refused"),
    };
    for rate in [1., -0.1, f64::NAN] {
        let fault = refused(&ModelConfig { stochastic_depth: rate, ..bare(1) });
        assert_eq!(fault.keys, ["model.stochastic_depth"]);
        assert!(fault.message.contains("at least 0 and less than 1"), "{fault}");
    }
    let fault = refused(&ModelConfig { residual: false, ..bare(1) });
    assert_eq!(fault.keys, ["model.stochastic_depth", "model.residual"]);
}
