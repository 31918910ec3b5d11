//! Every kind of attention against records of its formula, in f64 and f32: outputs, weights, gradients.
//!
//! The records are in `tests/golden/attention`, or in `TEALIGHT_GOLDEN_DIR`.
//! `scripts/reference/gen_attention.py` writes them, but for `recurrent`: outputs from numpy loops over the formulas,
//! gradients from torch. Those of `recurrent` are from a program of torch that goes token by token. The test
//! fails if a case or a tensor of the records is not compared, or if a kind of attention has no record.

mod aft;
mod dot;
mod entmax;
mod layer;
mod linear;
mod local;
mod mask;
mod nystrom;
mod record;
mod recurrent;
mod relatives;
mod retention;
mod rwkv;
mod sinusoidal;

use std::collections::BTreeSet;

use candle_core::{DType, Result};
use record::{Case, Description, Record};
use tealight_model::attention::AttentionConfig;
use tealight_ops::testing::device;

/// The largest error, relative to the largest expected number if that is above 1.
const TOLERANCES: [(DType, f64); 2] = [(DType::F64, 1e-10), (DType::F32, 2e-5)];
/// For f32 on a GPU, which adds in another order.
const TOLERANCE_OF_A_GPU: f64 = 1e-4;

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
        "entmax15" => entmax::check(case),
        "entmax15_rows" => entmax::check_rows(case),
        "local" => local::check(case),
        "gated_delta_rule" | "linear_sum" | "simple_gla" | "gla" | "hgrn2" | "ssd" | "delta"
        | "gated_delta" | "kda" | "gdn2" | "rwkv7" | "delta_product" | "lightning" => {
            recurrent::check_rule(case)
        }
        "gated_deltanet_layer"
        | "deltanet_layer"
        | "kda_layer"
        | "mamba2_layer"
        | "gla_layer"
        | "rwkv7_layer" => recurrent::check_layer(case),
        "linear" | "performer" => linear::check(case),
        "wkv" | "wkv_gated" => rwkv::check_wkv(case),
        "rwkv" => rwkv::check(case),
        "retention" => retention::check(case),
        "retention_gated" => retention::check_gated(case),
        "worked example" => dot::check_worked_example(case),
        "aft_full" | "aft_full_lowrank" | "aft_local" | "aft_simple" | "aft_conv" => {
            aft::check(case)
        }
        "aft_local_excluded" => aft::check_excluded(case),
        "nystrom" => nystrom::check(case),
        "based" => linear::check_taylor(case),
        "sink" | "off_by_one" | "gated" | "forgetting" => relatives::check_softmax(case),
        "sigmoid" => relatives::check_sigmoid(case),
        "stick_breaking" => relatives::check_stick_breaking(case),
        "differential" => relatives::check_differential(case),
        "mla" => relatives::check_latent(case),
        "linformer" => relatives::check_linformer(case),
        "path" => relatives::check_path(case),
        "log_linear" => relatives::check_log_linear(case),
        "bigbird" => relatives::check_bigbird(case),
        "longformer" => relatives::check_longformer(case),
        "fnet" => relatives::check_fnet(case),
        "spatial_gating" => relatives::check_spatial_gating(case),
        "forgetting_layer" | "differential_layer" | "mla_layer" => relatives::check_layer(case),
        "sinusoidal" => sinusoidal::check(case),
        "sinusoidal base L" => sinusoidal::check_base_of_length(case),
        op => {
            case.fail(&format!("unknown op `{op}`"));
            Ok(())
        }
    }
}

/// The kind of attention that a case is a record of, if it is one of attention.
fn kind(case: &Description) -> &str {
    match (case.op.as_str(), case.distribution.as_deref()) {
        (_, Some("sparse_softmax_topk")) => "top_k",
        (_, Some(distribution)) if distribution.starts_with("sparse_softmax") => "thresholded",
        (_, Some(distribution)) => distribution,
        ("scaled_dot" | "dot" | "general" | "additive", None) => "softmax",
        ("retention_gated", None) => "retention",
        ("spatial_gating", None) => "gmlp",
        (op, None) => op.strip_suffix("_layer").unwrap_or(op),
    }
}

#[test]
fn every_kind_of_attention_has_a_record() -> Result<()> {
    let record = Record::own()?;
    let recorded: BTreeSet<&str> = record.descriptions().map(kind).collect();
    let kinds = AttentionConfig::KINDS.iter().map(|kind| kind.name);
    let missing: Vec<_> = kinds.filter(|kind| !recorded.contains(kind)).collect();
    assert!(missing.is_empty(), "no record of {missing:?}");
    Ok(())
}

#[test]
fn everything_recorded_is_computed_alike() -> Result<()> {
    let record = Record::load()?;
    let mut failures = record.tensors_of_no_case();
    for (dtype, tolerance) in TOLERANCES {
        let is_on_gpu = !device().is_cpu() && dtype == DType::F32;
        let tolerance = if is_on_gpu { TOLERANCE_OF_A_GPU } else { tolerance };
        for case in record.cases(dtype, tolerance)? {
            check(&case)?;
            failures.extend(case.finish());
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}
