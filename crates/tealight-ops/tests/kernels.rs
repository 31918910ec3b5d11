//! What is true of kernels alone: on a GPU, or on the emulator. That they agree with the definitions in f32 and
//! f64 is for the other suites to show.

mod common;

use candle_core::{DType, Result, Tensor, Var};
use common::{differentiate, normal, values};
use tealight_ops::attention::{Options, attention};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::dropout::Draw;
use tealight_ops::embedding::embedding;
use tealight_ops::gradients::sum_in_order;
use tealight_ops::reference_ops::with_reference_ops;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::{Gradients, adamw, half_precision, muon};

/// Nothing waits for the device to look at labels and ids, so what is out of range gives NaN: by this it is
/// seen, too, that kernels are what computes here.
#[test]
fn what_is_out_of_range_is_not_a_number() -> Result<()> {
    let table = Tensor::new(&[[1_f32, 2.], [3., 4.]], device())?;
    let wrong = Tensor::new(&[1_i64, 9], device())?;
    assert!(cross_entropy(&table, &wrong, 0.)?.to_scalar::<f32>()?.is_nan());
    let rows = embedding(&table, &wrong)?.to_vec2::<f32>()?;
    assert_eq!(rows[0], [3., 4.]);
    assert!(rows[1].iter().all(|x| x.is_nan()));
    with_reference_ops(|| assert!(cross_entropy(&table, &wrong, 0.).is_err()));
    Ok(())
}

/// Of bf16, relative to the largest number: weights, and what they multiply, have 8 bits.
const BF16_TOLERANCE: f64 = 2e-2;

fn assert_near(name: &str, actual: &Tensor, expected: &Tensor) -> Result<()> {
    let expected = values(expected)?;
    let scale = expected.iter().fold(0.1_f64, |scale, x| scale.max(x.abs()));
    for (i, (actual, expected)) in values(actual)?.into_iter().zip(expected).enumerate() {
        let error = (actual - expected).abs();
        assert!(error <= BF16_TOLERANCE * scale, "{name}[{i}]: {actual} is not {expected}");
    }
    Ok(())
}

/// Tensor cores multiply tiles in another layout than plain kernels: every width of theirs, filled or not,
/// several tiles, and every way to restrict.
#[test]
fn attention_in_bf16_is_near_the_definition() -> Result<()> {
    for [batch, n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim] in [
        [1, 1, 1, 5, 5, 8, 8],
        [2, 2, 1, 70, 70, 17, 30],
        [1, 2, 2, 65, 130, 64, 64],
        [1, 4, 2, 130, 64, 40, 64],
        [1, 1, 1, 40, 70, 128, 100],
    ] {
        let operand = |i, heads, len, width| {
            normal(i, &[batch, heads, len, width], DType::BF16)?.to_dtype(DType::F32)
        };
        let operands = [
            operand(0, n_heads, q_len, head_dim)?,
            operand(1, n_kv_heads, kv_len, head_dim)?,
            operand(2, n_kv_heads, kv_len, value_dim)?,
        ];
        let padding: Vec<u8> = (0..batch * kv_len).map(|i| u8::from(i % 5 == 3)).collect();
        let padding = Tensor::from_vec(padding, (batch, kv_len), device())?;
        let segments: Vec<u32> = (0..batch * kv_len).map(|i| (i % kv_len / 20) as u32).collect();
        let segments = Tensor::from_vec(segments, (batch, kv_len), device())?;
        let bias = normal(4, &[n_heads, q_len, kv_len], DType::F32)?;
        let dropout = Some(Draw { rate: 0.3, stream: Stream::new(3, Purpose::Dropout) });
        let plain = Options::default();
        let mut all = vec![
            plain,
            Options { causal: true, ..plain },
            Options { window: Some(30), ..plain },
            Options { key_padding_mask: Some(&padding), dropout, ..plain },
            Options { attn_mask: Some(&bias), causal: true, window: Some(50), ..plain },
        ];
        let sink = normal(5, &[n_heads], DType::F32)?;
        all.push(Options { sink: Some(&sink), key_padding_mask: Some(&padding), ..plain });
        let log_forget = (normal(6, &[batch, n_heads, kv_len], DType::F32)?.abs()? * -0.1)?;
        if q_len <= kv_len {
            let forgets = Options { log_forget: Some(&log_forget), causal: true, ..plain };
            all.extend([forgets, Options { sink: Some(&sink), dropout, ..forgets }]);
        }
        if q_len == kv_len {
            all.push(Options { segments: Some(&segments), ..plain });
        }
        for (i, options) in all.iter().enumerate() {
            let run = |x: &[Tensor]| attention(&x[0], &x[1], &x[2], options);
            let half = |x: &[Tensor]| {
                let x: Vec<_> = x.iter().map(|x| x.to_dtype(DType::BF16)).collect::<Result<_>>()?;
                run(&x)?.to_dtype(DType::F32)
            };
            let (actual, gradients) = differentiate(&half, &operands)?;
            let (expected, definitions) = with_reference_ops(|| differentiate(&run, &operands))?;
            let name = format!("{q_len} × {kv_len}, {head_dim}, option {i}");
            assert_near(&name, &actual, &expected)?;
            for (which, (a, e)) in gradients.iter().zip(&definitions).enumerate() {
                assert_near(&format!("{name}: gradient {which}"), a, e)?;
            }
        }
    }
    Ok(())
}

