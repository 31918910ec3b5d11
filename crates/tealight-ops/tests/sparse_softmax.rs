//! Entmax and truncated softmaxes: values worked by hand, ties, masks, and errors. What is said
//! here is said of the fused loops and of the definitions alike.

mod common;

use candle_core::{DType, Result, Tensor};
use common::{differentiate, normal, values};
use tealight_ops::entmax::{self, entmax15, sparsemax};
use tealight_ops::testing::device;
use tealight_ops::truncated_softmax::{self, Truncation, truncated_softmax};

const TOLERANCE: f64 = 1e-6;
const MASKED: f32 = f32::NEG_INFINITY;

type Rows = fn(&Tensor) -> Result<Tensor>;

const SPARSEMAX: [Rows; 2] = [sparsemax, entmax::reference::sparsemax];
const ENTMAX15: [Rows; 2] = [entmax15, entmax::reference::entmax15];
const TRUNCATED: [fn(&Tensor, Truncation) -> Result<Tensor>; 2] =
    [truncated_softmax, truncated_softmax::reference::truncated_softmax];

const TRUNCATIONS: [Truncation; 4] = [
    Truncation::TopK(3),
    Truncation::Cut(0.1),
    Truncation::CutRenormalized(0.1),
    Truncation::ScoreCut(-1.),
];

fn assert_rows<const N: usize>(
    op: &dyn Fn(&Tensor) -> Result<Tensor>,
    rows: &[([f32; N], [f64; N])],
) -> Result<()> {
    for (x, expected) in rows {
        let y = values(&op(&Tensor::new(&[*x], device())?)?)?;
        let is_close = y.iter().zip(expected).all(|(y, e)| (y - e).abs() < TOLERANCE);
        assert!(is_close, "{x:?} gives {y:?}, not {expected:?}");
        for (y, expected) in y.iter().zip(expected) {
            assert_eq!(*y == 0., *expected == 0., "zeros are exact: {x:?} gives {y}");
        }
    }
    Ok(())
}

/// Every operation here, by fused loop and by definition.
fn for_all(mut check: impl FnMut(&dyn Fn(&Tensor) -> Result<Tensor>) -> Result<()>) -> Result<()> {
    for op in SPARSEMAX.into_iter().chain(ENTMAX15) {
        check(&op)?;
    }
    for op in TRUNCATED {
        for truncation in TRUNCATIONS {
            check(&|x| op(x, truncation))?;
        }
    }
    Ok(())
}

#[test]
fn sparsemax_projects_onto_the_simplex() -> Result<()> {
    for op in SPARSEMAX {
        assert_rows(
            &op,
            &[
                ([1., 1., 1., 1.], [0.25, 0.25, 0.25, 0.25]),
                ([3., 1., 0.2, -1.], [1., 0., 0., 0.]),
                ([0.5, 0.5, 0., 0.], [0.5, 0.5, 0., 0.]),
                ([0.25, 0.75, 0., -1.], [0.25, 0.75, 0., 0.]),
                // τ = (1.2 + 0.8 + 0.3 − 1) / 3 = 1.3 / 3 would exceed 0.3: two are left, τ = 0.5.
                ([1.2, 0.3, 0.8, -0.1], [0.7, 0., 0.3, 0.]),
                ([-200., 200., 199.5, MASKED], [0., 0.75, 0.25, 0.]),
                ([10_000., MASKED, -10_000., 10_000.], [0.5, 0., 0., 0.5]),
                ([MASKED, -7., MASKED, MASKED], [0., 1., 0., 0.]),
            ],
        )?;
    }
    Ok(())
}

#[test]
fn entmax15_squares_what_is_above_its_threshold() -> Result<()> {
    for op in ENTMAX15 {
        assert_rows(
            &op,
            &[
                ([2., 2., 2., 2.], [0.25, 0.25, 0.25, 0.25]),
                // Halves 0.2 and 0 above τ = −0.6: 0.8² + 0.6² = 1, and −0.6 is not above it.
                ([0.4, 0., -1.2, MASKED], [0.64, 0.36, 0., 0.]),
                ([0., 2., -1., 0.], [0., 1., 0., 0.]),
                ([-200., 200., 200., MASKED], [0., 0.5, 0.5, 0.]),
                ([10_000., MASKED, -10_000., 10_000.], [0.5, 0., 0., 0.5]),
            ],
        )?;
    }
    Ok(())
}

