//! The contract for the operations that scan a sequence: the value and the gradient of their
//! definition, no look into the future, finite numbers at any size, the same bits on any threads.

#[path = "common/agreement.rs"]
mod agreement;
mod common;

use agreement::{TOLERANCES, assert_agree, assert_close};
use candle_core::{DType, Device, IndexOp, Result, Tensor};
use common::{Op, differentiate, normal, values};
use tealight_ops::linear_attention::{self, linear_attention};
use tealight_ops::retention::{self, retention};
use tealight_ops::short_convolution::{
    self, last_tokens, short_convolution, short_convolution_after,
};
use tealight_ops::testing::device;
use tealight_ops::threads;
use tealight_ops::wkv::{self, wkv};
use tealight_ops::{Reach, Tokens};

/// `(batch, n_heads, len, n_features, width)`: single, prime, and enough for several threads.
const SHAPES: [[usize; 5]; 5] =
    [[1, 1, 1, 1, 1], [2, 3, 5, 11, 7], [1, 2, 67, 4, 17], [3, 1, 7, 5, 64], [2, 3, 31, 37, 41]];

/// One decay for each head, the first of which keeps everything.
fn decays(n_heads: usize) -> Vec<f64> {
    (0..n_heads).map(|head| 0.8_f64.powf(head as f64)).collect()
}

/// In turn: the second and the last key; and, of the first row, all of them.
fn padding(batch: usize, len: usize, whole_row: bool) -> Result<Tensor> {
    let flag = |row, at| at == 1 || at + 1 == len || at == 0 && row == 1 || row == 0 && whole_row;
    let flags = (0..batch).flat_map(|row| (0..len).map(move |at| u8::from(flag(row, at))));
    Tensor::from_vec(flags.collect(), (batch, len), device())
}

fn paddings(batch: usize, len: usize) -> Result<[Option<Tensor>; 3]> {
    Ok([None, Some(padding(batch, len, false)?), Some(padding(batch, len, true)?)])
}

/// Query, key and value, with logarithms of features a few units apart.
fn attention_operands(shape: [usize; 5], kv_len: usize, dtype: DType) -> Result<[Tensor; 3]> {
    let [batch, n_heads, len, n_features, width] = shape;
    Ok([
        (normal(0, &[batch, n_heads, len, n_features], dtype)? * 2.)?,
        (normal(1, &[batch, n_heads, kv_len, n_features], dtype)? * 2.)?,
        normal(2, &[batch, n_heads, kv_len, width], dtype)?,
    ])
}

/// Key, value, decay and bonus.
fn wkv_operands(batch: usize, len: usize, d_model: usize, dtype: DType) -> Result<[Tensor; 4]> {
    Ok([
        (normal(0, &[batch, len, d_model], dtype)? * 2.)?,
        normal(1, &[batch, len, d_model], dtype)?,
        normal(2, &[d_model], dtype)?.exp()?,
        normal(3, &[d_model], dtype)?,
    ])
}

