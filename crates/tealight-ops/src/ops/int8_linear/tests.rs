use candle_core::{Device, Result, Tensor};

use super::*;
use crate::backend::threads;
use crate::rng::{Purpose, Stream};

fn uniform(shape: &[usize], seed: u64) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    let stream = Stream::new(seed, Purpose::Data);
    let numbers: Vec<f32> = (0..n as u64).map(|i| (stream.uniform(i) * 4. - 1.5) as f32).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Sizes around those of tiles, groups of rows, panels and blocks.
const SHAPES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 384, 100),
    (2, 63, 17),
    (3, 64, 32),
    (5, 65, 33),
    (12, 130, 31),
    (16, 96, 48),
    (17, 200, 64),
    (33, 70, 65),
    (77, 129, 200),
];

#[test]
fn every_instruction_set_gives_the_definition() -> Result<()> {
    for (seed, (n_rows, n_inputs, n_outputs)) in SHAPES.into_iter().enumerate() {
        let seed = seed as u64;
        let x = uniform(&[n_rows, n_inputs], seed)?;
        let weight = uniform(&[n_outputs, n_inputs], seed + 100)?;
        let bias = uniform(&[n_outputs], seed + 200)?;
        let expected = bits(&reference::int8_linear(&x, &weight, Some(&bias))?)?;
        let rounded = Weight::from_tensor(&weight)?.expect("a weight in f32");
        for &instructions in Int8::available() {
            let map = Map { weight: &rounded, bias: Some(&bias), function: None };
            let y = compute(instructions, &x, &[map])?.remove(0);
            let what = format!("{instructions:?}, {n_rows} rows, {n_inputs} to {n_outputs}");
            assert_eq!(bits(&y)?, expected, "{what}");
        }
    }
    Ok(())
}

#[test]
fn the_largest_sums_are_exact() -> Result<()> {
    // The largest codes, 255 of x and 127 of W, which VPMADDUBSW would saturate; and as many as 32 bits hold.
    let n_inputs = 66_311;
    let ones = Tensor::ones((2, n_inputs), DType::F32, &Device::Cpu)?;
    let weight = Weight::from_tensor(&ones)?.expect("the most inputs");
    for &instructions in Int8::available() {
        let map = Map { weight: &weight, bias: None, function: None };
        for y in compute(instructions, &ones, &[map])?[0].flatten_all()?.to_vec1::<f32>()? {
            assert!((y / n_inputs as f32 - 1.).abs() < 1e-6, "{instructions:?}: {y}");
        }
    }
    let more = Tensor::ones((1, n_inputs + 1), DType::F32, &Device::Cpu)?;
    assert!(Weight::from_tensor(&more)?.is_none());
    Ok(())
}

#[test]
fn rows_at_the_ends_of_the_range_are_those_of_the_definition() -> Result<()> {
    let device = &Device::Cpu;
    let x = Tensor::new(
        &[[3e38_f32, -3e38], [1e-37, -1e-38], [-2., -1.], [2., 1.], [1e-29, 0.]],
        device,
    )?;
    let w = Tensor::new(&[[1_f32, 0.5], [-1., 1e-37], [1e-38, 0.]], device)?;
    let weight = Weight::from_tensor(&w)?.expect("a weight in f32");
    let expected = bits(&reference::int8_linear(&x, &w, None)?)?;
    assert!(expected.iter().all(|y| f32::from_bits(*y).is_finite()));
    for &instructions in Int8::available() {
        let map = Map { weight: &weight, bias: None, function: None };
        assert_eq!(bits(&compute(instructions, &x, &[map])?[0])?, expected, "{instructions:?}");
    }
    Ok(())
}

#[test]
fn any_rank_and_layout_and_several_maps() -> Result<()> {
    let (x, w) = (uniform(&[4, 30, 3], 9)?, uniform(&[30, 20], 10)?);
    let (x, w) = (x.transpose(1, 2)?, w.t()?);
    let v = uniform(&[7, 30], 11)?;
    let [first, second] = [&w, &v].map(|w| Weight::from_tensor(w).unwrap().expect("in f32"));
    let map = |weight| Map { weight, bias: None, function: None };
    let y = int8_linears(&x, &[map(&first), map(&second)])?;
    assert_eq!((y[0].dims(), y[1].dims()), (&[4, 3, 20][..], &[4, 3, 7][..]));
    for (y, w) in y.iter().zip([&w, &v]) {
        assert_eq!(
            bits(y)?,
            bits(&reference::int8_linear(&x.contiguous()?, &w.contiguous()?, None)?)?
        );
    }
    let vector = int8_linears(&x.get(0)?.get(0)?.contiguous()?, &[map(&second)])?;
    assert_eq!(bits(&vector[0])?, bits(&y[1])?[..7]);
    Ok(())
}

