//! The attention-free means: laws that agreement with the definition does not show.

mod common;

use candle_core::{DType, Result, Tensor};
use common::{differentiate, normal, values};
use tealight_ops::Reach;
use tealight_ops::aft::{Alignment, aft_conv, aft_full, aft_local, aft_simple};
use tealight_ops::testing::device;
use tealight_ops::threads;

const REACHES: [Reach; 2] = [Reach::Everything, Reach::Past];

/// Of key, value and w.
type Kind = fn(&[Tensor], Option<&Tensor>, Reach) -> Result<Tensor>;

/// The shape of w for a length and a number of channels.
type ShapeOfW = fn(usize, usize) -> Option<[usize; 2]>;

const KINDS: [(&str, ShapeOfW, Kind); 5] = [
    (
        "full",
        |len, _| Some([len, len]),
        |x, mask, reach| aft_full(&x[0], &x[1], &x[2], mask, reach),
    ),
    (
        "local",
        |len, _| Some([len, 5]),
        |x, mask, reach| aft_local(&x[0], &x[1], &x[2], mask, reach),
    ),
    ("simple", |_, _| None, |x, mask, reach| aft_simple(&x[0], &x[1], mask, reach)),
    (
        "conv",
        |_, d_model| Some([d_model, 3]),
        |x, mask, reach| {
            let value = x[1].unsqueeze(3)?;
            aft_conv(&x[0], &value, &x[2], Alignment::Centred, mask, reach)?.squeeze(3)
        },
    ),
    (
        "conv to the left",
        |_, d_model| Some([d_model, 4]),
        |x, mask, reach| {
            let value = x[1].unsqueeze(3)?;
            aft_conv(&x[0], &value, &x[2], Alignment::Left, mask, reach)?.squeeze(3)
        },
    ),
];

/// `key (batch, len, d_model)` of the given size, `value` and `w`.
fn inputs(shape: [usize; 3], scale: f64, w: Option<[usize; 2]>) -> Result<Vec<Tensor>> {
    let key = (normal(0, &shape, DType::F32)? * scale)?;
    let mut inputs = vec![key, normal(1, &shape, DType::F32)?];
    if let Some(w) = w {
        inputs.push((normal(2, &w, DType::F32)? * 2.)?);
    }
    Ok(inputs)
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    let x: Vec<f32> = x.flatten_all()?.to_vec1()?;
    Ok(x.into_iter().map(f32::to_bits).collect())
}

/// `x` with other numbers from position `from` on.
fn with_another_future(x: &Tensor, from: usize, scale: f64) -> Result<Tensor> {
    let (batch, len, d_model) = x.dims3()?;
    let future = (normal(9, &[batch, len - from, d_model], x.dtype())? * scale)?;
    Tensor::cat(&[&x.narrow(1, 0, from)?, &future], 1)
}

#[test]
fn the_future_does_not_change_a_bit_of_the_past() -> Result<()> {
    let len = 283; // three tiles of AFT-full
    for scale in [2., 20., 200.] {
        for (name, w, op) in KINDS {
            let x = inputs([2, len, 7], scale, w(len, 7))?;
            let expected = op(&x, None, Reach::Past)?;
            for from in [1, 17, 127, 128, 129, 200, 282] {
                let mut other = x.clone();
                other[0] = with_another_future(&x[0], from, scale)?;
                other[1] = with_another_future(&x[1], from, 3.)?;
                let actual = op(&other, None, Reach::Past)?;
                let past = |y: &Tensor| bits(&y.narrow(1, 0, from)?);
                assert_eq!(past(&actual)?, past(&expected)?, "{name} × {scale} before {from}");
            }
        }
    }
    Ok(())
}

#[test]
fn examples_of_a_batch_do_not_meet() -> Result<()> {
    for (name, w, op) in KINDS {
        for reach in REACHES {
            let x = inputs([3, 31, 7], 2., w(31, 7))?;
            let expected = op(&x, None, reach)?;
            let mut other = x.clone();
            for x in &mut other[..2] {
                let [first, second, third] = [0, 1, 2].map(|i| x.narrow(0, i, 1));
                *x = Tensor::cat(&[first?, (second? * 77.)?, third?], 0)?;
            }
            let actual = op(&other, None, reach)?;
            for example in [0, 2] {
                let of = |y: &Tensor| bits(&y.narrow(0, example, 1)?);
                assert_eq!(of(&actual)?, of(&expected)?, "{name}");
            }
        }
    }
    Ok(())
}

#[test]
fn padding_is_not_read_and_a_row_without_keys_is_zeros() -> Result<()> {
    let mask = Tensor::new(&[[1_u8, 1, 0, 0, 1], [1, 1, 1, 1, 1]], device())?;
    let keep = mask.eq(0_u8)?.unsqueeze(2)?.broadcast_as((2, 5, 7))?;
    for (name, w, op) in KINDS {
        for reach in REACHES {
            let x = inputs([2, 5, 7], 2., w(5, 7))?;
            let (y, gradients) = differentiate(&|x| op(x, Some(&mask), reach), &x)?;
            let mut other = x.clone();
            for x in &mut other[..2] {
                *x = keep.where_cond(x, &(x.ones_like()? * 55.)?)?;
            }
            assert_eq!(bits(&op(&other, Some(&mask), reach)?)?, bits(&y)?, "{name}");
            let (n_rows, y) = (y.dim(1)?, values(&y)?);
            let empty = if reach == Reach::Past { 2 * 7 } else { 0 };
            assert!(y[..empty].iter().chain(&y[n_rows * 7..]).all(|&y| y == 0.), "{name}: {y:?}");
            for gradient in &gradients {
                assert!(values(gradient)?.iter().all(|g| g.is_finite()), "{name}: {gradient}");
            }
            for gradient in &gradients[..2] {
                let gradient = values(gradient)?;
                let padded = gradient[..2 * 7].iter().chain(&gradient[4 * 7..]);
                assert!(padded.into_iter().all(|&g| g == 0.), "{name}: {gradient:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() -> Result<()> {
    for (name, w, op) in KINDS {
        for (reach, scale) in REACHES.into_iter().zip([2., 40.]) {
            let x = inputs([2, 283, 131], scale, w(283, 131))?;
            let run = |n_threads| -> Result<Vec<Vec<u32>>> {
                threads::with(n_threads, || {
                    let (y, gradients) = differentiate(&|x| op(x, None, reach), &x)?;
                    std::iter::once(&y).chain(&gradients).map(bits).collect()
                })
            };
            assert_eq!(run(1)?, run(3)?, "{name}");
        }
    }
    Ok(())
}
