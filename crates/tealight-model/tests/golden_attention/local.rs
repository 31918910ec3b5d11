//! Softmax attention in a sliding window, documents and shared heads included.

use candle_core::{DType, Result};
use tealight_model::attention::{AttentionConfig, local};
use tealight_ops::attention::{Options, attention, weights};

use crate::layer;
use crate::mask::Mask;
use crate::record::Case;

pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_case(case)?;
    let documents = case.has("documents").then(|| case.tensor("documents").to_dtype(DType::U32));
    let documents = documents.transpose()?;
    let window = case.description.window.expect("a window");
    let options = Options {
        causal: case.description.causal,
        window: Some(window),
        key_padding_mask: mask.padding(),
        segments: documents.as_ref(),
        ..Options::default()
    };
    let x = case.inputs();
    case.compare("weights", &weights(&x["q"], &x["k"], &options)?)?;
    case.compare_with_gradients(|x| attention(&x["q"], &x["k"], &x["v"], &options))?;

    let (_batch, n_kv_heads, _kv_len, _head_dim) = x["k"].dims4()?;
    let config = local::Config { window, n_kv_heads: Some(n_kv_heads), ..Default::default() };
    layer::check(case, &AttentionConfig::Local(config), &mask)
}
