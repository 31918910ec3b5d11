//! Nyström attention with fewer landmarks than positions, which the laws of `attention_laws.rs` do not
//! cover with their default settings and short lengths.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{DType, Result, Tensor};
use common::{normal, values};
use differences::checked_gradients;
use tealight_model::attention::nystrom::{Compat, Config};
use tealight_model::attention::{AttentionKind, softmax};
use tealight_model::position::AttentionNeeds;
use tealight_model::{
    Attention, AttentionInput, AttentionSpec, Bias, BuildError, Initializer, LayerPlace, Mask,
    Mode, ParamStore, Reads,
};
use tealight_ops::testing::device;

const BATCH: usize = 3;
const LEN: usize = 11;
const D_MODEL: usize = 15;
const N_HEADS: usize = 3;

fn config() -> Config {
    Config { n_landmarks: 4, conv_kernel: Some(5), ..Config::default() }
}

fn spec() -> AttentionSpec<'static> {
    AttentionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: None,
        max_q_len: LEN,
        max_kv_len: LEN,
        reads: Reads::Everything,
        dropout: 0.,
        bias: Bias::With,
        position: AttentionNeeds::Nothing,
        packed: false,
        conv_size: 0,
        layer: LayerPlace::ONLY,
        init: &Initializer::FAN_IN,
        key: "model.attention",
    }
}

/// A layer and its parameters, which depend only on names and shapes.
fn layer(kind: &dyn AttentionKind, dtype: DType) -> (ParamStore, Box<dyn Attention>) {
    let store = ParamStore::new(17, dtype, device());
    let layer = kind.build(&spec(), &store.trainable().pp("attention")).expect("a layer");
    (store, layer)
}

/// Padding on the left, in the middle and on the right; the last row has so much padding that the result
/// is exact.
fn padding() -> Result<Mask> {
    let rows = [
        [1_u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1],
        [1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 1],
    ];
    Mask::none().with_key_padding_mask(&Tensor::new(&rows, device())?)
}

fn input<'a>(x: &'a Tensor, mask: &'a Mask) -> AttentionInput<'a> {
    AttentionInput::new(x, mask, Mode::Eval)
}

fn x(dtype: DType) -> Result<Tensor> {
    normal(0, &[BATCH, LEN, D_MODEL], dtype)
}

/// `x` with other numbers where `flags (batch, len)` are 1.
fn disturbed(x: &Tensor, flags: &Tensor) -> Result<Tensor> {
    let flags = flags.unsqueeze(2)?.broadcast_as(x.shape())?;
    flags.where_cond(&(normal(7, x.dims(), x.dtype())? * 30.)?, x)
}

fn message(config: &Config, spec: &AttentionSpec<'_>) -> String {
    let store = ParamStore::new(17, DType::F32, device());
    match config.build(spec, &store.trainable()) {
        Err(BuildError::Config(fault)) => {
            assert!(fault.keys.iter().all(|key| key.starts_with("model.")), "{fault:?}");
            fault.to_string()
        }
        other => panic!("{other:?} was not refused"),
    }
}

#[test]
fn every_parameter_has_a_gradient_that_agrees_with_finite_differences() -> Result<()> {
    for compat in [Compat::None, Compat::HuggingFace] {
        let (store, layer) = layer(&Config { compat, ..config() }, DType::F64);
        let x = x(DType::F64)?;
        for mask in [Mask::none(), padding()?] {
            let label = format!("{compat:?}");
            checked_gradients(&label, &store, 5, || {
                let y = layer.forward(&input(&x, &mask))?;
                (&y * normal(99, y.dims(), y.dtype())?)?.sum_all()
            })?;
        }
    }
    Ok(())
}

#[test]
fn padding_has_no_influence_on_real_positions_unless_transformers_is_meant() -> Result<()> {
    let mask = padding()?;
    let flags = mask.key_padding_mask().unwrap();
    let real = |y: &Tensor| {
        let flags = flags.unsqueeze(2)?.broadcast_as(y.shape())?;
        values(&flags.where_cond(&y.zeros_like()?, y)?)
    };
    for compat in [Compat::None, Compat::HuggingFace] {
        let (_, layer) = layer(&Config { compat, ..config() }, DType::F32);
        let x = x(DType::F32)?;
        let a = layer.forward(&input(&x, &mask))?;
        let b = layer.forward(&input(&disturbed(&x, flags)?, &mask))?;
        assert_eq!(real(&a)? == real(&b)?, compat == Compat::None, "{compat:?}");
    }
    Ok(())
}

#[test]
fn an_example_does_not_depend_on_its_neighbours_unless_transformers_is_meant() -> Result<()> {
    let others = Tensor::new(&[[0_u8; LEN], [1; LEN], [1; LEN]], device())?;
    for compat in [Compat::None, Compat::HuggingFace] {
        let (_, layer) = layer(&Config { compat, ..config() }, DType::F32);
        let (x, mask) = (x(DType::F32)?, Mask::none());
        let a = layer.forward(&input(&x, &mask))?;
        let b = layer.forward(&input(&disturbed(&x, &others)?, &mask))?;
        let first = |y: &Tensor| values(&y.narrow(0, 0, 1)?);
        assert_eq!(first(&a)? == first(&b)?, compat == Compat::None, "{compat:?}");
    }
    Ok(())
}

