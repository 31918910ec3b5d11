//! 1.5-entmax attention: [z/2 − τ]₊² of scaled products, and by rows.

use candle_core::{DType, Result, Tensor};
use tealight_model::attention::score::dot;
use tealight_model::attention::{AttentionConfig, entmax15 as kind};
use tealight_ops::entmax::entmax15;

use crate::layer;
use crate::mask::Mask;
use crate::record::{Case, Inputs};

pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_case(case)?;
    let weights = |x: &Inputs| {
        let (query, key) = (&x["q"], &x["k"]);
        entmax15(&mask.apply(dot(query, key, 1. / (query.dim(3)? as f64).sqrt())?)?)
    };
    let recorded = weights(&case.inputs())?;
    case.compare("weights", &recorded)?;
    case.compare("support", &support(&recorded)?)?;
    case.compare_with_gradients(|x| weights(x)?.matmul(&x["v"]))?;
    layer::check(case, &AttentionConfig::Entmax15(kind::Config::default()), &mask)
}

/// Each row of `z` by itself.
pub(crate) fn check_rows(case: &Case<'_>) -> Result<()> {
    case.compare("support", &support(&entmax15(&case.tensor("z"))?)?)?;
    case.compare_with_gradients(|x| entmax15(&x["z"]))
}

/// 1 where a weight is not exactly zero.
fn support(weights: &Tensor) -> Result<Tensor> {
    weights.ne(0.)?.to_dtype(DType::U8)
}
