//! What a classifier reads of the hidden states.
//!
//! ```text
//! cls         C = x_1                                           Devlin et al. 2019; Dosovitskiy et al. 2021
//! mean        C = mean of x_t
//! attention   C = Σ_t softmax(w·x)_t x_t                        Hassani et al. 2021, §3.2, eq. (4) to (6)
//! ```
//!
//! BERT: <https://arxiv.org/abs/1810.04805>, ViT: <https://arxiv.org/abs/2010.11929>, CCT:
//! <https://arxiv.org/abs/2104.05704>. Its code adds a bias to w·x, which changes no softmax and is left out here.
//! Padding is not read.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::matmul::matmul;
use tealight_ops::mean::mean;
use tealight_ops::softmax::softmax;

use super::forecaster::mean_where;
use crate::choice::names::names;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::mask::Mask;
use crate::params::init::Initializer;

names! {
    /// Which hidden state is classified.
    pub enum ReadOut {
        /// The first position: of a text the token that the tokenizer's template inserts, BERT's `[CLS]`; of a picture
        /// a learnt vector.
        "cls" => Cls,
        /// The mean over all positions.
        "mean" => Mean,
        /// A weighted mean over all positions, whose weights are the softmax of a learnt linear map.
        "attention" => Attention,
    }
}

/// A read-out with its parameters.
#[derive(Debug)]
pub(super) enum Reader {
    Cls,
    Mean,
    /// w of the scores.
    Attention(Linear),
}

impl Reader {
    /// Builds `pooling.weight (1, d_model)` of the read-out `attention`.
    pub(super) fn build(
        read_out: ReadOut,
        d_model: usize,
        init: &Initializer,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        Ok(match read_out {
            ReadOut::Cls => Self::Cls,
            ReadOut::Mean => Self::Mean,
            ReadOut::Attention => {
                let (weight, at) = (init.weight(d_model), vb.pp("pooling"));
                Self::Attention(Linear::build([d_model, 1], Bias::Without, weight, &at)?)
            }
        })
    }

    /// `(batch, seq_len, d_model)` → `(batch, d_model)`
    pub(super) fn read(&self, hidden: &Tensor, mask: &Mask) -> Result<Tensor> {
        match (self, mask.key_padding_mask()) {
            (Self::Cls, _) => hidden.narrow(1, 0, 1)?.squeeze(1),
            (Self::Mean, None) => mean(hidden),
            (Self::Mean, Some(padding)) => mean_where(hidden, &padding.eq(0_u8)?),
            (Self::Attention(scores), _) => {
                let (batch, _, d_model) = hidden.dims3()?;
                let weights = weights(scores, hidden, mask)?; // (batch, 1, seq_len)
                matmul(&weights, hidden)?.reshape((batch, d_model))
            }
        }
    }

    /// The share of each position in what is read, without padding: `(batch, seq_len, d_model)` → `(batch, seq_len)`
    pub(super) fn shares(&self, hidden: &Tensor) -> Result<Tensor> {
        let (batch, seq_len, _) = hidden.dims3()?;
        let (dtype, device) = (hidden.dtype(), hidden.device());
        let equal = |n: usize| Tensor::full(1. / n as f64, (batch, n), device)?.to_dtype(dtype);
        match self {
            Self::Cls => equal(1)?.pad_with_zeros(1, 0, seq_len - 1),
            Self::Mean => equal(seq_len),
            Self::Attention(scores) => weights(scores, hidden, &Mask::none())?.squeeze(1),
        }
    }
}

/// softmax(w·x): `(batch, seq_len, d_model)` → `(batch, 1, seq_len)`
fn weights(scores: &Linear, hidden: &Tensor, mask: &Mask) -> Result<Tensor> {
    let (batch, seq_len, _) = hidden.dims3()?;
    let scores = scores.forward(hidden)?.reshape((batch, 1, 1, seq_len))?;
    let scores = match mask.key_padding_mask() {
        Some(padding) => Mask::none().with_key_padding_mask(padding)?.apply(&scores)?,
        None => scores,
    };
    softmax(&scores.reshape((batch, 1, seq_len))?)
}
