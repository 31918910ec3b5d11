//! Attention in tiles against its definition; and what tiles and threads must not show.

mod common;

use candle_core::{D, DType, Device, Result, Tensor};
use common::{differentiate, normal, values};
use tealight_ops::attention::{Layout, Options, attention, reference, weights};
use tealight_ops::dropout::Draw;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::threads;

/// Of f32 and f64, relative to the largest expected number if that is above 1.
const TOLERANCES: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-12)];

/// Sizes: batch, n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim.
type Sizes = [usize; 7];

/// Alone, smaller than a tile, a tile and one more, several tiles; queries more or fewer than keys.
const SIZES: [Sizes; 10] = [
    [1, 1, 1, 1, 1, 1, 1],
    [2, 3, 3, 5, 5, 7, 11],
    [3, 2, 1, 10, 10, 8, 8],
    [1, 4, 2, 1, 67, 17, 3],
    [2, 6, 2, 7, 3, 5, 5],
    [1, 2, 2, 64, 64, 16, 32],
    [2, 2, 1, 65, 129, 33, 19],
    [1, 1, 1, 131, 66, 3, 40],
    [1, 5, 5, 17, 200, 64, 64],
    [2, 4, 2, 150, 150, 9, 13],
];

struct Case {
    operands: [Tensor; 3],
    padding: Tensor,
    bias: Tensor,
    head_bias: Tensor,
    sink: Tensor,
    /// With a wall in the middle, behind which nothing is remembered.
    log_forget: Tensor,
    /// Of keys: rising in the first example, and in disorder in the others.
    segments: Tensor,
}

impl Case {
    fn new(sizes: Sizes, dtype: DType) -> Result<Self> {
        let [batch, n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim] = sizes;
        let stream = Stream::new(17, Purpose::Task);
        let padding = |i: u64| u8::from(stream.below(i, 4) == 0 || i / kv_len as u64 == 1);
        let padding = (0..(batch * kv_len) as u64).map(padding).collect::<Vec<_>>();
        let segment = |i: usize| match (i / kv_len, i % kv_len) {
            (0, key) => 3 + (key * 4 / kv_len) as u32,
            (_, key) => (key * 7 % 3) as u32,
        };
        let segments = (0..batch * kv_len).map(segment).collect::<Vec<_>>();
        let forget = values(&normal(5, &[batch, n_heads, kv_len], DType::F64)?)?;
        let forget = forget.into_iter().enumerate().map(|(i, x)| match i % kv_len {
            key if key > 0 && key == kv_len / 2 => -1e4,
            _ => -x.abs() / 10.,
        });
        let forget = Tensor::from_vec(forget.collect(), (batch, n_heads, kv_len), device())?;
        Ok(Self {
            sink: (normal(6, &[n_heads], dtype)? * 2.)?,
            log_forget: forget.to_dtype(dtype)?,
            segments: Tensor::from_vec(segments, (batch, kv_len), device())?,
            operands: [
                (normal(0, &[batch, n_heads, q_len, head_dim], dtype)? * 1.5)?,
                normal(1, &[batch, n_kv_heads, kv_len, head_dim], dtype)?,
                normal(2, &[batch, n_kv_heads, kv_len, value_dim], dtype)?,
            ],
            padding: Tensor::from_vec(padding, (batch, kv_len), device())?,
            bias: normal(3, &[q_len, kv_len], dtype)?,
            head_bias: normal(4, &[n_heads, q_len, kv_len], dtype)?,
        })
    }