#[test]
fn linear_attention_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in SHAPES {
            let [batch, _, len, ..] = shape;
            for (reach, kv_len) in
                [(Reach::Past, len), (Reach::Everything, len), (Reach::Everything, len + 6)]
            {
                for mask in paddings(batch, kv_len)? {
                    let mask = mask.as_ref();
                    assert_agree(
                        &format!("linear_attention {reach:?}"),
                        &|x| linear_attention(&x[0], &x[1], &x[2], reach, mask),
                        &|x| {
                            linear_attention::reference::linear_attention(
                                &x[0], &x[1], &x[2], reach, mask,
                            )
                        },
                        &attention_operands(shape, kv_len, dtype)?,
                        tolerance,
                    )?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn retention_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in SHAPES {
            let [batch, n_heads, len, ..] = shape;
            let decay = decays(n_heads);
            for mask in paddings(batch, len)? {
                let mask = mask.as_ref();
                assert_agree(
                    "retention",
                    &|x| retention(&x[0], &x[1], &x[2], &decay, mask),
                    &|x| retention::reference::retention(&x[0], &x[1], &x[2], &decay, mask),
                    &attention_operands(shape, len, dtype)?,
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn wkv_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for [batch, len, d_model] in [[1, 1, 1], [2, 5, 7], [3, 67, 19], [2, 31, 101]] {
            let documents = segments(batch, len)?;
            for mask in paddings(batch, len)? {
                for segments in [None, Some(&documents)] {
                    let tokens = Tokens { key_padding_mask: mask.as_ref(), segments };
                    assert_agree(
                        "wkv",
                        &|x| wkv(&x[0], &x[1], &x[2], &x[3], mask.as_ref(), segments),
                        &|x| wkv::reference::wkv(&x[0], &x[1], &x[2], &x[3], tokens),
                        &wkv_operands(batch, len, d_model, dtype)?,
                        tolerance,
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// Documents of 3 positions, the second of which is left out of the first row.
fn segments(batch: usize, len: usize) -> Result<Tensor> {
    let of = |row: usize, at: usize| if row == 0 && at < 6 { 0 } else { (at / 3) as u32 };
    let all = (0..batch).flat_map(|row| (0..len).map(move |at| of(row, at)));
    Tensor::from_vec(all.collect(), (batch, len), device())
}

#[test]
fn short_convolution_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for [batch, len, channels, size] in
            [[1, 1, 1, 1], [2, 5, 7, 4], [3, 67, 19, 3], [2, 31, 301, 4]]
        {
            let operands =
                [normal(0, &[batch, len, channels], dtype)?, normal(1, &[channels, size], dtype)?];
            for mask in paddings(batch, len)? {
                for segments in [None, Some(segments(batch, len)?)] {
                    let tokens =
                        Tokens { key_padding_mask: mask.as_ref(), segments: segments.as_ref() };
                    assert_agree(
                        "short convolution",
                        &|x| short_convolution(&x[0], &x[1], tokens),
                        &|x| short_convolution::reference::short_convolution(&x[0], &x[1], tokens),
                        &operands,
                        tolerance,
                    )?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_short_convolution_skips_padding_and_begins_anew_at_a_document() -> Result<()> {
    let x = Tensor::new(&[1_f64, 10., 100., 1e3, 1e4, 1e5], device())?.reshape((1, 6, 1))?;
    let weight = Tensor::new(&[[3_f64, 2., 1.]], device())?;
    let mask = Tensor::new(&[[0_u8, 1, 0, 0, 0, 0]], device())?;
    let segments = Tensor::new(&[[0_u32, 0, 0, 0, 7, 7]], device())?;
    let tokens = Tokens { key_padding_mask: Some(&mask), segments: Some(&segments) };
    let y = values(&short_convolution(&x, &weight, tokens)?)?;
    assert_eq!(y, [1., 0., 102., 1203., 1e4, 120_000.]);
    assert_eq!(values(&last_tokens(&x, 3, tokens)?)?, [0., 1e4, 1e5]);
    let short = weight.narrow(1, 0, 2)?.narrow(0, 0, 0)?;
    assert!(short_convolution(&x, &short, tokens).is_err());
    Ok(())
}

#[test]
fn a_short_convolution_goes_on_from_its_past() -> Result<()> {
    let (x, weight) = (normal(0, &[2, 9, 5], DType::F64)?, normal(1, &[5, 4], DType::F64)?);
    let whole = short_convolution(&x, &weight, Tokens::default())?;
    let (mut past, mut parts) = (None, Vec::new());
    for (start, len) in [(0, 2), (2, 1), (3, 6)] {
        let x = x.narrow(1, start, len)?;
        let [y, next] = short_convolution_after(past.as_ref(), &x, &weight, Tokens::default())?;
        parts.push(y);
        past = Some(next);
    }
    assert_close("the parts", &Tensor::cat(&parts, 1)?, &whole, 1e-15)
}

/// Each operation on operands `(2, 3, 5, 11)` and `(2, 3, 5, 7)`, or `(2, 5, 11)`.
type Case<'a> = (&'static str, Op<'a>, Vec<Tensor>);

fn with_every_operation(dtype: DType, check: impl Fn(Case) -> Result<()>) -> Result<()> {
    let operands = attention_operands([2, 3, 5, 11, 7], 5, dtype)?.to_vec();
    let decay = decays(3);
    check((
        "linear_attention",
        &|x| linear_attention(&x[0], &x[1], &x[2], Reach::Past, None),
        operands.clone(),
    ))?;
    check(("retention", &|x| retention(&x[0], &x[1], &x[2], &decay, None), operands))?;
    let operands = wkv_operands(2, 5, 11, dtype)?.to_vec();
    check(("wkv", &|x| wkv(&x[0], &x[1], &x[2], &x[3], None, None), operands))
}

#[test]
fn half_precision_is_computed_in_f32() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        with_every_operation(dtype, |(name, op, operands)| {
            let wide: Vec<_> =
                operands.iter().map(|x| x.to_dtype(DType::F32)).collect::<Result<_>>()?;
            let (y, expected) = (op(&operands)?, op(&wide)?);
            assert_eq!(y.dtype(), dtype, "{name}");
            assert_close(name, &y, &expected.to_dtype(dtype)?, 1e-2)
        })?;
    }
    Ok(())
}

#[test]
fn the_future_does_not_change_a_bit_of_the_past() -> Result<()> {
    with_every_operation(DType::F32, |(name, op, operands)| {
        let time = operands[0].rank() - 2;
        let later = |x: &Tensor| {
            if x.rank() == 1 {
                return Ok(x.clone());
            }
            let (past, future) = (x.narrow(time, 0, 3)?, x.narrow(time, 3, 2)?);
            Tensor::cat(&[past, (future * 100.)?], time)
        };
        let other: Vec<_> = operands.iter().map(later).collect::<Result<_>>()?;
        let past = |x: &[Tensor]| values(&op(x)?.narrow(time, 0, 3)?);
        assert_eq!(past(&operands)?, past(&other)?, "{name}");
        Ok(())
    })
}

#[test]
fn operands_of_any_size_give_finite_values_and_gradients() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        for size in [100., 1e4, 1e9] {
            with_every_operation(dtype, |(name, op, operands)| {
                let mut operands = operands;
                for operand in &mut operands {
                    // The values enter linearly, and so do all operands of retention.
                    if operand.rank() == 1 || name != "retention" {
                        *operand = (&*operand * size)?;
                    }
                }
                let (value, gradients) = differentiate(op, &operands)?;
                for x in gradients.iter().chain([&value]) {
                    assert!(values(x)?.iter().all(|x| x.is_finite()), "{name} × {size}");
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[test]
fn sums_over_all_keys_are_an_average_by_the_weights() -> Result<()> {
    use linear_attention::reference;
    let [query, key, value] = attention_operands([2, 3, 5, 11, 7], 13, DType::F64)?;
    for mask in paddings(2, 13)? {
        let (reach, mask) = (Reach::Everything, mask.as_ref());
        let y = reference::linear_attention(&query, &key, &value, reach, mask)?;
        let weights = reference::weights(&query, &key, reach, mask)?;
        assert_close("sums", &y, &weights.matmul(&value)?, 1e-12)?;
    }
    Ok(())
}

/// Sums of positive weights are averages: they stay within the values.
#[test]
fn an_average_is_within_the_values_whatever_the_features() -> Result<()> {
    for reach in [Reach::Past, Reach::Everything] {
        for size in [1., 1e4, 1e9] {
            let [query, key, value] = attention_operands([2, 3, 5, 11, 7], 5, DType::F32)?;
            let value = value.ones_like()?;
            let y = linear_attention(&(query * size)?, &(key * size)?, &value, reach, None)?;
            assert!(values(&y)?.iter().all(|y| (y - 1.).abs() < 1e-6), "{reach:?} × {size}");
        }
    }
    Ok(())
}

#[test]
fn a_feature_may_be_zero() -> Result<()> {
    let zero = f32::NEG_INFINITY;
    let query = Tensor::new(&[[[[0_f32, zero], [zero, 0.], [zero, zero]]]], device())?;
    let key = Tensor::new(&[[[[0_f32, zero], [zero, zero], [zero, 0.]]]], device())?;
    let value = Tensor::new(&[[[[1_f32], [2.], [3.]]]], device())?;
    for (reach, expected) in [(Reach::Everything, [1., 3., 0.]), (Reach::Past, [1., 0., 0.])] {
        let y = linear_attention(&query, &key, &value, reach, None)?;
        assert_eq!(values(&y)?, expected, "{reach:?}");
    }
    Ok(())
}

#[test]
fn a_padded_key_takes_no_part_but_time_passes() -> Result<()> {
    let column = |x: [f64; 3]| Tensor::new(&x, device())?.reshape((1, 3, 1));
    let mask = Tensor::new(&[[0_u8, 1, 0]], device())?;
    let rate = Tensor::new(&[2_f64.ln()], device())?;
    let (key, value) = (column([0., f64::NAN, 0.])?, column([3., f64::NAN, 0.])?);
    // Two positions later, the first key has decayed once (i − 1 − j = 1): 3·½ / (½ + 2).
    let y = wkv(&key, &value, &rate, &rate, Some(&mask), None)?;
    assert_eq!(values(&y)?, [3., 3., 1.5 / 2.5]);

    let (key, value) = (column([1., f64::NAN, 1.])?, column([4., f64::NAN, 0.5])?);
    let [query, key, value] = [column([1.; 3])?, key, value].map(|x| x.unsqueeze(0));
    let y = retention(&query?, &key?, &value?, &[0.5], Some(&mask))?;
    assert_eq!(values(&y)?, [4., 2., 1.5]);
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() -> Result<()> {
    let operands = attention_operands([2, 3, 67, 37, 41], 67, DType::F32)?;
    let channels = wkv_operands(5, 67, 401, DType::F32)?;
    let decay = decays(3);
    let all = || -> Result<Vec<Vec<f64>>> {
        let cases: [(Op, &[Tensor]); 4] = [
            (&|x| linear_attention(&x[0], &x[1], &x[2], Reach::Past, None), &operands),
            (&|x| linear_attention(&x[0], &x[1], &x[2], Reach::Everything, None), &operands),
            (&|x| retention(&x[0], &x[1], &x[2], &decay, None), &operands),
            (&|x| wkv(&x[0], &x[1], &x[2], &x[3], None, None), &channels),
        ];
        let mut results = Vec::new();
        for (op, operands) in cases {
            let (value, gradients) = differentiate(op, operands)?;
            for x in gradients.iter().chain([&value]) {
                results.push(values(x)?);
            }
        }
        Ok(results)
    };
    let expected = threads::with(1, all)?;
    assert_eq!(threads::with(2, all)?, expected);
    assert_eq!(threads::with(5, all)?, expected);
    Ok(())
}

/// On the CPU: Candle's own kernels cannot be launched for nothing.
#[test]
fn nothing_to_read_and_nothing_that_reads() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    for (batch, q_len, kv_len) in [(2, 5, 0), (2, 0, 5), (0, 5, 5), (2, 0, 0)] {
        let mask = Tensor::zeros((batch, kv_len), DType::U8, &Device::Cpu)?;
        let (query, key) = (zeros(&[batch, 3, q_len, 11])?, zeros(&[batch, 3, kv_len, 11])?);
        let value = zeros(&[batch, 3, kv_len, 7])?;
        for mask in [None, Some(&mask)] {
            let y = linear_attention(&query, &key, &value, Reach::Everything, mask)?;
            assert_eq!(y.dims(), [batch, 3, q_len, 7]);
            assert!(values(&y)?.iter().all(|&y| y == 0.));
        }
    }
    for (batch, len) in [(2, 0), (0, 5)] {
        let mask = Tensor::zeros((batch, len), DType::U8, &Device::Cpu)?;
        let (query, value) = (zeros(&[batch, 3, len, 11])?, zeros(&[batch, 3, len, 7])?);
        let (key, rate) = (zeros(&[batch, len, 7])?, zeros(&[7])?);
        for mask in [None, Some(&mask)] {
            let y = linear_attention(&query, &query, &value, Reach::Past, mask)?;
            assert_eq!(y.dims(), value.dims());
            assert_eq!(retention(&query, &query, &value, &decays(3), mask)?.dims(), value.dims());
            assert_eq!(wkv(&key, &key, &rate, &rate, mask, None)?.dims(), key.dims());
        }
    }
    Ok(())
}

/// Of as many elements, a definition could reshape it.
#[test]
fn a_mask_of_another_shape_is_refused_in_every_dtype() -> Result<()> {
    let of_floats = padding(2, 5, false)?.to_dtype(DType::F32)?;
    for mask in [padding(5, 2, false)?, of_floats] {
        let mask = Some(&mask);
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let [query, key, value] = attention_operands([2, 3, 5, 11, 7], 5, dtype)?;
            for reach in [Reach::Everything, Reach::Past] {
                assert!(linear_attention(&query, &key, &value, reach, mask).is_err(), "{dtype:?}");
            }
            assert!(retention(&query, &key, &value, &decays(3), mask).is_err(), "{dtype:?}");
            let [key, value, decay, bonus] = wkv_operands(2, 5, 11, dtype)?;
            assert!(wkv(&key, &value, &decay, &bonus, mask, None).is_err(), "{dtype:?}");
            assert!(wkv(&key, &value, &decay, &bonus, None, mask).is_err(), "{dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn shapes_that_do_not_match_are_refused() -> Result<()> {
    let [query, key, value] = attention_operands([2, 3, 5, 11, 7], 7, DType::F32)?;
    let attend = |reach, mask| linear_attention(&query, &key, &value, reach, mask);
    assert!(attend(Reach::Everything, None).is_ok());
    assert!(attend(Reach::Past, None).is_err());
    let mask = padding(2, 5, false)?;
    assert!(attend(Reach::Everything, Some(&mask)).is_err());
    assert!(retention(&query, &key, &value, &decays(3), None).is_err());
    let value = value.narrow(2, 0, 5)?;
    for decay in [vec![0.5; 2], vec![0.; 3], vec![1.5; 3], vec![f64::NAN; 3]] {
        assert!(retention(&query, &query, &value, &decay, None).is_err(), "{decay:?}");
    }
    let [key, value, decay, bonus] = wkv_operands(2, 5, 11, DType::F32)?;
    assert!(wkv(&key, &value.i((.., ..3))?, &decay, &bonus, None, None).is_err());
    assert!(wkv(&key, &value, &decay.narrow(0, 0, 7)?, &bonus, None, None).is_err());
    Ok(())
}
