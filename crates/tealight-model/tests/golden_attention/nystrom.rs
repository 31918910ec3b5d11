//! Nyström attention, with padding, and lengths that the number of landmarks does not divide.

use candle_core::{DType, Result, Tensor};
use tealight_ops::depthwise_convolution::depthwise_convolution;
use tealight_ops::nystrom::{
    Factors, Normalisation, Padding, SegmentRule, Settings, attention, factors,
};

use crate::record::{Case, Inputs};

/// Enough iterations for the inverse to converge in f64.
const MANY: usize = 16;

pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let Some(settings) = settings(case) else { return Ok(()) };
    let padding = padding(case)?;
    case.compare_with_gradients(|x| output(&settings, padding.as_ref(), x))?;

    let x = case.inputs();
    let Factors { kernel_1, kernel_2, inverse, kernel_3 } =
        factors(&x["q"], &x["k"], &settings, padding.as_ref())?;
    case.compare("kernel_1", &kernel_1)?;
    case.compare("kernel_2", &kernel_2)?;
    case.compare("inverse", &inverse)?;
    case.compare("kernel_3", &kernel_3)?;
    check_convergence(case, &settings, padding.as_ref(), &x)
}

/// With more iterations, the output must approach that of the exact pseudo-inverse.
fn check_convergence(
    case: &Case<'_>,
    settings: &Settings,
    padding: Option<&Tensor>,
    x: &Inputs,
) -> Result<()> {
    let distance = |n_iterations| {
        let settings = Settings { n_iterations, ..*settings };
        case.error(&output(&settings, padding, x)?, "out_true_pinv")
    };
    let (few, many) = (distance(settings.n_iterations)?, distance(MANY)?);
    if case.dtype == DType::F64 && many > few + 1e-10 {
        case.fail(&format!("{few:e} from the true inverse, and {many:e} after {MANY} steps"));
    }
    Ok(())
}

fn settings(case: &Case<'_>) -> Option<Settings> {
    let description = case.description;
    let [rule, init, mask_rule] =
        [&description.segment_rule, &description.init, &description.mask_rule]
            .map(|word| word.as_deref().unwrap_or("none"));
    let segment_rule = match rule {
        // If the length divides evenly, all rules agree.
        "equal" | "array_split" => SegmentRule::ArraySplit,
        "adaptive" => SegmentRule::Adaptive,
        "ceil_last_short" => SegmentRule::CeilLastShort,
        rule => return unknown(case, rule),
    };
    let normalisation = match init {
        "exact" => Normalisation::EachMatrix,
        "original" => Normalisation::WholeTensor,
        init => return unknown(case, init),
    };
    let padding = match mask_rule {
        "none" => Padding::Excluded,
        "hf" => Padding::KeysOfKernel3,
        "author" => Padding::Zeroed,
        rule => return unknown(case, rule),
    };
    let (n_landmarks, n_iterations) = (description.landmarks?, description.iterations?);
    Some(Settings { n_landmarks, n_iterations, normalisation, padding, segment_rule })
}

fn unknown(case: &Case<'_>, word: &str) -> Option<Settings> {
    case.fail(&format!("unknown rule `{word}`"));
    None
}

/// `(batch, len)`, 1 = padding, where the record has 1 = may attend.
fn padding(case: &Case<'_>) -> Result<Option<Tensor>> {
    case.has("mask").then(|| case.tensor("mask").eq(0_u8)).transpose()
}

fn output(settings: &Settings, padding: Option<&Tensor>, x: &Inputs) -> Result<Tensor> {
    let (query, key, value) = (&x["q"], &x["k"], &x["v"]);
    // The records apply the formula at any length; `attention` is exact softmax for short sequences.
    let context = if query.dim(2)? <= settings.n_landmarks {
        factors(query, key, settings, padding)?.read(value)?
    } else {
        attention(query, key, value, settings, padding)?
    };
    let Some(weight) = x.get("conv") else { return Ok(context) };
    let padding = padding.filter(|_| settings.padding != Padding::KeysOfKernel3);
    context + depthwise_convolution(value, weight, padding)?
}