    /// Every way to restrict and to weigh, alone and together.
    fn options(&self) -> Vec<Options<'_>> {
        let plain = Options::default();
        let dropout = |rate| Some(Draw { rate, stream: Stream::new(3, Purpose::Dropout) });
        let padding = Some(&self.padding);
        let mut all = vec![
            plain,
            Options { scale: Some(1.), ..plain },
            Options { causal: true, ..plain },
            Options { window: Some(1), ..plain },
            Options { window: Some(5), causal: true, ..plain },
            Options { window: Some(40), ..plain },
            Options { key_padding_mask: padding, ..plain },
            Options { attn_mask: Some(&self.bias), ..plain },
            Options { dropout: dropout(0.3), ..plain },
            Options {
                causal: true,
                window: Some(70),
                dropout: dropout(0.5),
                key_padding_mask: padding,
                attn_mask: Some(&self.head_bias),
                ..plain
            },
        ];
        let [query, key, _value] = &self.operands;
        if query.dims()[2] == key.dims()[2] {
            let segments = Some(&self.segments);
            let everything = Options { segments, ..all[9] };
            all.extend([Options { segments, ..plain }, everything]);
        }
        let (sink, log_forget) = (Some(&self.sink), Some(&self.log_forget));
        all.extend([Options { sink, ..plain }, Options { sink, ..all[9] }]);
        if query.dims()[2] <= key.dims()[2] {
            let forgets = Options { log_forget, causal: true, ..plain };
            let last = all[all.len() - 3]; // with segments, if there are any
            all.extend([forgets, Options { sink, log_forget, causal: true, ..last }]);
        }
        all
    }
}

fn assert_close(name: &str, actual: &Tensor, expected: &Tensor, tolerance: f64) -> Result<()> {
    assert_eq!(actual.dims(), expected.dims(), "{name}: shape");
    let expected = values(expected)?;
    let scale = expected.iter().fold(1_f64, |scale, x| scale.max(x.abs()));
    for (i, (actual, expected)) in values(actual)?.into_iter().zip(expected).enumerate() {
        let error = (actual - expected).abs();
        assert!(error <= tolerance * scale, "{name}[{i}]: {actual} is not {expected}");
    }
    Ok(())
}

