//! RWKV-4: wkv by itself, gated, and the whole time mixing.

use candle_core::{Result, Tensor};
use tealight_model::attention::{AttentionConfig, rwkv};
use tealight_model::{AttentionInput, Mode, Reads};
use tealight_ops::activation::sigmoid;
use tealight_ops::wkv::wkv;

use crate::layer::{self, Sizes};
use crate::mask::Mask;
use crate::record::{Case, Inputs};

/// wkv, or σ(r) ⊙ wkv.
pub(crate) fn check_wkv(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_case(case)?;
    case.compare_with_gradients(|x| {
        let context = wkv(&x["k"], &x["v"], &x["decay"], &x["bonus"], mask.padding(), None)?;
        match x.get("r") {
            Some(receptance) => sigmoid(receptance)? * context,
            None => Ok(context),
        }
    })
}

/// The layer, with the gradients of its parameters. The record has zeros at padding.
pub(crate) fn check(case: &Case<'_>) -> Result<()> {
    let recorded = Mask::from_case(case)?;
    let mask = layer::layer_mask(case, &recorded)?;
    case.compare_with_gradients(|x| {
        let (_batch, len, d_model) = x["x"].dims3()?;
        let sizes = Sizes { d_model, n_heads: 1, head_dim: d_model, q_len: len, kv_len: len };
        let config = AttentionConfig::Rwkv(rwkv::Config::default());
        let layer = layer::build(&config, case.dtype, Reads::Past, sizes, parameters(x))?;
        let y = layer.forward(&AttentionInput::new(&x["x"], &mask, Mode::Eval))?;
        let Some(padding) = recorded.padding() else { return Ok(y) };
        padding.unsqueeze(2)?.broadcast_as(y.shape())?.where_cond(&y.zeros_like()?, &y)
    })
}

/// The parameters of the layer by their names.
fn parameters(x: &Inputs) -> Vec<(&'static str, Tensor)> {
    let names = [
        ("receptance.weight", "w_r"),
        ("receptance.mix", "mu_r"),
        ("key.weight", "w_k"),
        ("key.mix", "mu_k"),
        ("value.weight", "w_v"),
        ("value.mix", "mu_v"),
        ("output.weight", "w_o"),
        ("decay", "log_decay"),
        ("bonus", "bonus"),
    ];
    names.map(|(name, recorded)| (name, x[recorded].clone())).to_vec()
}
