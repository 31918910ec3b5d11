//! Nyström attention and the convolution beside it: values worked by hand, padding, extremes.

mod common;

use candle_core::{D, DType, Result, Tensor};
use common::{differentiate, normal, values};
use tealight_ops::depthwise_convolution::depthwise_convolution;
use tealight_ops::nystrom::{
    Normalisation, Padding, SegmentRule, Segments, Settings, attention, factors, pseudo_inverse,
    reference, segment_means, weights,
};
use tealight_ops::softmax::softmax;
use tealight_ops::testing::device;

const TOLERANCE: f64 = 1e-12;

fn with_landmarks(n_landmarks: usize) -> Settings {
    Settings { n_landmarks, ..Settings::default() }
}

fn assert_close(actual: &Tensor, expected: &Tensor, tolerance: f64) -> Result<()> {
    assert_eq!(actual.dims(), expected.dims());
    for (actual, expected) in values(actual)?.into_iter().zip(values(expected)?) {
        let error = (actual - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.), "{actual} is not {expected}");
    }
    Ok(())
}

/// Query, key and value.
fn random(shape: &[usize], scale: f64, dtype: DType) -> Result<[Tensor; 3]> {
    let scaled = |i| normal(i, shape, dtype)? * scale;
    Ok([scaled(0)?, scaled(1)?, normal(2, shape, dtype)?])
}

/// softmax(Q Kᵀ / √head_dim) V, of keys that are not padding.
fn exact(x: &[Tensor], bias: Option<&Tensor>) -> Result<Tensor> {
    let scores = (x[0].matmul(&x[1].t()?)? / (x[0].dim(D::Minus1)? as f64).sqrt())?;
    let scores = bias.map_or(Ok(scores.clone()), |bias| scores.broadcast_add(bias))?;
    softmax(&scores)?.matmul(&x[2])
}

fn mask(rows: &[[u8; 13]]) -> Result<Tensor> {
    Tensor::from_vec(rows.concat(), (rows.len(), 13), device())
}

#[test]
fn a_kernel_of_three_reads_both_neighbours() -> Result<()> {
    let x = Tensor::new(&[[[[1_f64], [10.], [100.]]]], device())?;
    let weight = Tensor::new(&[[[[2_f64], [3.], [5.]]]], device())?;
    let y = depthwise_convolution(&x, &weight, None)?;
    assert_eq!(values(&y)?, [3. + 50., 2. + 30. + 500., 20. + 300.]);
    let middle = Tensor::new(&[[0_u8, 1, 0]], device())?;
    let y = depthwise_convolution(&x, &weight, Some(&middle))?;
    assert_eq!(values(&y)?, [3., 2. + 500., 300.]);
    Ok(())
}

#[test]
fn an_even_kernel_and_other_heads_are_refused() -> Result<()> {
    let x = normal(0, &[2, 3, 5, 7], DType::F32)?;
    for shape in [[3, 1, 2, 1], [2, 1, 3, 1], [3, 1, 0, 1], [3, 2, 3, 1]] {
        let weight = Tensor::zeros(&shape, DType::F32, device())?;
        assert!(depthwise_convolution(&x, &weight, None).is_err(), "{shape:?}");
    }
    Ok(())
}

#[test]
fn no_longer_than_the_landmarks_is_softmax_attention() -> Result<()> {
    for len in [1, 2, 7] {
        let x = random(&[2, 3, len, 5], 2., DType::F64)?;
        let y = attention(&x[0], &x[1], &x[2], &with_landmarks(7), None)?;
        assert_close(&y, &exact(&x, None)?, TOLERANCE)?;
    }
    Ok(())
}

#[test]
fn one_landmark_gives_the_mean_query_to_all() -> Result<()> {
    let x = random(&[2, 3, 6, 5], 1., DType::F64)?;
    let y = attention(&x[0], &x[1], &x[2], &with_landmarks(1), None)?;
    let expected = exact(&[x[0].mean_keepdim(2)?, x[1].clone(), x[2].clone()], None)?;
    assert_close(&y, &expected.broadcast_as(y.shape())?, TOLERANCE)
}

