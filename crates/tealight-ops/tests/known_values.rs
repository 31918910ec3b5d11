//! Values worked by hand, edge cases, and errors.

mod common;

use candle_core::{DType, Result, Tensor, Var};
use common::{differentiate, normal, values};
use tealight_ops::cross_entropy::{IGNORE_INDEX, cross_entropy, cross_entropy_soft};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::softmax::{log_softmax, softmax};
use tealight_ops::testing::device;
use tealight_ops::{activation, backward, dropout, embedding, linear, norm, rotary};

const TOLERANCE: f64 = 1e-6;

fn assert_values(actual: &Tensor, expected: &[f64]) -> Result<()> {
    let actual = values(actual)?;
    assert_eq!(actual.len(), expected.len());
    for (a, e) in actual.iter().zip(expected) {
        assert!(a == e || (a - e).abs() < TOLERANCE, "{actual:?} is not {expected:?}");
    }
    Ok(())
}

fn tensor(elements: &[f32], shape: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(elements, shape, device())
}

#[test]
fn softmax_survives_large_scores() -> Result<()> {
    let ln3 = 3_f32.ln();
    for shift in [0., 80., -80., 200., -200.] {
        // The distance is 0, within the rounding of the shift.
        let y = softmax(&tensor(&[shift, shift], &[1, 2])?)?;
        assert_values(&y, &[0.5, 0.5])?;
    }
    assert_values(&softmax(&tensor(&[0., ln3], &[1, 2])?)?, &[0.25, 0.75])?;
    assert_values(&log_softmax(&tensor(&[0., ln3], &[1, 2])?)?, &[0.25_f64.ln(), 0.75_f64.ln()])?;
    assert_values(&softmax(&tensor(&[200., -200.], &[1, 2])?)?, &[1., 0.])?;
    assert_values(&log_softmax(&tensor(&[200., -200.], &[1, 2])?)?, &[0., -400.])
}

#[test]
fn a_masked_row_is_zeros_and_has_no_gradient() -> Result<()> {
    let masked = f32::NEG_INFINITY;
    let x = tensor(&[masked, masked, masked, 1., masked, 1.], &[2, 3])?;
    let (y, gradients) = differentiate(&|x| softmax(&x[0]), std::slice::from_ref(&x))?;
    assert_values(&y, &[0., 0., 0., 0.5, 0., 0.5])?;
    let dx = values(&gradients[0])?;
    assert!(dx.iter().all(|dx| dx.is_finite()), "{dx:?}");
    assert_eq!(dx[..3], [0.; 3]);
    assert_eq!(dx[4], 0.);
    let y = values(&log_softmax(&x)?)?;
    assert!(!y.iter().any(|y| y.is_nan()), "{y:?}");
    assert_eq!(y[0], f64::NEG_INFINITY);
    Ok(())
}

#[test]
fn a_nan_is_not_hidden() -> Result<()> {
    let x = tensor(&[0., f32::NAN, 1., 2.], &[1, 4])?;
    for y in [softmax(&x)?, log_softmax(&x)?] {
        assert!(values(&y)?.iter().all(|y| y.is_nan()));
    }
    assert!(values(&cross_entropy(&x, &Tensor::new(&[0_u32], device())?, 0.)?)?[0].is_nan());
    Ok(())
}

#[test]
fn norms_of_three_and_four() -> Result<()> {
    let (x, ones) = (tensor(&[3., 4.], &[1, 2])?, tensor(&[1., 1.], &[2])?);
    let root = 12.5_f64.sqrt();
    assert_values(&norm::rms_norm(&x, &ones, 0.)?, &[3. / root, 4. / root])?;
    let bias = tensor(&[0., 10.], &[2])?;
    assert_values(&norm::layer_norm(&x, &(&ones * 2.)?, Some(&bias), 0.)?, &[-2., 12.])?;
    // A large common offset must not cancel the variance away.
    let far = tensor(&[30_003., 30_004.], &[1, 2])?;
    assert_values(&norm::layer_norm(&far, &ones, None, 0.)?, &[-1., 1.])
}

