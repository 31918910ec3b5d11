//! Operations on pictures against their definitions, and their gradients against differences.

#[path = "common/agreement.rs"]
mod agreement;
mod common;

use agreement::{TOLERANCES, assert_agree};
use candle_core::{DType, Result};
use common::{Op, normal, values};
use tealight_ops::patches::{self, Window, patches};

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

/// Pixel (r, c) holds 10·r + c in its first channel and its negative in the second.
#[test]
fn patches_are_row_by_row_with_the_channels_of_a_pixel_together() -> Result<()> {
    let value = |i: usize| {
        (10 * (i / 2 / 4) + i / 2 % 4) as f64 * if i.is_multiple_of(2) { 1. } else { -1. }
    };
    let x: Vec<f64> = (0..2 * 4 * 2).map(value).collect();
    let x = candle_core::Tensor::from_vec(x, (1, 2, 4, 2), tealight_ops::testing::device())?;
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
    Ok(())
}
