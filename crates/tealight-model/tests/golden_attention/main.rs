//! Attention as recorded from its formulas, in f64 and f32: outputs, weights and gradients.
//!
//! The records lie in `tests/golden/attention`, or in `TEALIGHT_GOLDEN_DIR`, and are written by
//! `scripts/reference/gen_attention.py`, from numpy loops over the formulas and gradients of torch.
//! Every case and every tensor in them is looked at: one that nobody knows fails the test.

mod aft;
mod dot;
mod mask;
mod nystrom;
mod record;
mod sinusoidal;

use candle_core::{DType, Result};
use record::{Case, Record};
use tealight_ops::testing::device;

/// The largest error, relative to the largest expected number if that is above 1.
const TOLERANCES: [(DType, f64); 2] = [(DType::F64, 1e-10), (DType::F32, 2e-5)];
/// Of f32 on a GPU, where sums have another order.
const TOLERANCE_OF_A_GPU: f64 = 1e-4;

/// In the record: fewer would mean that some were lost.
const N_CASES: usize = 104;

fn check(case: &Case<'_>) -> Result<()> {
    match case.op() {
        _ if case.name == "scaled_dot/all_masked_hf_eager" => dot::check_uniform_rows(case),
        "scaled_dot"
        | "dot"
        | "general"
        | "additive"
        | "seed_additive_shared"
        | "seed_additive_separate" => dot::check(case),
        "sparsemax" => dot::check_rows(case),
        "worked example" => dot::check_worked_example(case),
        "aft_full" | "aft_full_lowrank" | "aft_local" | "aft_simple" | "aft_conv" => {
            aft::check(case)
        }
        "aft_local_excluded" => aft::check_excluded(case),
        "nystrom" => nystrom::check(case),
        "sinusoidal" => sinusoidal::check(case),
        "sinusoidal base L" => sinusoidal::check_base_of_length(case),
        op => {
            case.fail(&format!("nobody knows the op `{op}`"));
            Ok(())
        }
    }
}

#[test]
fn everything_recorded_is_computed_alike() -> Result<()> {
    let record = Record::load()?;
    let mut failures = record.tensors_of_no_case();
    let mut n_checked = 0;
    for (dtype, tolerance) in TOLERANCES {
        let is_on_gpu = !device().is_cpu() && dtype == DType::F32;
        let tolerance = if is_on_gpu { TOLERANCE_OF_A_GPU } else { tolerance };
        for case in record.cases(dtype, tolerance)? {
            check(&case)?;
            failures.extend(case.finish());
            n_checked += 1;
        }
    }
    assert_eq!(n_checked, TOLERANCES.len() * N_CASES);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}