#[test]
fn activations_at_minus_one_zero_and_one() -> Result<()> {
    let x = tensor(&[-1., 0., 1.], &[3])?;
    assert_values(&activation::relu(&x)?, &[0., 0., 1.])?;
    assert_values(&activation::sigmoid(&x)?, &[0.268_941_421, 0.5, 0.731_058_579])?;
    assert_values(&activation::silu(&x)?, &[-0.268_941_421, 0., 0.731_058_579])?;
    assert_values(&activation::gelu(&x)?, &[-0.158_655_254, 0., 0.841_344_746])?;
    assert_values(&activation::gelu_tanh(&x)?, &[-0.158_808_009, 0., 0.841_191_991])
}

#[test]
fn linear_of_two_by_two() -> Result<()> {
    let x = tensor(&[1., 2.], &[2])?;
    let weight = tensor(&[3., 4., 5., 6., 7., 8.], &[3, 2])?;
    let bias = tensor(&[10., 20., 30.], &[3])?;
    let y = linear::linear(&x, &weight, Some(&bias))?;
    assert_eq!(y.dims(), [3]);
    assert_values(&y, &[21., 37., 53.])?;
    let error = linear::linear(&bias, &weight, None).expect_err("3 is not 2").to_string();
    let rule = "linear of x [3], weight [3, 2], bias None: expected (.., in), (out, in), (out)";
    assert!(error.starts_with(rule), "{error}");
    Ok(())
}

#[test]
fn dropout_keeps_the_mean_and_the_share() -> Result<()> {
    let (n, rate) = (100_003, 0.3);
    let ones = Tensor::ones(n, DType::F32, device())?;
    let y = values(&dropout::dropout(&ones, rate, Stream::new(1, Purpose::Dropout))?)?;
    let kept = y.iter().filter(|&&y| y != 0.).count() as f64 / n as f64;
    assert!((kept - (1. - rate)).abs() < 0.01, "{kept}");
    assert!((y.iter().sum::<f64>() / n as f64 - 1.).abs() < 0.01);
    Ok(())
}

#[test]
fn dropout_follows_the_words_of_its_stream() -> Result<()> {
    let stream = Stream::new(1, Purpose::Dropout);
    let y = values(&dropout::dropout(&normal(0, &[1_003], DType::F32)?, 0.5, stream)?)?;
    for (i, y) in y.into_iter().enumerate() {
        assert_eq!(y != 0., stream.block(i as u64 / 4)[i % 4] >= 1 << 31, "element {i}");
    }
    Ok(())
}

#[test]
fn dropout_rates_outside_the_unit_interval_are_refused() -> Result<()> {
    let (x, stream) = (normal(0, &[3], DType::F32)?, Stream::new(1, Purpose::Dropout));
    assert_eq!(values(&dropout::dropout(&x, 0., stream)?)?, values(&x)?);
    for rate in [-0.1, 1., f64::NAN] {
        assert!(dropout::dropout(&x, rate, stream).is_err(), "{rate}");
    }
    Ok(())
}

/// `torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.3)`, worked out: p = (1/4, 3/4),
/// and the smoothed target of class 0 is (0.7 + 0.3/2, 0.3/2) = (0.85, 0.15).
#[test]
fn smoothing_spreads_mass_over_all_classes() -> Result<()> {
    let logits = tensor(&[0., 3_f32.ln()], &[1, 2])?;
    let label = Tensor::new(&[0_u32], device())?;
    let (log_first, log_second) = (0.25_f64.ln(), 0.75_f64.ln());
    assert_values(&cross_entropy(&logits, &label, 0.)?, &[-log_first])?;
    let smoothed = -0.85 * log_first - 0.15 * log_second;
    assert_values(&cross_entropy(&logits, &label, 0.3)?, &[smoothed])?;
    let targets = tensor(&[0.85, 0.15], &[1, 2])?;
    assert_values(&cross_entropy_soft(&logits, &targets)?, &[smoothed])
}

