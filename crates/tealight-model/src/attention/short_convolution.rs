//! Short convolutions behind the maps of queries, keys and values.
//!
//! ```text
//! q = SiLU(conv(W^Q x)),  and k and v alike;      conv(x)_t = Σᵢ wᵢ ⊙ x_{t−size+1+i},  i < size
//! ```
//!
//! As in Mamba (Gu and Dao 2023, <https://arxiv.org/abs/2312.00752>) and, for softmax and linear attention, as fla has it. A
//! convolution is causal and has one filter for each channel; t counts the tokens of a document, so padding is skipped and a
//! document begins anew ([`tealight_ops::short_convolution`]). Initial values are those of PyTorch's `Conv1d`, U(±1/√size).
//!
//! Between calls a layer keeps the last size − 1 inputs of each convolution in a [`State`].

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder};
use tealight_ops::Tokens;
use tealight_ops::activation::silu;
use tealight_ops::broadcast::broadcast_add;
use tealight_ops::short_convolution::{short_convolution, short_convolution_after};

use super::state::State;
use super::{AttentionCost, AttentionSpec, Reads};
use crate::error::BuildResult;
use crate::layers::linear::Bias;
use crate::mask::Mask;

/// Where the filters of a map are, beside its weight.
pub(super) const NAME: &str = "convolution";

/// What lies before and among the positions of a call.
#[derive(Debug)]
pub(super) struct Before<'a> {
    /// Which positions are tokens, and of which document.
    pub(super) tokens: Tokens<'a>,
    /// What earlier calls left, which becomes what this one leaves; `None`: the sequence begins with the call.
    pub(super) past: Option<&'a mut State>,
}

impl<'a> Before<'a> {
    /// Of a call with the whole sequence.
    pub(super) fn whole(mask: &'a Mask) -> Self {
        let (key_padding_mask, segments) = (mask.key_padding_mask(), mask.segments());
        Self { tokens: Tokens { key_padding_mask, segments }, past: None }
    }

    /// Of a call that goes on from what earlier ones left in `past`.
    pub(super) fn after(past: &'a mut State) -> Self {
        Self { tokens: Tokens::default(), past: Some(past) }
    }
}

/// The convolution of one map.
#[derive(Debug)]
pub(super) struct ShortConvolution {
    /// The name of the map, and of the last inputs in a state.
    name: &'static str,
    /// `(width, size)`
    weight: Tensor,
    /// `(width)`
    bias: Option<Tensor>,
}

impl ShortConvolution {
    /// Builds `name.convolution` for the `width` outputs of the map `name`; `None` if `size` is 0.
    pub(super) fn build(
        name: &'static str,
        width: usize,
        (size, bias): (usize, Bias),
        vb: &VarBuilder<'_>,
    ) -> Result<Option<Self>> {
        if size == 0 {
            return Ok(None);
        }
        let vb = vb.pp(name).pp(NAME);
        let bound = 1. / (size as f64).sqrt();
        let init = Init::Uniform { lo: -bound, up: bound };
        let weight = vb.get_with_hints((width, size), "weight", init)?;
        let bias = (bias == Bias::With).then(|| vb.get_with_hints(width, "bias", init));
        Ok(Some(Self { name, weight, bias: bias.transpose()? }))
    }

    /// Builds the convolutions of queries, keys and values of these widths; `None` if `spec.conv_size` is 0.
    pub(super) fn build_all(
        widths: [usize; 3],
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Option<[Self; 3]>> {
        let [query, key, value] = widths;
        let of = |name, width| Self::build(name, width, (spec.conv_size, Bias::Without), vb);
        let (query, key, value) = (of("query", query)?, of("key", key)?, of("value", value)?);
        Ok(query.zip(key).zip(value).map(|((query, key), value)| [query, key, value]))
    }

    /// `(batch, len, width)` → the same shape
    pub(super) fn forward(&self, x: &Tensor, before: &mut Before<'_>) -> Result<Tensor> {
        let y = match &mut before.past {
            None => short_convolution(x, &self.weight, before.tokens)?,
            Some(past) => {
                let last = past.get(self.name);
                let [y, next] = short_convolution_after(last, x, &self.weight, before.tokens)?;
                past.insert(self.name, next);
                y
            }
        };
        match &self.bias {
            Some(bias) => broadcast_add(&y, bias),
            None => Ok(y),
        }
    }

    /// SiLU(conv(x)); x itself without a convolution.
    pub(super) fn activated(
        convolution: Option<&Self>,
        x: &Tensor,
        before: &mut Before<'_>,
    ) -> Result<Tensor> {
        match convolution {
            Some(convolution) => silu(&convolution.forward(x, before)?),
            None => Ok(x.clone()),
        }
    }

    /// SiLU(conv(x)) of three maps; what they give without convolutions.
    pub(super) fn activated_all(
        convolutions: Option<&[Self; 3]>,
        outputs: [Tensor; 3],
        before: &mut Before<'_>,
    ) -> Result<[Tensor; 3]> {
        let [query, key, value] = Self::plain_all(convolutions, outputs, before)?;
        match convolutions {
            Some(_) => Ok([silu(&query)?, silu(&key)?, silu(&value)?]),
            None => Ok([query, key, value]),
        }
    }

    /// conv(x) of three maps; what they give without convolutions.
    pub(super) fn plain_all(
        convolutions: Option<&[Self; 3]>,
        outputs: [Tensor; 3],
        before: &mut Before<'_>,
    ) -> Result<[Tensor; 3]> {
        let Some(convolutions) = convolutions else { return Ok(outputs) };
        let mut convolved = |i: usize| convolutions[i].forward(&outputs[i], before);
        Ok([convolved(0)?, convolved(1)?, convolved(2)?])
    }

    /// conv(x); x itself without a convolution.
    pub(super) fn plain(
        convolution: Option<&Self>,
        x: &Tensor,
        before: &mut Before<'_>,
    ) -> Result<Tensor> {
        convolution.map_or_else(|| Ok(x.clone()), |convolution| convolution.forward(x, before))
    }
}

/// Refuses convolutions in a layer that is not causal.
pub(super) fn check(spec: &AttentionSpec<'_>) -> BuildResult<()> {
    let size = spec.conv_size;
    if size == 0 || spec.reads == Reads::Past {
        return Ok(());
    }
    let rule = format!(
        "= {size} needs a causal layer (`model.causal` = true), because a convolution reads the tokens before a position"
    );
    Err(spec.invalid("conv_size", &rule))
}

/// The cost of the convolutions of `width` channels in all, on `len` positions.
pub(super) fn cost(spec: &AttentionSpec<'_>, width: usize, len: usize) -> AttentionCost {
    let size = spec.conv_size as f64;
    if spec.conv_size == 0 {
        return AttentionCost::default();
    }
    let (width, numbers) = (width as f64, width as f64 * len as f64);
    AttentionCost {
        parameters: width * size,
        // The products of the filters, and SiLU.
        flops: (2. * size + 4.) * numbers,
        // The results of the convolutions, and of SiLU.
        activations: 2. * numbers,
    }
}