type Op = fn(&Tensor, &Tensor, &Tensor, &Options<'_>) -> Result<Tensor>;

/// The value, and the gradients of query, key and value, of the additive mask if it is to be learnt, of the sink and
/// of the logarithms of the gates.
fn gradients(op: Op, case: &Case, options: &Options<'_>, learnt: bool) -> Result<Vec<Tensor>> {
    let mut inputs = case.operands.to_vec();
    let mut place = |x: Option<&Tensor>| {
        inputs.extend(x.cloned());
        x.map(|_| inputs.len() - 1)
    };
    let places = (
        place(options.attn_mask.filter(|_| learnt)),
        place(options.sink),
        place(options.log_forget),
    );
    let op = |x: &[Tensor]| {
        let [attn_mask, sink, log_forget] =
            [places.0, places.1, places.2].map(|place| place.map(|at| &x[at]));
        let attn_mask = attn_mask.or(options.attn_mask);
        op(&x[0], &x[1], &x[2], &Options { attn_mask, sink, log_forget, ..*options })
    };
    let (value, mut all) = differentiate(&op, &inputs)?;
    all.insert(0, value);
    Ok(all)
}

#[test]
fn tiles_agree_with_the_definition() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for sizes in SIZES {
            let case = Case::new(sizes, dtype)?;
            for (i, options) in case.options().iter().enumerate() {
                for learnt in [false, true] {
                    if learnt && options.attn_mask.is_none() {
                        continue;
                    }
                    let name = format!("{sizes:?} {dtype:?} option {i} learnt {learnt}");
                    let actual = gradients(attention, &case, options, learnt)?;
                    let expected = gradients(reference::attention, &case, options, learnt)?;
                    for (which, (a, e)) in actual.iter().zip(&expected).enumerate() {
                        assert_close(&format!("{name}: {which}"), a, e, tolerance)?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn operands_that_are_strided_agree() -> Result<()> {
    let case = Case::new([2, 3, 3, 70, 70, 5, 5], DType::F64)?;
    let [query, key, value] = &case.operands;
    // Heads split off, as in a model; and rows that are not contiguous at all.
    let inputs = [
        query.transpose(1, 2)?.contiguous()?,
        key.transpose(1, 2)?.contiguous()?,
        value.transpose(2, 3)?.contiguous()?,
        case.head_bias,
    ];
    let op = |op: Op| {
        move |x: &[Tensor]| {
            let options = Options { attn_mask: x.get(3), ..Options::default() };
            op(&x[0].transpose(1, 2)?, &x[1].transpose(1, 2)?, &x[2].transpose(2, 3)?, &options)
        }
    };
    for inputs in [&inputs[..3], &inputs] {
        let (actual, actual_gradients) = differentiate(&op(attention), inputs)?;
        let (expected, expected_gradients) = differentiate(&op(reference::attention), inputs)?;
        assert_close("strided", &actual, &expected, 1e-12)?;
        for (a, e) in actual_gradients.iter().zip(&expected_gradients) {
            assert_close("strided: gradient", a, e, 1e-12)?;
        }
    }
    Ok(())
}

#[test]
fn heads_may_stand_last() -> Result<()> {
    for sizes in [[2, 6, 2, 7, 13, 5, 3], [3, 4, 4, 130, 70, 33, 40]] {
        let case = Case::new(sizes, DType::F64)?;
        for options in [&case.options()[1], &case.options()[9]] {
            let last = |op: Op| {
                let layout = Layout::HeadsLast;
                let swap = |x: &Tensor| x.transpose(1, 2)?.contiguous();
                let op = move |x: &[Tensor]| {
                    let options = Options { layout, attn_mask: x.get(3), ..*options };
                    swap(&op(&swap(&x[0])?, &swap(&x[1])?, &swap(&x[2])?, &options)?)
                };
                let mut inputs = case.operands.to_vec();
                inputs.extend(options.attn_mask.cloned());
                differentiate(&op, &inputs)
            };
            let expected = gradients(reference::attention, &case, options, true)?;
            for (output, gradients) in [last(attention)?, last(reference::attention)?] {
                assert_close("last", &output, &expected[0], 1e-12)?;
                for (a, e) in gradients.iter().zip(&expected[1..]) {
                    assert_close("last: gradient", a, e, 1e-12)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn half_precision_is_computed_in_f32() -> Result<()> {
    let case = Case::new([2, 3, 3, 5, 5, 7, 11], DType::F32)?;
    for dtype in [DType::F16, DType::BF16] {
        let [query, key, value] = case.operands.each_ref().map(|x| x.to_dtype(dtype));
        let (query, key, value) = (query?, key?, value?);
        let actual = attention(&query, &key, &value, &Options::default())?;
        assert_eq!(actual.dtype(), dtype);
        let wide = |x: &Tensor| x.to_dtype(DType::F32);
        let expected =
            attention(&wide(&query)?, &wide(&key)?, &wide(&value)?, &Options::default())?;
        assert_close("half", &actual, &expected.to_dtype(dtype)?, 1e-2)?;
    }
    Ok(())
}

/// All numbers of a forward and a backward, as bits.
fn bits(sizes: Sizes, options: usize, learnt: bool) -> Result<Vec<u64>> {
    let case = Case::new(sizes, DType::F32)?;
    let all = gradients(attention, &case, &case.options()[options], learnt)?;
    let all = all.iter().map(values).collect::<Result<Vec<_>>>()?;
    Ok(all.concat().into_iter().map(f64::to_bits).collect())
}

#[test]
fn the_number_of_threads_does_not_show() -> Result<()> {
    for (sizes, learnt) in
        [([3, 6, 2, 65, 129, 33, 19], true), ([1, 2, 1, 300, 300, 64, 64], false)]
    {
        let n_options = Case::new(sizes, DType::F32)?.options().len();
        for options in [9, n_options - 1] {
            let with = |n_threads| threads::with(n_threads, || bits(sizes, options, learnt));
            let one = with(1)?;
            assert!(one == with(2)?, "{sizes:?}");
            assert!(one == with(5)?, "{sizes:?}");
        }
    }
    Ok(())
}

/// Bits, not tolerances: what lies ahead may not even change the order of a sum.
#[test]
fn the_future_and_the_padding_leave_no_trace() -> Result<()> {
    let (len, seen) = (150, 83);
    let case = Case::new([1, 2, 2, len, len, 24, 24], DType::F32)?;
    let [query, key, value] = &case.operands;
    let causal = Options { causal: true, ..Options::default() };
    let whole = attention(query, key, value, &causal)?.narrow(2, 0, seen)?;
    let changed = |x: &Tensor| {
        let past = x.narrow(2, 0, seen)?;
        Tensor::cat(&[&past, &(x.narrow(2, seen, len - seen)? * -300.)?], 2)
    };
    let other = attention(query, &changed(key)?, &changed(value)?, &causal)?;
    assert_eq!(values(&whole)?, values(&other.narrow(2, 0, seen)?)?);

    let flags = (0..len).map(|key| u8::from(key >= seen)).collect::<Vec<_>>();
    let flags = Tensor::from_vec(flags, (1, len), device())?;
    let padded = Options { key_padding_mask: Some(&flags), ..Options::default() };
    let whole = attention(query, key, value, &padded)?;
    let other = attention(query, &changed(key)?, &changed(value)?, &padded)?;
    assert_eq!(values(&whole)?, values(&other)?);
    Ok(())
}

#[test]
fn another_segment_leaves_no_trace() -> Result<()> {
    let (len, boundary) = (150, 83);
    let case = Case::new([1, 2, 2, len, len, 24, 24], DType::F32)?;
    let [query, key, value] = &case.operands;
    let segments = (0..len).map(|at| u32::from(at >= boundary)).collect::<Vec<_>>();
    let segments = Tensor::from_vec(segments, (1, len), device())?;
    let options = Options { segments: Some(&segments), ..Options::default() };
    let packed = attention(query, key, value, &options)?;
    let changed = |x: &Tensor| {
        let second = (x.narrow(2, boundary, len - boundary)? * -300.)?;
        Tensor::cat(&[&x.narrow(2, 0, boundary)?, &second], 2)
    };
    let other = attention(query, &changed(key)?, &changed(value)?, &options)?;
    let first = |x: &Tensor| values(&x.narrow(2, 0, boundary)?);
    assert_eq!(first(&packed)?, first(&other)?);
    for (start, len) in [(0, boundary), (boundary, len - boundary)] {
        let document = |x: &Tensor| x.narrow(2, start, len);
        let alone =
            attention(&document(query)?, &document(key)?, &document(value)?, &Options::default())?;
        assert_close("alone", &document(&packed)?, &alone, 1e-5)?;
    }
    Ok(())
}

#[test]
fn a_row_that_may_read_nothing_gives_zeros_and_no_gradient() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let case = Case::new([2, 2, 1, 5, 67, 3, 4], dtype)?;
        let padding = Tensor::cat(
            &[
                Tensor::zeros((1, 67), DType::U8, device())?,
                Tensor::ones((1, 67), DType::U8, device())?,
            ],
            0,
        )?;
        let lowest = Tensor::full(f64::NEG_INFINITY, (1, 67), device())?.to_dtype(dtype)?;
        let bias = Tensor::cat(&[lowest, case.bias.narrow(0, 1, 4)?], 0)?;
        let options = Options {
            key_padding_mask: Some(&padding),
            attn_mask: Some(&bias),
            ..Options::default()
        };
        let all = gradients(attention, &case, &options, true)?;
        for x in &all {
            assert!(values(x)?.iter().all(|x| x.is_finite()));
        }
        for x in &all[..2] {
            assert!(values(&x.get(1)?)?.iter().all(|&x| x == 0.), "the padded example");
            assert!(values(&x.narrow(2, 0, 1)?)?.iter().all(|&x| x == 0.), "the masked row");
        }
        assert!(values(&all[4].get(0)?)?.iter().all(|&x| x == 0.));
    }
    Ok(())
}

#[test]
fn scores_of_ten_thousands_stay_finite() -> Result<()> {
    let case = Case::new([1, 2, 2, 70, 70, 16, 16], DType::F32)?;
    for scale in [1e4, -1e4] {
        let options = Options { scale: Some(scale), causal: true, ..Options::default() };
        for x in gradients(attention, &case, &options, false)? {
            assert!(values(&x)?.iter().all(|x| x.is_finite()));
        }
    }
    Ok(())
}

#[test]
fn the_weights_are_those_that_are_used() -> Result<()> {
    let case = Case::new([2, 6, 2, 7, 13, 5, 3], DType::F64)?;
    let [query, key, value] = &case.operands;
    for options in case.options().iter().filter(|options| options.dropout.is_none()) {
        let weights = weights(query, key, options)?;
        let value_of_heads = value.unsqueeze(2)?.broadcast_as((2, 2, 3, 13, 3))?;
        let output = weights.matmul(&value_of_heads.reshape((2, 6, 13, 3))?)?;
        assert_close("weights", &output, &attention(query, key, value, options)?, 1e-12)?;
        let sums = values(&weights.sum(D::Minus1)?)?;
        let is_one = |sum: f64| (sum - 1.).abs() < 1e-12 || options.sink.is_some() && sum < 1.;
        assert!(sums.iter().all(|&sum| sum == 0. || is_one(sum)), "{sums:?}");
    }
    Ok(())
}

/// On the CPU: Candle's own kernels cannot be launched for nothing.
#[test]
fn nothing_to_read_and_nothing_that_reads() -> Result<()> {
    let zeros =
        |shape: (usize, usize, usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let options = Options::default();
    let none =
        attention(&zeros((2, 3, 5, 7))?, &zeros((2, 3, 0, 7))?, &zeros((2, 3, 0, 4))?, &options)?;
    assert_eq!(none.dims(), [2, 3, 5, 4]);
    assert!(values(&none)?.iter().all(|&x| x == 0.));
    let none =
        attention(&zeros((2, 3, 0, 7))?, &zeros((2, 3, 5, 7))?, &zeros((2, 3, 5, 4))?, &options)?;
    assert_eq!(none.dims(), [2, 3, 0, 4]);
    assert_eq!(
        weights(&zeros((2, 3, 5, 7))?, &zeros((2, 3, 0, 7))?, &options)?.dims(),
        [2, 3, 5, 0]
    );
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let case = Case::new([2, 6, 2, 7, 13, 5, 3], DType::F32)?;
    let [query, key, value] = &case.operands;
    let plain = Options::default();
    let refused = |result: Result<Tensor>, expected: &str| {
        let error = result.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    let with = |options: Options<'_>| attention(query, key, value, &options);
    let short = value.narrow(2, 0, 5)?;
    refused(
        attention(query, key, &short, &plain),
        "value [2, 2, 5, 3]: expected (batch, n_heads, q_len, head_dim), (batch, n_kv_heads,",
    );
    refused(
        attention(query, key, &short, &Options { layout: Layout::HeadsLast, ..plain }),
        "expected (batch, q_len, n_heads, head_dim), (batch, kv_len, n_kv_heads, head_dim)",
    );
    refused(
        attention(&query.narrow(1, 0, 5)?, key, value, &plain),
        "2 heads of keys do not divide 5",
    );
    refused(with(Options { window: Some(0), ..plain }), "a window of 0");
    let dropout = Some(Draw { rate: 1., stream: Stream::new(0, Purpose::Dropout) });
    refused(with(Options { dropout, ..plain }), "rate 1 is not in [0, 1)");
    refused(with(Options { attn_mask: Some(&case.padding), ..plain }), "[2, 13], expected [7, 13]");
    let flags = Tensor::zeros((7, 13), DType::U8, device())?;
    refused(with(Options { attn_mask: Some(&flags), ..plain }), "dtype U8");
    refused(with(Options { key_padding_mask: Some(&flags), ..plain }), "expected [2, 13]");
    refused(
        with(Options { key_padding_mask: Some(&case.bias.narrow(0, 0, 2)?), ..plain }),
        "F32, expected u8",
    );
    refused(with(Options { segments: Some(&case.segments), ..plain }), "7 queries and 13 keys");
    refused(with(Options { sink: Some(&flags), ..plain }), "expected floats of shape [6]");
    let log_forget = Some(&case.log_forget);
    refused(with(Options { log_forget, ..plain }), "log_forget is for causal attention");
    let forgets = Options { log_forget, causal: true, ..plain };
    refused(attention(query, query, query, &forgets), "expected floats of shape [2, 6, 7]");
    let of_query =
        |segments: Option<&Tensor>| attention(query, query, query, &Options { segments, ..plain });
    refused(of_query(Some(&case.segments)), "[2, 13], expected [2, 7]");
    let floats = case.segments.narrow(1, 0, 7)?.to_dtype(DType::F32)?;
    refused(of_query(Some(&floats)), "F32, expected u32");
    Ok(())
}

/// By the fused loop and by the definition.
fn assert_by_hand(
    case: &str,
    operands: [&Tensor; 3],
    options: &Options<'_>,
    expected: &[f64],
) -> Result<()> {
    let [query, key, value] = operands;
    for (name, op) in [("fused", attention as Op), ("definition", reference::attention as Op)] {
        let output = values(&op(query, key, value, options)?)?;
        assert_eq!(output.len(), expected.len(), "{case}, {name}");
        for (actual, expected) in output.iter().zip(expected) {
            let is_close = (actual - expected).abs() < 1e-12;
            assert!(is_close, "{case}, {name}: {actual} is not {expected}");
        }
    }
    Ok(())
}

/// Keys of zeros weigh all that is read alike, and values of 1, 2, 4, 8, 16 tell what that is.
#[test]
fn windows_worked_by_hand() -> Result<()> {
    let query = Tensor::zeros((1, 1, 3, 1), DType::F64, device())?;
    let key = Tensor::zeros((1, 1, 5, 1), DType::F64, device())?;
    let value = Tensor::new(&[1_f64, 2., 4., 8., 16.], device())?.reshape((1, 1, 5, 1))?;
    let operands = [&query, &key, &value];
    // Query i stands at key i + 2.
    let past = [7. / 3., 15. / 4., 31. / 5.];
    let near = [(2. + 4. + 8.) / 3., (4. + 8. + 16.) / 3., 12.];
    let both = [3., 6., 12.];
    for (causal, window, expected) in
        [(true, None, past), (false, Some(2), near), (true, Some(2), both)]
    {
        let options = Options { causal, window, ..Options::default() };
        assert_by_hand("window", operands, &options, &expected)?;
    }
    Ok(())
}

/// Scores of ln 3 and 0 give weights of 3/4 and 1/4; twice as large, 9/10 and 1/10.
#[test]
fn scales_worked_by_hand() -> Result<()> {
    let ln_3 = 3_f64.ln();
    let query = Tensor::new(&[[[[2_f64, 0., 0., 0.]]]], device())?;
    let key = Tensor::new(&[[[[ln_3, 5., 7., 1.], [0., 3., 1., 4.]]]], device())?;
    let value = Tensor::new(&[[[[4_f64], [8.]]]], device())?;
    for (scale, expected) in [(None, 5.), (Some(0.5), 5.), (Some(1.), 4.4)] {
        let options = Options { scale, ..Options::default() };
        assert_by_hand("scale", [&query, &key, &value], &options, &[expected])?;
    }
    Ok(())
}

/// A sink of ln 4 beside scores of ln 3 and 0 leaves weights of 3/8 and 1/8; gates of 1/3 and 1 make them 1/6 each.
#[test]
fn sinks_and_gates_worked_by_hand() -> Result<()> {
    let query = Tensor::ones((1, 1, 1, 1), DType::F64, device())?;
    let key = Tensor::new(&[[[[3_f64.ln()], [0.]]]], device())?;
    let value = Tensor::new(&[[[[8_f64], [24.]]]], device())?;
    let operands = [&query, &key, &value];
    let sink = Tensor::new(&[4_f64.ln()], device())?;
    let options = Options { sink: Some(&sink), ..Options::default() };
    assert_by_hand("sink", operands, &options, &[6.])?;
    // The gate of the first key has no effect: the weight of a key falls by the gates after it.
    let log_forget = Tensor::new(&[[[-5_f64, -(3_f64.ln())]]], device())?;
    let forgets = Options { log_forget: Some(&log_forget), causal: true, ..options };
    assert_by_hand("gates", operands, &Options { sink: None, ..forgets }, &[16.])?;
    assert_by_hand("gates and sink", operands, &forgets, &[32. / 6.])
}

/// Query heads 0 and 1 read the first head of keys and values, 2 and 3 the second.
#[test]
fn groups_worked_by_hand() -> Result<()> {
    let ln_3 = 3_f64.ln();
    let query = Tensor::ones((1, 4, 1, 1), DType::F64, device())?;
    let key = Tensor::new(&[[[[ln_3], [0.]], [[0.], [ln_3]]]], device())?;
    let value = Tensor::new(&[[[[4_f64], [8.]], [[40.], [80.]]]], device())?;
    let operands = [&query, &key, &value];
    assert_by_hand("group", operands, &Options::default(), &[5., 5., 70., 70.])?;
    let last = |x: &Tensor| x.transpose(1, 2);
    let options = Options { layout: Layout::HeadsLast, ..Options::default() };
    let operands = [&last(&query)?, &last(&key)?, &last(&value)?];
    assert_by_hand("group, heads last", operands, &options, &[5., 5., 70., 70.])
}
