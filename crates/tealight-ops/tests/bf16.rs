//! Operations under `ProductPrecision::Bf16` on the CPU: values and gradients near those of f32, the same bits for any
//! number of threads, and no difference where the CPU has no instructions for bf16.

mod common;

use candle_core::{DType, Result, Tensor};
use common::{Op, differentiate, normal, values};
use tealight_ops::attention::{Layout, Options, attention};
use tealight_ops::dropout::Draw;
use tealight_ops::linear::{Map, linear, linears};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::{
    ProductPrecision, activation, bf16_instructions, linear_cross_entropy, matmul, mlp, nystrom,
    threads, with_product_precision,
};

/// ‖a − b‖ / ‖b‖ of values and gradients. A bf16 has 8 significant bits, so an operand is off by up to 2⁻⁹ = .002,
/// and results of several products by more.
const DISTANCE: f64 = 1e-2;

/// The value and the gradients.
fn outcome(op: Op, inputs: &[Tensor], precision: ProductPrecision) -> Result<Vec<Vec<f64>>> {
    with_product_precision(precision, || {
        let (value, gradients) = differentiate(op, inputs)?;
        std::iter::once(&value).chain(&gradients).map(values).collect()
    })
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// Checks `op`, whose products are large enough to be rounded.
fn assert_near(name: &str, op: Op, inputs: &[Tensor]) -> Result<()> {
    if !device().is_cpu() {
        return Ok(());
    }
    let exact = outcome(op, inputs, ProductPrecision::F32)?;
    let rounded = outcome(op, inputs, ProductPrecision::Bf16)?;
    for (i, (rounded, exact)) in rounded.iter().zip(&exact).enumerate() {
        let off = distance(rounded, exact);
        assert!(off < DISTANCE, "{name}: result {i} is off by {off}");
    }
    assert_eq!(rounded != exact, bf16_instructions().is_some(), "{name}");
    for n_threads in [1, 3, 8] {
        let again = threads::with(n_threads, || outcome(op, inputs, ProductPrecision::Bf16))?;
        assert!(again == rounded, "{name}: {n_threads} threads give other bits");
    }
    Ok(())
}

fn inputs<const N: usize>(shapes: [&[usize]; N]) -> Result<Vec<Tensor>> {
    let normals = (0..).zip(shapes).map(|(i, shape)| normal(i, shape, DType::F32));
    normals.collect()
}

#[test]
fn linear_maps_are_near() -> Result<()> {
    let shapes: [&[usize]; 3] = [&[3, 67, 53], &[97, 53], &[97]];
    assert_near("linear", &|x| linear(&x[0], &x[1], Some(&x[2])), &inputs(shapes)?)?;
    let shapes: [&[usize]; 3] = [&[2, 601, 61], &[47, 61], &[47, 61]];
    let two: Op = &|x| {
        let map = |weight| Map { weight, bias: None };
        let [a, b] = linears(&x[0], [map(&x[1]), map(&x[2])])?;
        a * b
    };
    assert_near("linears", two, &inputs(shapes)?)
}

#[test]
fn feed_forward_networks_are_near() -> Result<()> {
    let shapes: [&[usize]; 5] = [&[2, 601, 61], &[131, 61], &[131], &[61, 131], &[61]];
    let stream = Stream::new(5, Purpose::Dropout);
    for dropout in [None, Some(Draw { rate: 0.2, stream })] {
        let network: Op = &|x| {
            let [up, down] = [1, 3].map(|i| Map { weight: &x[i], bias: Some(&x[i + 1]) });
            let function = activation::Function::Gelu;
            mlp::mlp(&x[0], &mlp::Mlp { up, function, dropout, down })
        };
        assert_near("mlp", network, &inputs(shapes)?)?;
    }
    Ok(())
}

#[test]
fn feed_forward_networks_of_several_chunks_are_near() -> Result<()> {
    let shapes: [&[usize]; 5] = [&[1_601, 33], &[3_001, 33], &[3_001], &[37, 3_001], &[37]];
    let network: Op = &|x| {
        let [up, down] = [1, 3].map(|i| Map { weight: &x[i], bias: Some(&x[i + 1]) });
        let function = activation::Function::Gelu;
        mlp::mlp(&x[0], &mlp::Mlp { up, function, dropout: None, down })
    };
    assert_near("mlp", network, &inputs(shapes)?)
}

#[test]
fn logits_with_cross_entropy_are_near() -> Result<()> {
    let shapes: [&[usize]; 3] = [&[271, 61], &[101, 61], &[101]];
    let labels: Vec<i64> = (0..271).map(|i| i * 37 % 101).collect();
    let labels = Tensor::new(labels, device())?;
    let loss: Op = &|x| {
        let map = Map { weight: &x[1], bias: Some(&x[2]) };
        Ok(linear_cross_entropy::linear_cross_entropy(&x[0], map, &labels, 0.1)?.loss)
    };
    assert_near("linear_cross_entropy", loss, &inputs(shapes)?)
}

#[test]
fn products_of_computed_matrices_are_near() -> Result<()> {
    let shapes: [&[usize]; 2] = [&[3, 67, 41], &[3, 41, 53]];
    assert_near("matmul", &|x| matmul::matmul(&x[0], &x[1]), &inputs(shapes)?)?;
    let shapes: [&[usize]; 2] = [&[3, 67, 41], &[3, 53, 41]];
    assert_near("matmul_transposed", &|x| matmul::matmul_transposed(&x[0], &x[1]), &inputs(shapes)?)
}

#[test]
fn attention_is_near() -> Result<()> {
    let shapes: [&[usize]; 3] = [&[2, 131, 3, 37], &[2, 131, 3, 37], &[2, 131, 3, 41]];
    let stream = Stream::new(5, Purpose::Dropout);
    for causal in [false, true] {
        for (window, dropout) in
            [(None, None), (Some(29), None), (None, Some(Draw { rate: 0.3, stream }))]
        {
            let layout = Layout::HeadsLast;
            let options = Options { causal, window, dropout, layout, ..Options::default() };
            let name = format!("attention, causal {causal}, window {window:?}");
            let op: Op = &|x| attention(&x[0], &x[1], &x[2], &options);
            assert_near(&name, op, &inputs(shapes)?)?;
        }
    }
    Ok(())
}

/// A query that reads one key has a weight of 1, and nothing that it computes changes that.
#[test]
fn a_query_with_a_single_key_has_no_gradient() -> Result<()> {
    let inputs = inputs([&[1, 1, 67, 64][..], &[1, 1, 67, 64], &[1, 1, 67, 64]])?;
    let options = Options { window: Some(1), causal: true, ..Options::default() };
    let op: Op = &|x| attention(&x[0], &x[1], &x[2], &options);
    let found = outcome(op, &inputs, ProductPrecision::Bf16)?;
    let largest = found[1].iter().chain(&found[2]).fold(0_f64, |largest, x| largest.max(x.abs()));
    assert!(largest < 1e-5, "{largest}");
    Ok(())
}

/// The pseudo-inverse of Nyström attention is an iteration that amplifies errors.
#[test]
fn the_pseudo_inverse_is_not_rounded() -> Result<()> {
    let inputs = inputs([&[2, 48, 48][..]])?;
    let op: Op = &|x| {
        let kernel = tealight_ops::softmax::softmax(&x[0])?;
        nystrom::pseudo_inverse(&kernel, 6, nystrom::Normalisation::EachMatrix)
    };
    let [exact, rounded] = [ProductPrecision::F32, ProductPrecision::Bf16]
        .map(|precision| outcome(op, &inputs, precision));
    assert!(exact? == rounded?);
    Ok(())
}