#[test]
fn ignored_rows_carry_neither_loss_nor_gradient() -> Result<()> {
    let elements = [f32::NAN, f32::NAN, 0., 3_f32.ln()];
    let logits = Var::from_tensor(&tensor(&elements, &[2, 2])?)?;
    let labels = Tensor::new(&[IGNORE_INDEX, 0], device())?;
    let loss = cross_entropy(&logits, &labels, 0.)?;
    assert_values(&loss, &[4_f64.ln()])?;
    let gradients = backward(&loss, [("logits", logits.as_tensor())])?;
    assert_values(gradients.get("logits").expect("a gradient"), &[0., 0., -0.75, 0.75])?;

    let all = Tensor::new(&[IGNORE_INDEX, IGNORE_INDEX], device())?;
    assert_values(&cross_entropy(&logits, &all, 0.1)?, &[0.])
}

#[test]
fn a_class_that_is_masked_out_costs_nothing() -> Result<()> {
    let logits = tensor(&[0., f32::NEG_INFINITY, 0.], &[1, 3])?;
    let label = Tensor::new(&[2_i64], device())?;
    assert_values(&cross_entropy(&logits, &label, 0.)?, &[2_f64.ln()])?;
    let targets = tensor(&[0.5, 0., 0.5], &[1, 3])?;
    assert_values(&cross_entropy_soft(&logits, &targets)?, &[2_f64.ln()])
}

#[test]
fn bad_labels_are_named() -> Result<()> {
    let logits = normal(0, &[2, 3], DType::F32)?;
    for label in [3_i64, -1] {
        let labels = Tensor::new(&[0, label], device())?;
        let error = cross_entropy(&logits, &labels, 0.).expect_err("out of range").to_string();
        let expected = format!("label {label} is out of range for 3 classes");
        assert!(error.contains(&expected), "{error}");
    }
    let labels = Tensor::new(&[0_i64, 1, 2], device())?;
    assert!(cross_entropy(&logits, &labels, 0.).is_err());
    assert!(cross_entropy(&logits, &labels.narrow(0, 0, 2)?, 1.5).is_err());
    Ok(())
}

#[test]
fn ids_pick_rows_and_repeat() -> Result<()> {
    let table = Var::from_tensor(&tensor(&[1., 2., 3., 4., 5., 6.], &[3, 2])?)?;
    let ids = Tensor::new(&[[2_u32, 0, 2]], device())?;
    let y = embedding::embedding(&table, &ids)?;
    assert_eq!(y.dims(), [1, 3, 2]);
    assert_values(&y, &[5., 6., 1., 2., 5., 6.])?;
    let gradients = backward(&y.sum_all()?, [("table", table.as_tensor())])?;
    assert_values(gradients.get("table").expect("a gradient"), &[1., 1., 0., 0., 2., 2.])?;

    let error = embedding::embedding(&table, &Tensor::new(&[0_u32, 3], device())?);
    let error = error.expect_err("out of range").to_string();
    assert!(error.contains("id 3 is out of range for a vocabulary of 3"), "{error}");
    Ok(())
}

#[test]
fn linear_maps_in_half_precision_are_rounded_after_the_bias_only() -> Result<()> {
    // The products 257 and 2049 have one bit more than bf16 and f16 hold; 258 and 2050 have not.
    for (dtype, large) in [(DType::BF16, 256.), (DType::F16, 2048.)] {
        let x = tensor(&[large, 1., 0., 1.], &[2, 2])?.to_dtype(dtype)?;
        let weight = tensor(&[1., 1., 2., 2., -1., -1.], &[3, 2])?.to_dtype(dtype)?;
        let bias = tensor(&[1., 2., -1.], &[3])?.to_dtype(dtype)?;
        let large = f64::from(large);
        let expected = [large + 2., 2. * large + 4., -large - 2., 2., 4., -2.];
        let y = linear::linear(&x, &weight, Some(&bias))?;
        assert_eq!(y.dtype(), dtype);
        assert_values(&y, &expected)?;
        let map = linear::Map { weight: &weight, bias: Some(&bias) };
        assert_values(&linear::linears(&x, [map])?[0], &expected)?;
    }
    Ok(())
}

