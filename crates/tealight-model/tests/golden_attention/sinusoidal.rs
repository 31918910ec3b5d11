//! Sinusoidal positions: both layouts, and two published variants.

use candle_core::{DType, Error, Result, Tensor};
use tealight_model::ParamStore;
use tealight_model::position::sinusoidal::{Config, Layout};
use tealight_model::position::{PositionConfig, PositionSpec, TokenPositions};
use tealight_ops::testing::device;

use crate::record::Case;

pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let layout = if case.name.contains("halves") { Layout::Half } else { Layout::Interleaved };
    check_standard(case, "pe", 10_000., layout)
}

/// The standard table with the length as its base; and the formula and the code of a text, which are
/// different functions, `(d_model, len)`, and are computed here.
pub(crate) fn check_base_of_length(case: &Case<'_>) -> Result<()> {
    let (d_model, len) = case.tensor("code").dims2()?;
    let base = len as f64;
    check_standard(case, "standard", base, Layout::Interleaved)?;

    let angle = |t: usize, exponent: usize| t as f64 / base.powf(exponent as f64 / d_model as f64);
    // Rows 2i − 1 and 2i for 1 ≤ i ≤ d/2; the last row of an odd d_model is undefined.
    let formula = |row: usize, t: usize| {
        let angle = angle(t, 2 * (row / 2 + 1));
        if row.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    case.compare("formula", &table(case.dtype, d_model / 2 * 2, len, formula)?)?;
    // Row i, counted from 1: the sine with exponent i if i is even, else the cosine with exponent i − 1.
    let code = |row: usize, t: usize| {
        let i = row + 1;
        if i.is_multiple_of(2) { angle(t, i).sin() } else { angle(t, i - 1).cos() }
    };
    case.compare("code", &table(case.dtype, d_model, len, code)?)
}

fn check_standard(case: &Case<'_>, name: &str, base: f64, layout: Layout) -> Result<()> {
    let (len, d_model) = case.tensor(name).dims2()?;
    let config = PositionConfig::Sinusoidal(Config { base, layout });
    let spec = PositionSpec {
        d_model,
        n_heads: 1,
        head_dim: d_model,
        max_seq_len: len,
        causal: false,
        has_padding: false,
        grid: None,
    };
    let store = ParamStore::new(0, case.dtype, device());
    let position = config.build(&spec, &store.trainable());
    if d_model.is_multiple_of(2) {
        let position = position.map_err(Error::wrap)?.embedding.expect("vectors to add");
        return case.compare(
            name,
            &position.vectors(&TokenPositions { positions: 0..len, padded: None })?,
        );
    }
    // The layer requires an even d_model; the recorded table of an odd one has one more sine.
    if position.is_ok() {
        case.fail("an odd d_model is not refused");
    }
    let value = |t: usize, column: usize| {
        let angle = t as f64 / base.powf((column / 2 * 2) as f64 / d_model as f64);
        if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    case.compare(name, &table(case.dtype, len, d_model, value)?)
}

fn table(
    dtype: DType,
    n_rows: usize,
    n_columns: usize,
    value: impl Fn(usize, usize) -> f64,
) -> Result<Tensor> {
    let value = &value;
    let values = (0..n_rows).flat_map(|row| (0..n_columns).map(move |column| value(row, column)));
    Tensor::from_vec(values.collect::<Vec<f64>>(), (n_rows, n_columns), device())?.to_dtype(dtype)
}