/// Where queries and keys are constant on each segment, the landmarks are the tokens themselves,
/// and the approximation lacks nothing but the convergence of the inverse.
#[test]
fn tokens_that_repeat_are_read_exactly() -> Result<()> {
    let three = random(&[2, 2, 3, 5], 3., DType::F64)?;
    let repeat = |x: &Tensor| x.repeat((1, 1, 1, 4))?.reshape((2, 2, 12, 5));
    let x = [repeat(&three[0])?, repeat(&three[1])?, normal(2, &[2, 2, 12, 5], DType::F64)?];
    let settings = Settings { n_iterations: 20, ..with_landmarks(3) };
    let y = attention(&x[0], &x[1], &x[2], &settings, None)?;
    assert_close(&y, &exact(&x, None)?, 1e-6)
}

#[test]
fn the_weights_are_what_attention_applies() -> Result<()> {
    let x = random(&[3, 2, 13, 5], 1.5, DType::F64)?;
    let some = mask(&[[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1], [1; 13], [0; 13]])?;
    let few = mask(&[[1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [1; 13], [0; 13]])?;
    for settings in [with_landmarks(4), with_landmarks(4).transformers(), with_landmarks(13)] {
        for mask in [None, Some(&some), Some(&few)] {
            let y = attention(&x[0], &x[1], &x[2], &settings, mask)?;
            let weights = weights(&x[0], &x[1], &settings, mask)?;
            assert_eq!(weights.dims(), [3, 2, 13, 13]);
            assert_close(&weights.matmul(&x[2])?, &y, 1e-10)?;
        }
    }
    let factors = factors(&x[0], &x[1], &with_landmarks(4), None)?;
    assert_close(
        &factors.read(&x[2])?,
        &attention(&x[0], &x[1], &x[2], &with_landmarks(4), None)?,
        TOLERANCE,
    )
}

/// Left, right and in between: what is no padding reads as if it were alone.
#[test]
fn a_padded_row_is_the_row_without_padding() -> Result<()> {
    let rows = [
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1], // as many as landmarks, and fewer
        [1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1],
    ];
    let x = random(&[5, 2, 13, 5], 1.5, DType::F64)?;
    let y = attention(&x[0], &x[1], &x[2], &with_landmarks(3), Some(&mask(&rows)?))?;
    for (i, row) in rows.iter().enumerate() {
        let real: Vec<u32> = (0..13).filter(|&j| row[j as usize] == 0).collect();
        let real = Tensor::new(real, device())?;
        let alone = |x: &Tensor| x.narrow(0, i, 1)?.index_select(&real, 2);
        let expected =
            attention(&alone(&x[0])?, &alone(&x[1])?, &alone(&x[2])?, &with_landmarks(3), None)?;
        assert_close(&alone(&y)?, &expected, TOLERANCE)?;
    }
    Ok(())
}

#[test]
fn what_stands_at_padding_changes_no_bit() -> Result<()> {
    let mask =
        mask(&[[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1]])?;
    let shape = [2, 2, 13, 5];
    let is_padding = mask.reshape((2, 1, 13, 1))?.broadcast_as(&shape)?;
    let real = |y: &Tensor| values(&is_padding.where_cond(&y.zeros_like()?, y)?);
    let x = random(&shape, 1.5, DType::F32)?;
    let changed = [0, 1, 2].map(|i| {
        is_padding.where_cond(&(normal(i + 7, &shape, DType::F32)? * 9.)?, &x[i as usize])
    });
    let [q, k, v] = changed;
    let changed = [q?, k?, v?];
    for n_landmarks in [1, 3, 5] {
        let y = |x: &[Tensor]| {
            attention(&x[0], &x[1], &x[2], &with_landmarks(n_landmarks), Some(&mask))
        };
        assert_eq!(real(&y(&x)?)?, real(&y(&changed)?)?, "{n_landmarks} landmarks");
    }
    Ok(())
}

