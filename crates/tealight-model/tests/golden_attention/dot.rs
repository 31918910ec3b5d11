//! Attention through a matrix of scores: all scores and distributions.

use candle_core::{DType, Result, Tensor};
use tealight_model::attention::score::{AdditiveParameters, additive, dot, general, logistic};
use tealight_ops::attention::{self, Options, attention};
use tealight_ops::entmax::sparsemax;
use tealight_ops::softmax::softmax;
use tealight_ops::truncated_softmax::{Truncation, truncated_softmax};

use crate::mask::Mask;
use crate::record::{Case, Inputs};

pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_case(case)?;
    let x = case.inputs();
    case.compare("scores", &scores(case, &x)?)?;
    case.compare("weights", &weights(case, &x, &mask)?)?;
    case.compare_with_gradients(|x| weights(case, x, &mask)?.matmul(&x["v"]))?;
    // The fused operation, which does not store the matrix, for softmax of products.
    if let (Some(options), None) = (options(case, &x, &mask)?, &case.description.distribution) {
        case.compare("weights", &attention::weights(&x["q"], &x["k"], &options)?)?;
        case.compare_with_gradients(|x| attention(&x["q"], &x["k"], &x["v"], &options))?;
    }
    Ok(())
}

/// Each row of `z` by itself.
pub(crate) fn check_rows(case: &Case<'_>) -> Result<()> {
    case.compare("p", &sparsemax(&case.tensor("z"))?)
}

/// Q Kᵀ, scaled scores, weights and output of one head, without a batch axis.
pub(crate) fn check_worked_example(case: &Case<'_>) -> Result<()> {
    let [query, key, value] = ["q", "k", "v"].map(|name| case.tensor(name));
    case.compare("qk", &dot(&query, &key, 1.)?)?;
    case.compare("scaled", &dot(&query, &key, 1. / (key.dim(1)? as f64).sqrt())?)?;

    let head = |x: &Tensor| x.unsqueeze(0)?.unsqueeze(0);
    let (query, key, value) = (head(&query)?, head(&key)?, head(&value)?);
    let alone = |x: Tensor| x.squeeze(0)?.squeeze(0);
    let options = Options::default();
    case.compare("weights", &alone(attention::weights(&query, &key, &options)?)?)?;
    case.compare("out", &alone(attention(&query, &key, &value, &options)?)?)
}

/// For a query without keys, `transformers` returns the mean of all values, and we return 0. The other
/// queries agree.
pub(crate) fn check_uniform_rows(case: &Case<'_>) -> Result<()> {
    let [query, key, value] = ["q", "k", "v"].map(|name| case.tensor(name));
    let mask = Mask::from_case(case)?;
    let options = Options { key_padding_mask: mask.padding(), ..Options::default() };
    let weights = attention::weights(&query, &key, &options)?;
    let context = attention(&query, &key, &value, &options)?;

    let reads = case.tensor("mask").max_keepdim(3)?; // (batch, n_heads, q_len, 1)
    let instead = |ours: &Tensor, theirs: &Tensor| {
        let nothing = reads.eq(0_u8)?.broadcast_as(ours.shape())?;
        let ours_there = (nothing.to_dtype(case.dtype)? * ours)?.abs()?.max_all()?;
        if ours_there.to_dtype(DType::F64)?.to_scalar::<f64>()? != 0. {
            case.fail("the output of a query without keys is not zero");
        }
        nothing.where_cond(&theirs.broadcast_as(ours.shape())?, ours)
    };
    let uniform = (weights.ones_like()? / key.dim(2)? as f64)?;
    case.compare("weights", &instead(&weights, &uniform)?)?;
    case.compare("out", &instead(&context, &value.mean_keepdim(2)?)?)
}

fn scores(case: &Case<'_>, x: &Inputs) -> Result<Tensor> {
    let (query, key) = (&x["q"], &x["k"]);
    let one_head = |name: &str| x[name].unsqueeze(0); // (1, ..): shared by all heads
    match case.op() {
        "scaled_dot" => dot(query, key, 1. / (query.dim(3)? as f64).sqrt()),
        "dot" => dot(query, key, 1.),
        "general" => general(query, key, &one_head("w")?),
        "additive" => {
            let (w_q, w_k) = (one_head("w_q")?, one_head("w_k")?);
            let (bias, direction) = (one_head("b")?, one_head("v_a")?);
            additive(query, key, &AdditiveParameters { query: w_q, key: w_k, bias, direction })
        }
        "seed_additive_shared" => {
            let w = one_head("w")?;
            logistic(query, key, [&w, &w], &x["b"])
        }
        _ => logistic(query, key, [&one_head("w_q")?, &one_head("w_k")?], &x["b"]),
    }
}

fn weights(case: &Case<'_>, x: &Inputs, mask: &Mask) -> Result<Tensor> {
    let scores = mask.apply(scores(case, x)?)?;
    let description = case.description;
    let threshold = || description.threshold.expect("a threshold");
    let truncation = match description.distribution.as_deref() {
        None => return softmax(&scores),
        Some("sparsemax") => return sparsemax(&scores),
        Some("sparse_softmax_cut") => Truncation::Cut(threshold()),
        Some("sparse_softmax_cut_renorm") => Truncation::CutRenormalized(threshold()),
        Some("sparse_softmax_score_cut") => Truncation::ScoreCut(threshold()),
        Some("sparse_softmax_topk") => Truncation::TopK(description.top_k.expect("a number")),
        Some(distribution) => {
            case.fail(&format!("unknown distribution `{distribution}`"));
            return Ok(scores);
        }
    };
    truncated_softmax(&scores, truncation)
}

/// The options of the fused operation for this case; `None` if it does not support the score.
fn options<'a>(case: &Case<'_>, x: &Inputs, mask: &'a Mask) -> Result<Option<Options<'a>>> {
    let scale = match case.op() {
        "scaled_dot" => 1. / (x["q"].dim(3)? as f64).sqrt(),
        "dot" => 1.,
        _ => return Ok(None),
    };
    let (causal, key_padding_mask) = (mask.causal, mask.padding());
    Ok(Some(Options { scale: Some(scale), causal, key_padding_mask, ..Options::default() }))
}
