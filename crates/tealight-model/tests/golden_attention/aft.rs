//! The attention free transformer: σ(Q) ⊙ the output of the operation.

use candle_core::{Result, Tensor};
use tealight_model::attention::aft_conv::reparametrised;
use tealight_ops::activation::sigmoid;
use tealight_ops::aft::{Alignment, aft_conv, aft_full, aft_local, aft_simple};

use crate::mask::Mask;
use crate::record::{Case, Inputs};

/// The least difference between AFT-local and its wrong interpretation.
const DIFFERENT: f64 = 1e-3;

pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_case(case)?;
    case.compare_with_gradients(|x| gated(x, &context(case, x, &mask)?))
}

/// A wrong interpretation of AFT-local, recorded to tell it from the paper's: it excludes keys outside the
/// window, where the paper sets w = 0.
pub(crate) fn check_excluded(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_case(case)?;
    case.compare_with_gradients(|x| {
        let (len, window) = (x["w"].dim(0)?, window(case));
        let outside = |at: usize| (at / len).abs_diff(at % len) >= window;
        let cut = (0..len * len).map(|at| if outside(at) { f64::NEG_INFINITY } else { 0. });
        let cut = Tensor::from_vec(cut.collect::<Vec<f64>>(), (len, len), x["w"].device())?;
        let w = (&x["w"] + cut.to_dtype(case.dtype)?)?;
        gated(x, &aft_full(&x["k"], &x["v"], &w, mask.padding(), mask.reach())?)
    })?;
    let x = case.inputs();
    let paper = gated(&x, &local(case, &x, &mask)?)?;
    if case.error(&paper, "out")? < DIFFERENT {
        case.fail("AFT-local excludes keys outside the window");
    }
    Ok(())
}

/// σ(Q) ⊙ context
fn gated(x: &Inputs, context: &Tensor) -> Result<Tensor> {
    sigmoid(&x["q"])?.broadcast_mul(context)
}

fn context(case: &Case<'_>, x: &Inputs, mask: &Mask) -> Result<Tensor> {
    let (key, value, padding, reach) = (&x["k"], &x["v"], mask.padding(), mask.reach());
    match case.op() {
        "aft_full" => aft_full(key, value, &x["w"], padding, reach),
        "aft_full_lowrank" => {
            aft_full(key, value, &x["u"].matmul(&x["v_pos"].t()?)?, padding, reach)
        }
        "aft_local" => local(case, x, mask),
        "aft_simple" => aft_simple(key, value, padding, reach),
        _ => aft_conv(key, value, &filter(x)?, alignment(case), padding, reach),
    }
}

fn local(case: &Case<'_>, x: &Inputs, mask: &Mask) -> Result<Tensor> {
    let w = band(&x["w"], window(case))?;
    aft_local(&x["k"], &x["v"], &w, mask.padding(), mask.reach())
}

fn window(case: &Case<'_>) -> usize {
    case.description.window.expect("the window of AFT-local")
}

/// `w (len, len)` → `(len, 2 window − 1)`: the diagonals within the window, padded with zeros outside the
/// sequence.
fn band(w: &Tensor, window: usize) -> Result<Tensor> {
    let len = w.dim(0)?;
    let padded = w.pad_with_zeros(1, window - 1, window - 1)?;
    let row = |t| padded.narrow(0, t, 1)?.narrow(1, t, 2 * window - 1);
    Tensor::cat(&(0..len).map(row).collect::<Result<Vec<_>>>()?, 0)
}

fn alignment(case: &Case<'_>) -> Alignment {
    match case.description.alignment.as_deref() {
        Some(alignment) if alignment.ends_with("(kernel-1)") => Alignment::Left,
        _ => Alignment::Centred,
    }
}

/// w, or γ (w − mean) / std + β of each head if the record has γ and β.
fn filter(x: &Inputs) -> Result<Tensor> {
    let w = &x["w"];
    let (Some(gamma), Some(beta)) = (x.get("gamma"), x.get("beta")) else { return Ok(w.clone()) };
    reparametrised(w, gamma, beta)
}