#[test]
fn a_row_with_nothing_to_read_gives_zeros_and_no_gradient() -> Result<()> {
    let mask = mask(&[[1; 13], [0; 13]])?;
    let x = random(&[2, 2, 13, 5], 1.5, DType::F32)?;
    for settings in [with_landmarks(4), with_landmarks(13)] {
        let (y, gradients) =
            differentiate(&|x| attention(&x[0], &x[1], &x[2], &settings, Some(&mask)), &x)?;
        for tensor in gradients.iter().chain([&y]) {
            let values = values(tensor)?;
            assert!(values.iter().all(|x| x.is_finite()), "{settings:?}");
            assert_eq!(values[..130], [0.; 130], "{settings:?}");
        }
    }
    for settings in [
        with_landmarks(4).transformers(),
        Settings { padding: Padding::Zeroed, ..with_landmarks(4) },
    ] {
        let y = values(&attention(&x[0], &x[1], &x[2], &settings, Some(&mask))?)?;
        assert_eq!(y[..130], [0.; 130], "{settings:?}");
    }
    Ok(())
}

/// Kernels that are one-hot or uniform, of full rank, of rank one and in between.
#[test]
fn extreme_scores_stay_finite() -> Result<()> {
    let shape = [2, 2, 67, 5];
    for dtype in [DType::F32, DType::F64] {
        for scale in [0., 1e-4, 1., 6., 30., 100., 1e4] {
            let mut x = random(&shape, scale, dtype)?.to_vec();
            for _ in 0..2 {
                for settings in
                    [with_landmarks(16), with_landmarks(16).transformers(), with_landmarks(67)]
                {
                    let op = |x: &[Tensor]| attention(&x[0], &x[1], &x[2], &settings, None);
                    let (y, gradients) = differentiate(&op, &x)?;
                    for tensor in gradients.iter().chain([&y]) {
                        let values = values(tensor)?;
                        assert!(values.iter().all(|x| x.is_finite()), "{dtype:?} {scale}");
                    }
                }
                x[1] = x[0].neg()?; // scores all below zero on the diagonal
            }
        }
    }
    Ok(())
}

/// Of rank one the inverse is known: A = 1 pᵀ has A⁺ = p 1ᵀ / (m |p|²). What is no singular value
/// grows by 13/4 in every step, from the last digit on.
#[test]
fn an_inverse_of_rank_one_is_found_before_rounding_has_grown() -> Result<()> {
    for (dtype, n_iterations, tolerance) in
        [(DType::F32, 6, 1e-4), (DType::F32, 12, 0.1), (DType::F64, 6, 1e-12)]
    {
        let p = softmax(&normal(0, &[1, 64], dtype)?)?;
        let a = p.broadcast_as((64, 64))?.contiguous()?;
        let norm = values(&p.sqr()?.sum_all()?)?[0];
        let expected = (p.t()?.broadcast_as((64, 64))? / (64. * norm))?;
        let z = pseudo_inverse(&a, n_iterations, Normalisation::EachMatrix)?;
        assert_close(&z, &expected, tolerance)?;
    }
    Ok(())
}

#[test]
fn shapes_that_do_not_match_are_refused() -> Result<()> {
    let x = normal(0, &[2, 3, 5, 7], DType::F32)?;
    let other = normal(0, &[2, 3, 4, 7], DType::F32)?;
    let mask = Tensor::zeros((2, 4), DType::U8, device())?;
    assert!(attention(&x, &other, &other, &with_landmarks(2), None).is_err());
    assert!(attention(&x, &x, &x, &with_landmarks(0), None).is_err());
    assert!(attention(&x, &x, &x, &with_landmarks(2), Some(&mask)).is_err());
    assert!(attention(&x, &x, &other, &with_landmarks(2), None).is_err());
    let other_heads = x.transpose(0, 1)?.contiguous()?;
    assert!(attention(&x, &x, &other_heads, &with_landmarks(2), None).is_err());
    let of_floats = Tensor::zeros((2, 5), DType::F32, device())?;
    assert!(attention(&x, &x, &x, &with_landmarks(2), Some(&of_floats)).is_err());
    let not_square = normal(0, &[2, 3, 5], DType::F32)?;
    assert!(pseudo_inverse(&not_square, 0, Normalisation::EachMatrix).is_err());
    Ok(())
}

