//! Operations on pictures against their definitions, and their gradients against differences.

#[path = "common/agreement.rs"]
mod agreement;
mod common;

use agreement::{TOLERANCES, assert_agree};
use candle_core::{DType, Result, Tensor};
use common::{Op, differentiate, normal, values};
use tealight_ops::convolution::{self, Steps, convolution};
use tealight_ops::max_pool::{self, max_pool};
use tealight_ops::patches::{self, Window, patches};
use tealight_ops::testing::device;
use tealight_ops::{ProductPrecision, threads, with_product_precision};

/// Batch, height, width and channels: single pixels, primes, and large enough for several threads.
const PICTURES: [[usize; 4]; 5] =
    [[1, 5, 5, 1], [2, 7, 5, 3], [3, 13, 11, 2], [1, 8, 24, 4], [5, 31, 29, 7]];

/// Windows that touch, overlap, leave pixels out, and reach over the edge.
const WINDOWS: [Window; 6] = [
    Window { size: 1, stride: 1, padding: 0 },
    Window { size: 4, stride: 4, padding: 0 },
    Window { size: 3, stride: 1, padding: 1 },
    Window { size: 3, stride: 2, padding: 1 },
    Window { size: 2, stride: 3, padding: 0 },
    Window { size: 5, stride: 2, padding: 3 },
];