#[test]
fn truncations_of_tenths() -> Result<()> {
    // softmax(x) = (0.2, 0.4, 0.1, 0.3)
    let x = [0.2_f32.ln(), 0.4_f32.ln(), 0.1_f32.ln(), 0.3_f32.ln()];
    for op in TRUNCATED {
        for (truncation, expected) in [
            (Truncation::TopK(1), [0., 1., 0., 0.]),
            (Truncation::TopK(2), [0., 4. / 7., 0., 3. / 7.]),
            (Truncation::TopK(4), [0.2, 0.4, 0.1, 0.3]),
            (Truncation::TopK(9), [0.2, 0.4, 0.1, 0.3]),
            (Truncation::Cut(0.), [0.2, 0.4, 0.1, 0.3]),
            (Truncation::Cut(0.25), [0., 0.4, 0., 0.3]),
            (Truncation::CutRenormalized(0.25), [0., 4. / 7., 0., 3. / 7.]),
            (Truncation::CutRenormalized(0.5), [0., 0., 0., 0.]),
            (Truncation::ScoreCut(-1.5), [0., 4. / 7., 0., 3. / 7.]),
            (Truncation::ScoreCut(0.), [0., 0., 0., 0.]),
        ] {
            assert_rows(&|x| op(x, truncation), &[(x, expected)])?;
        }
    }
    Ok(())
}

#[test]
fn of_equals_the_first_are_kept() -> Result<()> {
    for op in TRUNCATED {
        assert_rows(
            &|x| op(x, Truncation::TopK(2)),
            &[([1., 1., 1., 1.], [0.5, 0.5, 0., 0.]), ([7., 9., 9., 9.], [0., 0.5, 0.5, 0.])],
        )?;
        assert_rows(
            &|x| op(x, Truncation::TopK(3)),
            &[
                // e⁻³ / (2 + e⁻³) and 1 / (2 + e⁻³)
                ([0., 3., 0., 3.], [0.024_288_896, 0.487_855_552, 0., 0.487_855_552]),
                ([MASKED, 5., MASKED, 5.], [0., 0.5, 0., 0.5]),
                ([MASKED, MASKED, 1., MASKED], [0., 0., 1., 0.]),
            ],
        )?;
    }
    Ok(())
}

#[test]
fn a_masked_row_is_zeros_and_has_no_gradient() -> Result<()> {
    let x = [[MASKED; 3], [0.5, MASKED, 0.75]];
    for_all(|op| {
        let x = Tensor::new(&x, device())?;
        let (y, gradients) = differentiate(&|x| op(&x[0]), std::slice::from_ref(&x))?;
        let (y, dx) = (values(&y)?, values(&gradients[0])?);
        assert_eq!((&y[..3], y[4]), (&[0.; 3][..], 0.));
        assert_eq!((&dx[..3], dx[4]), (&[0.; 3][..], 0.));
        assert!(y[3] > 0. && y[5] > y[3], "{y:?}");
        assert!(dx[3].is_finite() && dx[3] != 0., "{dx:?}");
        Ok(())
    })
}

#[test]
fn a_row_with_nothing_above_the_threshold_has_no_gradient() -> Result<()> {
    let x = Tensor::new(&[[0.5_f32, 0.25, 0.75]], device())?;
    for op in TRUNCATED {
        for truncation in
            [Truncation::Cut(0.9), Truncation::CutRenormalized(0.9), Truncation::ScoreCut(9.)]
        {
            let op = |x: &[Tensor]| op(&x[0], truncation);
            let (y, gradients) = differentiate(&op, std::slice::from_ref(&x))?;
            assert_eq!(values(&y)?, [0.; 3], "{truncation:?}");
            assert_eq!(values(&gradients[0])?, [0.; 3], "{truncation:?}");
        }
    }
    Ok(())
}

#[test]
fn rows_sum_to_one() -> Result<()> {
    let x = (normal(0, &[13, 101], DType::F32)? * 0.5)?;
    let top_3: Rows = |x| truncated_softmax(x, Truncation::TopK(3));
    for op in [sparsemax, entmax15, top_3] {
        for total in values(&op(&x)?.sum(1)?)? {
            assert!((total - 1.).abs() < TOLERANCE, "{total}");
        }
    }
    Ok(())
}

#[test]
fn a_nan_is_not_hidden() -> Result<()> {
    for bad in [[f32::NAN, 0., 1., 2.], [0., f32::NAN, 1., 2.], [0., 1., 2., f32::NAN]] {
        for_all(|op| {
            let y = values(&op(&Tensor::new(&[bad], device())?)?)?;
            assert!(y.iter().any(|y| y.is_nan()), "{bad:?} gives {y:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn settings_out_of_range_are_refused() -> Result<()> {
    let x = normal(0, &[2, 3], DType::F32)?;
    for truncation in [
        Truncation::TopK(0),
        Truncation::Cut(-0.1),
        Truncation::Cut(1.),
        Truncation::CutRenormalized(f64::NAN),
        Truncation::ScoreCut(f64::NAN),
    ] {
        assert!(truncated_softmax(&x, truncation).is_err(), "{truncation:?}");
    }
    let scalar = Tensor::new(1_f32, device())?;
    assert!(sparsemax(&scalar).is_err());
    assert!(truncated_softmax(&scalar, Truncation::TopK(1)).is_err());
    Ok(())
}