/// Logits in half precision are not rounded again, and their loss is f32.
#[test]
fn the_loss_of_half_precision_is_not_rounded() -> Result<()> {
    let logits = (normal(0, &[40, 33], DType::BF16)? * 2.)?;
    let labels = (0..40_i64).map(|i| if i % 7 == 0 { -100 } else { i % 33 });
    let labels = Tensor::new(labels.collect::<Vec<_>>(), device())?;
    let logits = Var::from_tensor(&logits)?;
    let loss = |logits: &Tensor| cross_entropy(logits, &labels, 0.1);
    let (actual, wide) = (loss(&logits)?, logits.to_dtype(DType::F32)?);
    assert_eq!(actual.dtype(), DType::F32);
    let expected = with_reference_ops(|| loss(&wide))?;
    assert_near("loss", &actual, &expected)?;
    assert!((values(&actual)?[0] - values(&expected)?[0]).abs() < 1e-4);
    let gradients = tealight_ops::backward(&actual, [("logits", logits.as_tensor())])?;
    let wide = Var::from_tensor(&wide)?;
    let expected = with_reference_ops(|| {
        tealight_ops::backward(&loss(&wide)?, [("logits", wide.as_tensor())])
    })?;
    let of = |gradients: &tealight_ops::Gradients| gradients.get("logits").unwrap().clone();
    assert_near("gradient", &of(&gradients), &of(&expected))
}

/// More tensors than a list holds, of very different lengths; gradients in half precision.
#[test]
fn an_optimizer_s_list_is_its_parameters_one_by_one() -> Result<()> {
    let var = |i, n: usize| Var::from_tensor(&normal(i, &[n], DType::F32)?);
    let zeros = |n: usize| Var::zeros(n, DType::F32, device());
    let lens: Vec<usize> = (0..60).map(|i| 1 + i * 37 % 1000).chain([300_000]).collect();
    let state = || -> Result<Vec<[Var; 3]>> {
        let numbered = lens.iter().enumerate();
        numbered.map(|(i, &n)| Ok([var(i as u64, n)?, zeros(n)?, zeros(n)?])).collect()
    };
    let (fused, alone) = (state()?, state()?);
    let gradients: Vec<_> = lens
        .iter()
        .enumerate()
        .map(|(i, &n)| normal(100 + i as u64, &[n], DType::BF16))
        .collect::<Result<_>>()?;
    for step in [1, 2] {
        adamw::step_all(&adamw_slots(&fused, &gradients), step)?;
        for slot in adamw_slots(&alone, &gradients) {
            adamw::reference::step(&slot, step)?;
        }
    }
    for (fused, alone) in fused.iter().zip(&alone) {
        for (fused, alone) in fused.iter().zip(alone) {
            for (a, e) in values(fused)?.into_iter().zip(values(alone)?) {
                assert!((a - e).abs() < 1e-6, "{a} is not {e}");
            }
        }
    }
    let copies: Vec<_> =
        lens.iter().map(|&n| Var::zeros(n, DType::BF16, device())).collect::<Result<_>>()?;
    let parameters = fused.iter().map(|[theta, ..]| theta);
    half_precision::round_all(&parameters.clone().zip(&copies).collect::<Vec<_>>())?;
    for (theta, copy) in parameters.zip(&copies) {
        assert_eq!(values(copy)?, values(&theta.to_dtype(DType::BF16)?)?);
    }
    Ok(())
}

/// Each at a rate of its own, some with weight decay.
fn adamw_slots<'a>(state: &'a [[Var; 3]], gradients: &'a [Tensor]) -> Vec<adamw::Slot<'a>> {
    let mut slots = Vec::new();
    for (i, (variables, gradient)) in state.iter().zip(gradients).enumerate() {
        let [parameter, first_moment, second_moment] = variables;
        let hyper = adamw::Hyper {
            lr: 0.01 * (1 + i % 3) as f64,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1 * (i % 2) as f64,
            gradient_scale: 0.7,
        };
        slots.push(adamw::Slot { parameter, gradient, first_moment, second_moment, hyper });
    }
    slots
}

