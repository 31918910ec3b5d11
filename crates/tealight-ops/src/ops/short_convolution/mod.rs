//! Causal depthwise convolution over a few tokens, one filter for each channel, before the recurrences of Mamba (Gu and
//! Dao 2023, <https://arxiv.org/abs/2312.00752>) and of the delta rule.
//!
//! ```text
//! y_t = Σᵢ wᵢ ⊙ x_{t−n+1+i}      i < n; t counts the tokens of a document, x = 0 before its first
//!
//! dx_t = Σᵢ wᵢ ⊙ g_{t+n−1−i},    dwᵢ = Σ_t g_t ⊙ x_{t−n+1+i}
//! ```
//!
//! The last place of a filter belongs to the token itself. Padding is skipped: the token before is the one before the
//! padding. A padded position gives 0, and nothing reads it.
//!
//! Cost: O(len·size·channels) time, no memory besides the results.

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened_all};
use crate::ops::tokens::Tokens;
use cpu::Convolution;

const NAME: &str = "short convolution";

/// `x (batch, len, channels)`, `weight (channels, size)` → `(batch, len, channels)`
///
/// # Errors
/// If shapes do not match, or the filters have no place.
pub fn short_convolution(x: &Tensor, weight: &Tensor, tokens: Tokens<'_>) -> Result<Tensor> {
    let (batch, len, channels) = x.dims3()?;
    let (of_weight, size) = weight.dims2()?;
    if of_weight != channels || size == 0 {
        bail!(
            "a short convolution of {:?} with a weight of {:?}: expected (batch, len, channels), \
             (channels, size) with a size above 0",
            x.shape(),
            weight.shape()
        )
    }
    tokens.check(batch, len)?;
    dispatch!(match [x, weight] {
        Cpu(T) => {
            let documents = tokens.documents(batch, len)?;
            let convolution = Convolution { documents, len, channels, size };
            fused(NAME, [x, weight], x.shape(), Saved::Inputs, |[x, weight]: [&[T]; 2]| {
                let y = convolution.forward(x, weight);
                (y, move |[x, weight], _, g| convolution.backward(x, weight, g))
            })
        }
        Cuda | Reference => widened_all([x, weight], |[x, weight]| {
            reference::short_convolution(x, weight, tokens)
        }),
    })
}

/// As [`short_convolution`], after the `past (batch, size − 1, channels)`, the inputs before the first position;
/// zeros if absent. Also returns the past of what follows: the last inputs of the last document.
///
/// # Errors
/// As [`short_convolution`].
pub fn short_convolution_after(
    past: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    tokens: Tokens<'_>,
) -> Result<[Tensor; 2]> {
    let (_channels, size) = weight.dims2()?;
    let joined = Joined::new(past, size.saturating_sub(1), x, tokens)?;
    Ok([joined.convolved(weight)?, joined.past()?])
}

/// Inputs behind those of earlier calls, for several convolutions of one size.
#[derive(Clone, Debug)]
pub struct Joined {
    /// `(batch, n_past + len, channels)`
    x: Tensor,
    n_past: usize,
    padding: Option<Tensor>,
    segments: Option<Tensor>,
}

impl Joined {
    /// `x (batch, len, channels)` behind the `past (batch, n_past, channels)`; zeros if absent.
    ///
    /// # Errors
    /// If shapes do not match.
    pub fn new(
        past: Option<&Tensor>,
        n_past: usize,
        x: &Tensor,
        tokens: Tokens<'_>,
    ) -> Result<Self> {
        let (batch, _len, channels) = x.dims3()?;
        if n_past == 0 {
            let [padding, segments] =
                [tokens.key_padding_mask, tokens.segments].map(Option::<&Tensor>::cloned);
            return Ok(Self { x: x.clone(), n_past, padding, segments });
        }
        let past = match past {
            Some(past) => past.clone(),
            None => Tensor::zeros((batch, n_past, channels), x.dtype(), x.device())?,
        };
        // The past counts as tokens of the first document.
        let padding =
            tokens.key_padding_mask.map(|mask| mask.pad_with_zeros(1, n_past, 0)).transpose()?;
        let first = |segments: &Tensor| {
            let past = segments.narrow(1, 0, 1)?.broadcast_as((batch, n_past))?;
            Tensor::cat(&[&past.contiguous()?, segments], 1)
        };
        let segments = tokens.segments.map(first).transpose()?;
        Ok(Self { x: Tensor::cat(&[&past, x], 1)?, n_past, padding, segments })
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens { key_padding_mask: self.padding.as_ref(), segments: self.segments.as_ref() }
    }

    /// The convolution of the inputs, `(batch, len, channels)`, with a `weight (channels, n_past + 1)`, or one of any size
    /// if there is no past.
    ///
    /// # Errors
    /// As [`short_convolution`].
    pub fn convolved(&self, weight: &Tensor) -> Result<Tensor> {
        let y = short_convolution(&self.x, weight, self.tokens())?;
        let (_batch, len, _channels) = y.dims3()?;
        if self.n_past == 0 {
            return Ok(y);
        }
        y.narrow(1, self.n_past, len - self.n_past)?.contiguous()
    }

    /// The past of what follows, `(batch, n_past, channels)`: the last inputs of the last document.
    ///
    /// # Errors
    /// As [`last_tokens`].
    pub fn past(&self) -> Result<Tensor> {
        last_tokens(&self.x, self.n_past, self.tokens())
    }
}

/// The last `n` tokens of the last document of `x (batch, len, channels)`, after zeros if it has fewer: `(batch, n,
/// channels)`
///
/// # Errors
/// If the masks do not match `x`.
pub fn last_tokens(x: &Tensor, n: usize, tokens: Tokens<'_>) -> Result<Tensor> {
    let (batch, len, channels) = x.dims3()?;
    tokens.check(batch, len)?;
    let of_example = |(row, documents): (usize, Vec<Vec<usize>>)| {
        let last = documents.last().map_or(&[][..], |document| &document[..]);
        let last = &last[last.len().saturating_sub(n)..];
        let rows = last.iter().map(|&t| (row * len + t) as u32).collect::<Vec<_>>();
        let rows = Tensor::new(rows, x.device())?;
        let zeros = Tensor::zeros((n - last.len(), channels), x.dtype(), x.device())?;
        let found = x.reshape(((), channels))?.index_select(&rows, 0)?;
        Tensor::cat(&[zeros, found], 0)
    };
    let all = tokens.documents(batch, len)?.into_iter().enumerate().map(of_example);
    Tensor::stack(&all.collect::<Result<Vec<_>>>()?, 0)
}