#[test]
fn codes_are_those_of_a_weight() -> Result<()> {
    let w = uniform(&[33, 70], 12)?;
    let (codes, scales) = rounded(&w)?;
    for (row, (codes, scale)) in w.to_vec2::<f32>()?.iter().zip(codes.chunks(70).zip(scales)) {
        for (w, code) in row.iter().zip(codes) {
            assert!((w - f32::from(*code) * scale).abs() <= 0.501 * scale, "{w}: {code} · {scale}");
        }
        assert!(codes.iter().any(|code| code.abs() == 127));
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_threads_or_on_other_rows() -> Result<()> {
    let (x, w) = (uniform(&[100, 192], 1)?, uniform(&[300, 192], 2)?);
    let weight = Weight::from_tensor(&w)?.expect("a weight in f32");
    let map = Map { weight: &weight, bias: None, function: Some(Function::Gelu) };
    let run = |x: &Tensor| bits(&int8_linears(x, &[map])?[0]);
    let one = threads::with(1, || run(&x))?;
    for n_threads in [2, 3, 7] {
        assert_eq!(threads::with(n_threads, || run(&x))?, one, "{n_threads} threads");
    }
    assert_eq!(run(&x.narrow(0, 41, 1)?)?, one[41 * 300..42 * 300]);
    Ok(())
}

#[test]
fn the_activation_is_that_of_f32() -> Result<()> {
    let (x, w) = (uniform(&[40, 50], 3)?, uniform(&[70, 50], 4)?);
    let weight = Weight::from_tensor(&w)?.expect("a weight in f32");
    let map = |function| Map { weight: &weight, bias: None, function };
    let linear = int8_linears(&x, &[map(None)])?.remove(0);
    for function in
        [Function::Relu, Function::Gelu, Function::GeluTanh, Function::Silu, Function::Sigmoid]
    {
        let y = int8_linears(&x, &[map(Some(function))])?.remove(0);
        let difference = (y - function.forward(&linear)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference < 1e-6, "{function:?}: {difference}");
    }
    Ok(())
}

#[test]
fn numbers_that_are_not_finite_stay_in_their_row_and_column() -> Result<()> {
    let device = &Device::Cpu;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let x = Tensor::new(&[[1_f32, 2.], [bad, 1.], [0., 0.]], device)?;
        let w = Tensor::new(&[[1_f32, 1.], [0., 0.], [bad, 1.]], device)?;
        let weight = Weight::from_tensor(&w)?.expect("a weight in f32");
        let y = int8_linears(&x, &[Map { weight: &weight, bias: None, function: None }])?;
        let is_nan: Vec<Vec<bool>> = y[0]
            .to_vec2::<f32>()?
            .iter()
            .map(|row| row.iter().map(|y| y.is_nan()).collect())
            .collect();
        let expected = [[false, false, true], [true; 3], [false, false, true]];
        assert_eq!(is_nan, expected.map(|row| row.to_vec()).to_vec(), "{bad}");
    }
    Ok(())
}

#[test]
fn no_rows_and_wrong_operands() -> Result<()> {
    let w = uniform(&[3, 2], 5)?;
    let weight = Weight::from_tensor(&w)?.expect("a weight in f32");
    let map = Map { weight: &weight, bias: None, function: None };
    let empty = Tensor::zeros((0, 2), DType::F32, &Device::Cpu)?;
    assert_eq!(int8_linears(&empty, &[map])?[0].dims(), [0, 3]);
    for (x, said) in [
        (uniform(&[4, 3], 6)?, "expected (.., in), (out, in), (out)"),
        (uniform(&[4, 2], 7)?.to_dtype(DType::F64)?, "expected f32 on the CPU"),
        (candle_core::Var::from_tensor(&uniform(&[4, 2], 8)?)?.as_tensor().clone(), "no gradient"),
    ] {
        let error = int8_linears(&x, &[map]).expect_err("wrong operands").to_string();
        assert!(error.contains(said), "{error}");
    }
    assert!(Weight::from_tensor(&w.to_dtype(DType::F64)?)?.is_none());
    Ok(())
}