#[test]
fn no_positions_and_no_landmarks_are_refused() -> Result<()> {
    let none = Tensor::zeros((2, 3, 0, 7), DType::F32, device())?;
    assert!(attention(&none, &none, &none, &with_landmarks(2), None).is_err());
    assert!(weights(&none, &none, &with_landmarks(2), None).is_err());
    let rule = SegmentRule::default();
    assert!(Segments::new(rule, 0, 5, None).is_err());
    let mask = Tensor::zeros((2, 7), DType::U8, device())?;
    assert!(Segments::new(rule, 2, 5, Some(&mask)).is_err());
    let means = segment_means(&none, &Segments::new(rule, 2, 0, None)?)?;
    assert_eq!(means.dims(), [2, 3, 0, 7]);
    Ok(())
}

#[test]
fn half_precision_is_computed_in_f32() -> Result<()> {
    let [query, key, value] = random(&[2, 3, 13, 5], 1., DType::BF16)?;
    let wide = |x: &Tensor| x.to_dtype(DType::F32);
    let y = attention(&query, &key, &value, &with_landmarks(4), None)?;
    let expected =
        attention(&wide(&query)?, &wide(&key)?, &wide(&value)?, &with_landmarks(4), None)?;
    assert_eq!(y.dtype(), DType::BF16);
    assert_close(&y, &expected.to_dtype(DType::BF16)?, TOLERANCE)
}

/// The fused loop and the definition, of positions that hold their own numbers.
fn assert_means(
    rule: SegmentRule,
    n_landmarks: usize,
    mask: Option<&Tensor>,
    len: usize,
    expected: &[f64],
) -> Result<()> {
    let x = Tensor::arange(0., len as f64, device())?.reshape((1, 1, len, 1))?;
    let expected = Tensor::new(expected, device())?.reshape((1, 1, n_landmarks, 1))?;
    let segments = Segments::new(rule, n_landmarks, len, mask)?;
    assert_close(&segment_means(&x, &segments)?, &expected, TOLERANCE)?;
    assert_close(&reference::segment_means(&x, rule, n_landmarks, mask)?, &expected, TOLERANCE)
}

#[test]
fn means_of_segments_worked_by_hand() -> Result<()> {
    assert_means(SegmentRule::ArraySplit, 4, None, 13, &[1.5, 5., 8., 11.])?;
    assert_means(SegmentRule::Adaptive, 4, None, 13, &[1.5, 4.5, 7.5, 10.5])?;
    assert_means(SegmentRule::CeilLastShort, 4, None, 13, &[1.5, 5.5, 9.5, 12.])?;
    let padding = Tensor::new(&[[1_u8, 0, 0, 1, 0, 1, 1, 0, 0]], device())?;
    assert_means(SegmentRule::ArraySplit, 2, Some(&padding), 9, &[7. / 3., 7.5])?;
    let padding = Tensor::new(&[[1_u8, 0, 1, 0, 1]], device())?;
    assert_means(SegmentRule::ArraySplit, 3, Some(&padding), 5, &[1., 3., 0.])
}

/// The columns of the first matrix have the sums 3/4 and 5/4, those of the second 1 and 1.
#[test]
fn the_start_of_the_inverse_worked_by_hand() -> Result<()> {
    let a = Tensor::new(&[[[0.5, 0.5], [0.25, 0.75]], [[1., 0.], [0., 1.]]], device())?;
    for (start, second) in [(Normalisation::EachMatrix, 1.), (Normalisation::WholeTensor, 0.8)] {
        let expected = [[[0.4, 0.2], [0.4, 0.6]], [[second, 0.], [0., second]]];
        let expected = Tensor::new(&expected, device())?;
        assert_close(&pseudo_inverse(&a, 0, start)?, &expected, TOLERANCE)?;
        assert_close(&reference::pseudo_inverse(&a, 0, start)?, &expected, TOLERANCE)?;
    }
    Ok(())
}