#[test]
fn of_padding_nothing_is_learned() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let table = tensor(&[1., 2., 3., 4., 5., 6.], &[3, 2])?.to_dtype(dtype)?;
        let table = Var::from_tensor(&table)?;
        let ids = Tensor::new(&[[2_u32, 0, 2]], device())?;
        let y = embedding::embedding_with_padding(&table, &ids, 2)?;
        assert_values(&y, &[5., 6., 1., 2., 5., 6.])?;
        let gradients = backward(&y.sum_all()?, [("table", table.as_tensor())])?;
        assert_values(gradients.get("table").expect("a gradient"), &[1., 1., 0., 0., 0., 0.])?;
        // A row that the table does not have is no padding.
        let y = embedding::embedding_with_padding(&table, &ids, 3)?;
        let gradients = backward(&y.sum_all()?, [("table", table.as_tensor())])?;
        assert_values(gradients.get("table").expect("a gradient"), &[1., 1., 0., 0., 2., 2.])?;
    }
    Ok(())
}

#[test]
fn ids_and_labels_are_of_any_integer_dtype() -> Result<()> {
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let ids = Tensor::new(&[2_i64, 0], device())?.to_dtype(dtype)?;
        for table in [DType::F32, DType::BF16] {
            let table = tensor(&[1., 2., 3.], &[3, 1])?.to_dtype(table)?;
            assert_values(&embedding::embedding(&table, &ids)?, &[3., 1.])?;
            let logits = Tensor::zeros((2, 3), table.dtype(), device())?;
            assert_values(&cross_entropy(&logits, &ids, 0.)?, &[2. * 3_f64.ln()])?;
        }
    }
    let floats = tensor(&[0., 1.], &[2])?;
    assert!(embedding::embedding(&normal(0, &[3, 1], DType::F32)?, &floats).is_err());
    Ok(())
}

#[test]
fn nothing_has_an_empty_softmax_and_no_loss() -> Result<()> {
    let x = Tensor::zeros((0, 3), DType::F32, device())?;
    assert_eq!(softmax(&x)?.dims(), [0, 3]);
    assert_eq!(log_softmax(&x)?.dims(), [0, 3]);
    let none = Tensor::zeros(0, DType::U32, device())?;
    assert_values(&cross_entropy(&x, &none, 0.1)?, &[0.])?;
    assert_values(&cross_entropy_soft(&x, &x)?, &[0.])
}

#[test]
fn a_quarter_turn_swaps_a_pair() -> Result<()> {
    let x = tensor(&[1., 2., 3., 4.], &[1, 1, 1, 4])?;
    let (cos, sin) = (tensor(&[0., 1.], &[1, 2])?, tensor(&[1., 0.], &[1, 2])?);
    let y = rotary::rotate(&x, &cos, &sin, rotary::Layout::Interleaved)?;
    assert_values(&y, &[-2., 1., 3., 4.])?;
    let y = rotary::rotate(&x, &cos, &sin, rotary::Layout::Half)?;
    assert_values(&y, &[-3., 2., 1., 4.])
}

#[test]
fn rotated_scores_depend_on_the_distance_alone() -> Result<()> {
    let [query, key] = [0, 1].map(|i| normal(i, &[1, 1, 1, 22], DType::F64));
    let (query, key) = (query?, key?);
    let frequencies = rotary::frequencies(22, 1e4)?;
    let at = |x: &Tensor, position| {
        let positions = position..position + 1;
        let (cos, sin) = rotary::tables(positions, &frequencies, DType::F64, device())?;
        rotary::rotate(x, &cos, &sin, rotary::Layout::Half)
    };
    let score = |m, n| (at(&query, m)? * at(&key, n)?)?.sum_all()?.to_scalar::<f64>();
    assert!((score(3, 0)? - score(103, 100)?).abs() < TOLERANCE);
    assert!((score(3, 0)? - score(4, 0)?).abs() > 1e-3);
    Ok(())
}

#[test]
fn shapes_that_do_not_match_are_refused() -> Result<()> {
    let x = normal(0, &[1, 1, 5, 6], DType::F32)?;
    let (cos, sin) = rotary::tables(0..4, &rotary::frequencies(6, 1e4)?, DType::F32, device())?;
    assert!(rotary::rotate(&x, &cos, &sin, rotary::Layout::Half).is_err());
    assert!(rotary::frequencies(5, 1e4).is_err());
    assert!(norm::rms_norm(&x, &normal(1, &[5], DType::F32)?, 1e-5).is_err());
    assert!(softmax(&Tensor::new(1_f32, device())?).is_err());
    Ok(())
}