#[test]
fn patches_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in PICTURES {
            for window in WINDOWS {
                let x = [normal(0, &shape, dtype)?];
                let op: Op = &|x| patches(&x[0], window);
                let definition: Op = &|x| patches::reference::patches(&x[0], window);
                assert_agree(&format!("patches {window:?}"), op, definition, &x, tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn convolutions_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in PICTURES {
            for Window { size, stride, padding } in WINDOWS {
                for n_outputs in [1, 5, 37] {
                    let x = normal(0, &shape, dtype)?;
                    let weight = normal(1, &[n_outputs, size, size, shape[3]], dtype)?;
                    let inputs = [x, weight, normal(2, &[n_outputs], dtype)?];
                    let steps = Steps { stride, padding };
                    let op: Op = &|x| convolution(&x[0], &x[1], Some(&x[2]), steps);
                    let definition: Op =
                        &|x| convolution::reference::convolution(&x[0], &x[1], Some(&x[2]), steps);
                    assert_agree("convolution", op, definition, &inputs, tolerance)?;
                    let op: Op = &|x| convolution(&x[0], &x[1], None, steps);
                    let definition: Op =
                        &|x| convolution::reference::convolution(&x[0], &x[1], None, steps);
                    assert_agree("convolution", op, definition, &inputs[..2], tolerance)?;
                }
            }
        }
    }
    Ok(())
}

/// More pictures than parts of the backward, and more patches than a block holds.
#[test]
fn convolutions_of_many_large_pictures_agree() -> Result<()> {
    let steps = Steps { stride: 1, padding: 1 };
    for (shape, n_outputs) in [([67, 5, 3, 2], 3), ([3, 43, 41, 23], 17)] {
        let weight = normal(1, &[n_outputs, 3, 3, shape[3]], DType::F64)?;
        let inputs = [normal(0, &shape, DType::F64)?, weight, normal(2, &[n_outputs], DType::F64)?];
        let op: Op = &|x| convolution(&x[0], &x[1], Some(&x[2]), steps);
        let definition: Op =
            &|x| convolution::reference::convolution(&x[0], &x[1], Some(&x[2]), steps);
        assert_agree("convolution", op, definition, &inputs, 1e-11)?;
    }
    Ok(())
}

#[test]
fn max_pools_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in PICTURES {
            for window in WINDOWS {
                // Few different values, so that many are equal.
                let x = [normal(0, &shape, dtype)?.round()?];
                let op: Op = &|x| max_pool(&x[0], window);
                let definition: Op = &|x| max_pool::reference::max_pool(&x[0], window);
                assert_agree(&format!("max-pool {window:?}"), op, definition, &x, tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn the_first_of_equal_maxima_has_the_gradient_and_nan_is_the_maximum() -> Result<()> {
    let window = Window { size: 2, stride: 2, padding: 0 };
    let x = Tensor::new(&[[[[1_f32], [3.], [5.], [5.]], [[3.], [2.], [5.], [4.]]]], device())?;
    let op: Op = &|x| max_pool(&x[0], window);
    let (y, gradients) = differentiate(op, &[x])?;
    assert_eq!(values(&y)?, [3., 5.]);
    let g = values(&normal(99, &[1, 1, 2, 1], DType::F32)?)?;
    assert_eq!(values(&gradients[0])?, [0., g[0], g[1], 0., 0., 0., 0., 0.]);
    for place in 0..4 {
        let mut numbers = [1_f32, 2., 3., 4.];
        numbers[place] = f32::NAN;
        let x = Tensor::from_slice(&numbers, (1, 2, 2, 1), device())?;
        assert!(values(&max_pool(&x, window)?)?[0].is_nan(), "{place}");
    }
    Ok(())
}

/// A kernel that picks the pixel to the right of each, in the paper's indices.
#[test]
fn the_kernel_is_not_flipped() -> Result<()> {
    let x = Tensor::new(&[[[[1_f64], [2.], [3.]], [[4.], [5.], [6.]]]], device())?;
    let mut kernel = [0_f64; 9];
    kernel[5] = 1.;
    let weight = Tensor::from_slice(&kernel, (1, 3, 3, 1), device())?;
    let y = convolution(&x, &weight, None, Steps { stride: 1, padding: 1 })?;
    assert_eq!(values(&y)?, [2., 3., 0., 5., 6., 0.]);
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() -> Result<()> {
    let steps = Steps { stride: 1, padding: 1 };
    let window = Window { size: 3, stride: 2, padding: 1 };
    let x = normal(0, &[37, 17, 13, 11], DType::F32)?;
    let weight = normal(1, &[37, 3, 3, 11], DType::F32)?;
    let inputs = [x, weight, normal(2, &[37], DType::F32)?];
    let op: Op = &|x| max_pool(&convolution(&x[0], &x[1], Some(&x[2]), steps)?, window);
    for precision in [ProductPrecision::F32, ProductPrecision::Bf16] {
        let bits = |n_threads: usize| {
            threads::with(n_threads, || {
                let (y, gradients) =
                    with_product_precision(precision, || differentiate(op, &inputs))?;
                let all = [y].into_iter().chain(gradients);
                all.map(|x| values(&x)).collect::<Result<Vec<_>>>()
            })
        };
        let one = bits(1)?;
        for n_threads in [2, 3, 5] {
            assert!(one == bits(n_threads)?, "{n_threads} threads, {precision:?}");
        }
    }
    Ok(())
}

const STEP: f64 = 1e-5;

#[test]
fn gradients_are_differences() -> Result<()> {
    let steps = Steps { stride: 2, padding: 1 };
    let window = Window { size: 3, stride: 2, padding: 1 };
    let inputs = [
        normal(0, &[2, 5, 7, 3], DType::F64)?,
        normal(1, &[2, 3, 3, 3], DType::F64)?,
        normal(2, &[2], DType::F64)?,
    ];
    let ops: [Op; 3] =
        [&|x| convolution(&x[0], &x[1], Some(&x[2]), steps), &|x| patches(&x[0], window), &|x| {
            max_pool(&x[0], window)
        }];
    for (op, n_inputs) in ops.into_iter().zip([3, 1, 1]) {
        let inputs = &inputs[..n_inputs];
        let (_, gradients) = differentiate(op, inputs)?;
        let loss = |inputs: &[Tensor]| -> Result<f64> {
            let value = op(inputs)?;
            (&value * normal(99, value.dims(), DType::F64)?)?.sum_all()?.to_scalar()
        };
        for (input, gradient) in gradients.iter().enumerate() {
            for (i, analytic) in values(gradient)?.into_iter().enumerate() {
                let nudged = |delta| {
                    let mut elements = values(&inputs[input])?;
                    elements[i] += delta;
                    let mut all = inputs.to_vec();
                    all[input] = Tensor::from_vec(elements, inputs[input].shape(), device())?;
                    loss(&all)
                };
                let numeric = (nudged(STEP)? - nudged(-STEP)?) / (2. * STEP);
                let error = (analytic - numeric).abs();
                assert!(
                    error < 1e-7 * numeric.abs().max(1.),
                    "{input}[{i}]: {analytic}, {numeric}"
                );
            }
        }
    }
    Ok(())
}

/// Pixel (r, c) holds 10·r + c in its first channel and its negative in the second.
#[test]
fn patches_are_row_by_row_with_the_channels_of_a_pixel_together() -> Result<()> {
    let value = |i: usize| {
        (10 * (i / 2 / 4) + i / 2 % 4) as f64 * if i.is_multiple_of(2) { 1. } else { -1. }
    };
    let x: Vec<f64> = (0..2 * 4 * 2).map(value).collect();
    let x = Tensor::from_vec(x, (1, 2, 4, 2), device())?;
    let y = patches(&x, Window { size: 2, stride: 2, padding: 0 })?;
    assert_eq!(y.dims(), [1, 1, 2, 8]);
    let expected =
        [[0., 0., 1., -1., 10., -10., 11., -11.], [2., -2., 3., -3., 12., -12., 13., -13.]];
    assert_eq!(values(&y)?, expected.concat());
    Ok(())
}

#[test]
fn windows_that_do_not_fit_are_refused() -> Result<()> {
    let x = normal(0, &[2, 5, 7, 3], DType::F32)?;
    assert!(patches(&x, Window { size: 6, stride: 1, padding: 0 }).is_err());
    assert!(patches(&x, Window { size: 3, stride: 0, padding: 0 }).is_err());
    assert!(patches(&x, Window { size: 0, stride: 1, padding: 0 }).is_err());
    assert!(max_pool(&x, Window { size: 6, stride: 1, padding: 0 }).is_err());
    let large = normal(0, &[1, 17, 17, 1], DType::F32)?;
    assert!(max_pool(&large, Window { size: 17, stride: 1, padding: 0 }).is_err());
    let steps = Steps { stride: 1, padding: 0 };
    for weight in [[2, 6, 6, 3], [2, 3, 3, 2], [2, 3, 2, 3]] {
        assert!(convolution(&x, &normal(1, &weight, DType::F32)?, None, steps).is_err());
    }
    Ok(())
}
