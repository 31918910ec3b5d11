//! What a classifier reads of the hidden states, and the head that maps it to the classes.
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

use crate::choice::names::names;
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::layers::classifier_head::{Head, HeadSpec};
use crate::layers::linear::{Bias, Linear};
use crate::mask::Mask;
use crate::mode::Mode;
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

/// A read-out and the head that maps what it reads to the classes.
#[derive(Debug)]
pub(super) struct ReadOutHead {
    read_out: ReadOut,
    reader: Reader,
    head: Head,
}

impl ReadOutHead {
    /// Builds `pooling` of the read-out `attention`, and `classifier`, names that the heads of language models do not
    /// use.
    pub(super) fn build(
        config: &ModelConfig,
        n_classes: usize,
        read_out: ReadOut,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let (d_model, init) = (config.d_model, config.initializer()?);
        let reader = Reader::build(read_out, d_model, &init, vb)?;
        let head = HeadSpec {
            d_model,
            n_classes,
            bias: config.linear_bias(),
            dropout: config.dropout,
            norm: &config.norm,
            init: &init,
        };
        let classifier = config.classifier.clone().unwrap_or_default();
        let head = classifier.build(&head, &vb.pp("classifier"))?;
        Ok(Self { read_out, reader, head })
    }

    /// `(batch, seq_len, d_model)` → logits `(batch, n_classes)`
    pub(super) fn forward(&self, hidden: &Tensor, mask: &Mask, mode: Mode) -> Result<Tensor> {
        self.head.forward(&self.reader.read(hidden, mask)?, mode)
    }

    /// The share of each position in what is read, without padding: `(batch, seq_len, d_model)` → `(batch, seq_len)`
    pub(super) fn shares(&self, hidden: &Tensor) -> Result<Tensor> {
        self.reader.shares(hidden)
    }

    pub(super) fn read_out(&self) -> ReadOut {
        self.read_out
    }
}

/// Refuses the read-out `cls` of a causal model. `first` is what the model reads then: a token, or a position.
pub(super) fn refuse_causal_cls(
    config: &ModelConfig,
    is_cls: bool,
    first: &str,
) -> BuildResult<()> {
    if !is_cls || !config.causal {
        return Ok(());
    }
    let message = format!(
        "`task.read_out` = \"cls\" needs `model.causal` = false: \
         the first {first} of a causal model attends only to itself"
    );
    Err(BuildError::config(["task.read_out", "model.causal"], message))
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
    fn build(
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
        match self {
            Self::Cls => hidden.narrow(1, 0, 1)?.squeeze(1),
            Self::Mean => mean_without_padding(hidden, mask),
            Self::Attention(scores) => {
                let (batch, _, d_model) = hidden.dims3()?;
                let weights = weights(scores, hidden, mask)?; // (batch, 1, seq_len)
                matmul(&weights, hidden)?.reshape((batch, d_model))
            }
        }
    }

    fn shares(&self, hidden: &Tensor) -> Result<Tensor> {
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

/// The mean of the positions that are no padding: `(batch, seq_len, d_model)` → `(batch, d_model)`
///
/// # Errors
/// If the shapes do not fit.
pub fn mean_without_padding(hidden: &Tensor, mask: &Mask) -> Result<Tensor> {
    match mask.key_padding_mask() {
        None => mean(hidden),
        Some(padding) => mean_where(hidden, &padding.eq(0_u8)?),
    }
}

/// The mean of the positions where `chosen (batch, seq_len)` is one: `(batch, d_model)`.
pub(super) fn mean_where(hidden: &Tensor, chosen: &Tensor) -> Result<Tensor> {
    let chosen = chosen.to_dtype(hidden.dtype())?;
    let count = chosen.sum_keepdim(1)?.maximum(1.)?; // (batch, 1)
    hidden.broadcast_mul(&chosen.unsqueeze(2)?)?.sum(1)?.broadcast_div(&count)
}
