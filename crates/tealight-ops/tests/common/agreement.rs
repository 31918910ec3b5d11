//! An operation against its definition.

use candle_core::{DType, Result, Tensor};

use crate::common::{Op, differentiate, values};

/// Of f32 and f64, relative to the largest expected number if that is above 1.
pub(crate) const TOLERANCES: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-12)];

/// Panics unless the values are equal up to rounding.
pub(crate) fn assert_close(
    name: &str,
    actual: &Tensor,
    expected: &Tensor,
    tolerance: f64,
) -> Result<()> {
    assert_eq!(actual.dims(), expected.dims(), "{name}: shape");
    let expected = values(expected)?;
    let scale = expected.iter().fold(1_f64, |scale, x| scale.max(x.abs()));
    for (i, (actual, expected)) in values(actual)?.into_iter().zip(expected).enumerate() {
        let error = (actual - expected).abs();
        let same = actual == expected || error <= tolerance * scale;
        assert!(same, "{name}[{i}]: {actual} is not {expected}");
    }
    Ok(())
}

/// Panics unless an operation has the value and the gradients of its definition.
pub(crate) fn assert_agree(
    name: &str,
    op: Op,
    definition: Op,
    inputs: &[Tensor],
    tol: f64,
) -> Result<()> {
    let name = format!("{name} {:?} {:?}", inputs[0].dims(), inputs[0].dtype());
    let (actual, actual_gradients) = differentiate(op, inputs)?;
    let (expected, expected_gradients) = differentiate(definition, inputs)?;
    assert_close(&name, &actual, &expected, tol)?;
    for (i, (a, e)) in actual_gradients.iter().zip(&expected_gradients).enumerate() {
        assert_close(&format!("{name}: gradient {i}"), a, e, tol)?;
    }
    Ok(())
}