#[test]
fn kernels_longer_than_the_sequence_train_only_their_middle_taps() -> Result<()> {
    let long = Config { conv_kernel: Some(31), ..config() };
    let (store, layer) = layer(&long, DType::F64);
    let x = x(DType::F64)?;
    for mask in [Mask::none(), padding()?] {
        let gradients = checked_gradients("a long kernel", &store, 3, || {
            let y = layer.forward(&input(&x, &mask))?;
            (&y * normal(99, y.dims(), y.dtype())?)?.sum_all()
        })?;
        let of_kernel = gradients.iter().find(|(name, _)| name.ends_with("conv.weight"));
        let gradient = values(of_kernel.and_then(|(_, gradient)| gradient).expect("a gradient"))?;
        for head in gradient.chunks(31) {
            let middle = 15 - (LEN - 1)..=15 + (LEN - 1);
            let outside = (0..31).filter(|tap| !middle.contains(tap));
            assert!(outside.into_iter().all(|tap| head[tap] == 0.), "{head:?}");
            assert!(head[15] != 0.);
        }
    }
    Ok(())
}

#[test]
fn large_scores_give_finite_outputs_and_gradients() -> Result<()> {
    for scale in [0., 30., 300.] {
        let (store, layer) = layer(&config(), DType::F32);
        let (x, mask) = ((x(DType::F32)? * scale)?, padding()?);
        let loss = layer.forward(&input(&x, &mask))?.sum_all()?;
        let variables: Vec<_> = store.iter().collect();
        let named = variables.iter().map(|(name, var)| (name.as_str(), var.as_tensor()));
        for (name, gradient) in tealight_ops::backward(&loss, named)?.iter() {
            let gradient = values(gradient.unwrap())?;
            assert!(gradient.iter().all(|g| g.is_finite()), "{scale}: `{name}`");
        }
    }
    Ok(())
}

#[test]
fn nystrom_equals_softmax_up_to_n_landmarks_positions() -> Result<()> {
    let (_, exact) = layer(&softmax::Config::default(), DType::F64);
    let (_, nystrom) = layer(&Config { n_landmarks: LEN, ..Config::default() }, DType::F64);
    let (x, mask) = (x(DType::F64)?, padding()?);
    let input = input(&x, &mask);
    let same = |a: &Tensor, b: &Tensor| {
        let differences = values(&(a - b)?)?;
        assert!(differences.iter().all(|difference| difference.abs() < 1e-12));
        Ok::<_, candle_core::Error>(())
    };
    same(&nystrom.forward(&input)?, &exact.forward(&input)?)?;
    same(&nystrom.weights(&input)?, &exact.weights(&input)?)?;
    assert!(nystrom.factors(&input)?.is_empty());
    Ok(())
}

#[test]
fn the_weights_are_the_product_of_the_three_factors() -> Result<()> {
    let (_, layer) = layer(&config(), DType::F64);
    let (x, mask) = (x(DType::F64)?, Mask::none());
    let factors = layer.factors(&input(&x, &mask))?;
    let names: Vec<&str> = factors.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["kernel_1", "inverse", "kernel_3", "kernel_2"]);
    let shapes: Vec<&[usize]> = factors.iter().map(|(_, factor)| &factor.dims()[2..]).collect();
    assert_eq!(shapes, [[LEN, 4], [4, 4], [4, LEN], [4, 4]]);
    let product = factors[0].1.matmul(&factors[1].1.matmul(&factors[2].1)?)?;
    let differences = values(&(product - layer.weights(&input(&x, &mask))?)?)?;
    assert!(differences.iter().all(|difference| difference.abs() < 1e-12));
    Ok(())
}

#[test]
fn the_cost_counts_the_convolution_and_is_linear() {
    let (store, _) = layer(&config(), DType::F32);
    let counted: usize = store.tensors().values().map(Tensor::elem_count).sum();
    assert_eq!(config().cost(&spec(), LEN, LEN).parameters, counted as f64);
    let [short, long] = [1 << 20, 1 << 21].map(|len| config().cost(&spec(), len, len));
    assert!((long.flops / short.flops - 2.).abs() < 1e-3);
    assert!((long.activations / short.activations - 2.).abs() < 1e-3);
}

#[test]
fn what_cannot_be_built_is_refused_by_name() {
    let refused = |config: Config, rule: &str| {
        let message = message(&config, &spec());
        assert!(message.contains(rule), "{message}");
    };
    refused(Config { n_landmarks: 0, ..config() }, "`model.attention.n_landmarks` = 0");
    refused(Config { n_iterations: 0, ..config() }, "`model.attention.n_iterations` = 0");
    refused(Config { n_iterations: 13, ..config() }, "= 13 must be at most 12");
    refused(Config { conv_kernel: Some(4), ..config() }, "`model.attention.conv_kernel` = 4");
    refused(Config { conv_kernel: Some(0), ..config() }, "= 0 must be odd");

    let causal = message(&config(), &AttentionSpec { reads: Reads::Past, ..spec() });
    assert!(causal.contains("`model.attention.kind`") && causal.contains("`model.causal`"));
    let cross = message(&config(), &AttentionSpec { reads: Reads::Memory, ..spec() });
    assert!(cross.contains("cannot read another sequence"), "{cross}");
    let biased = AttentionSpec { position: AttentionNeeds::ScoreBias, ..spec() };
    assert!(message(&config(), &biased).contains("`model.position.kind`"));
}