/// More matrices than one list holds, of several shapes, some of them taller than wide.
#[test]
fn muon_of_all_matrices_is_that_of_each() -> Result<()> {
    let shapes: Vec<_> = (0..110).map(|i| [[8, 12], [12, 8], [1, 5]][i % 3]).collect();
    let state = || -> Result<Vec<[Var; 3]>> {
        let numbered = shapes.iter().enumerate();
        let of = |(i, shape): (usize, &[usize; 2])| {
            let parameter = Var::from_tensor(&normal(i as u64, shape, DType::F32)?)?;
            let zeros = |shape: &[usize]| Var::zeros(shape, DType::F32, device());
            Ok([parameter, zeros(shape)?, zeros(&shape[..1])?])
        };
        numbered.map(of).collect()
    };
    let numbered = shapes.iter().enumerate();
    let gradients = numbered.map(|(i, shape)| normal(200 + i as u64, shape, DType::BF16));
    let gradients: Vec<_> = gradients.collect::<Result<_>>()?;
    let (fused, alone) = (state()?, state()?);
    for _ in 0..2 {
        muon::step_all(&muon_slots(&fused, &gradients))?;
        with_reference_ops(|| muon::step_all(&muon_slots(&alone, &gradients)))?;
    }
    for (fused, alone) in fused.iter().flatten().zip(alone.iter().flatten()) {
        for (a, e) in values(fused)?.into_iter().zip(values(alone)?) {
            assert!((a - e).abs() < 1e-4, "{a} is not {e}");
        }
    }
    Ok(())
}

/// Each at a rate and a scale of its own, some under NorMuon.
fn muon_slots<'a>(state: &'a [[Var; 3]], gradients: &'a [Tensor]) -> Vec<muon::Slot<'a>> {
    let mut slots = Vec::new();
    for (i, ([parameter, momentum, moment], gradient)) in state.iter().zip(gradients).enumerate() {
        let hyper = muon::Hyper {
            lr: 0.01 * (1 + i % 4) as f64,
            momentum: 0.9,
            nesterov: true,
            n_iterations: 5,
            scale: 1. + (i % 2) as f64,
            weight_decay: 0.1,
            gradient_scale: 0.5,
        };
        let row_moment = (i % 4 < 2).then_some(muon::RowMoment { moment, decay: 0.8 });
        slots.push(muon::Slot { parameter, gradient, momentum, row_moment, hyper });
    }
    slots
}

/// Processes that have a part of the gradients each must find the norm of one that has all.
#[test]
fn a_sum_of_squares_is_the_same_beside_any_other_gradients() -> Result<()> {
    // More than one list, and lengths of one block and of many.
    let lens = (0..110).map(|i| [3, 700, 9001, 30_001][i % 4] + i);
    let gradient = |(i, len): (usize, usize)| -> Result<_> {
        Ok((i.to_string(), Some(normal(i as u64, &[len], DType::F32)?)))
    };
    let all = lens.enumerate().map(gradient).collect::<Result<Vec<_>>>()?;
    let sums = Gradients::from_iter(all.clone()).sums_of_squares()?;
    for part in [&all[..1], &all[4..5], &all[40..100]] {
        let of_part = Gradients::from_iter(part.to_vec()).sums_of_squares()?;
        let first: usize = part[0].0.parse().expect("a number");
        assert_eq!(of_part, sums[first..][..part.len()]);
    }
    for ((_, gradient), sum) in all.iter().zip(sums) {
        let gradient = gradient.as_ref().expect("a gradient");
        let expected: f64 = values(gradient)?.into_iter().map(|x| x * x).sum();
        assert!((sum.expect("a sum") / expected - 1.).abs() < 1e-12, "{sum:?} is not {expected}");
    }
    Ok(())
}

/// A kernel adds up to 128 terms; the definition adds more.
#[test]
fn a_sum_in_order_has_the_bits_of_the_definition() -> Result<()> {
    for n in [1, 2, 7, 128, 130] {
        let term = |i| normal(i, &[1003], DType::F32)? * 10_f64.powf((i % 7) as f64 - 3.);
        let terms = (0..n).map(term).collect::<Result<Vec<_>>>()?;
        let terms: Vec<_> = terms.iter().collect();
        // As many additions as there are zeros at the end of the number: a tree of pairs.
        let mut additions: Vec<_> = (1..=n).map(|i| i.trailing_zeros() as usize).collect();
        additions[n as usize - 1] += n.count_ones() as usize - 1;
        let sum = values(&sum_in_order(&terms, &additions)?)?;
        let expected = with_reference_ops(|| sum_in_order(&terms, &additions))?;
        assert_eq!(sum, values(&expected)?, "{n} terms");
    }
    Ok(())
}
