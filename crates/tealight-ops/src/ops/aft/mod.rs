//! The weighted means of "An Attention Free Transformer" (Zhai et al. 2021,
//! <https://arxiv.org/abs/2105.14103>).
//!
//! ```text
//! Y_t = Σ_t' exp(K_t' + w_t,t') ⊙ V_t' / Σ_t' exp(K_t' + w_t,t')            eq. (2), without σ(Q_t) ⊙
//!
//! AFT-full     w learnt for every pair of positions
//! AFT-local    w_t,t' = 0 where |t − t'| ≥ s
//! AFT-simple   w = 0
//! AFT-conv     w depends on t' − t alone, one filter per head; 0 outside it  eq. (5)
//! ```
//!
//! The caller applies the gate σ(Q_t). Each channel is a separate softmax over the positions, and subtracts a maximum
//! per row and channel: with one maximum per channel, an early row of a causal model that sees only small keys would
//! be 0/0. Equation (5) adds exp(w) − 1 inside the window to a sum over everything, which cancels if the window holds
//! the dominant key; here the sums outside and inside of the window are added instead.
//!
//! Cost: AFT-full is two products with a (q_len × kv_len) matrix, which batch and channels share, and O(q_len · kv_len)
//! memory for w alone. The other kinds take O(len · window · d_model) time and O(len · d_model) memory; the backward of
//! AFT-local takes O(len · window) more memory for each example and 128 channels, for the gradient of w.

mod band;
mod cuda;
mod full;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::backend::choice::{dispatch, widened_all};
use crate::ops::padding_mask;
use crate::ops::reach::Reach;
use crate::ops::softmax::softmax;
use band::{Band, Sizes, TapLayout};

/// The weights w of a variant.
#[derive(Clone, Copy, Debug)]
enum Weights<'a> {
    /// w = 0
    None,
    /// `(q_len, kv_len)`
    OfPairs(&'a Tensor),
    /// `(len, 2 window − 1)`
    OfPositions(&'a Tensor),
    /// `(n_heads, kernel_size)`
    OfHeads(&'a Tensor, Alignment),
}

/// Which key tap j of a filter of `kernel_size` belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// t' = t + j − ⌊kernel_size / 2⌋
    Centred,
    /// t' = t + j − (kernel_size − 1): the last tap belongs to the position itself.
    Left,
}

impl Alignment {
    /// The tap of the position itself.
    fn origin(self, kernel_size: usize) -> usize {
        match self {
            Self::Centred => kernel_size / 2,
            Self::Left => kernel_size - 1,
        }
    }
}

/// `key (batch, kv_len, d_model)`, `value` likewise, `w (q_len, kv_len)` → `(batch, q_len, d_model)`
///
/// `key_padding_mask (batch, kv_len)`, u8: `1` is ignored. A row that reads no key gives zeros and has no gradient.
///
/// # Errors
/// If shapes do not match, or `reach` is the past and `q_len` is not `kv_len`.
pub fn aft_full(
    key: &Tensor,
    value: &Tensor,
    w: &Tensor,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (batch, kv_len, _) = key.dims3()?;
    let (q_len, w_len) = w.dims2()?;
    if key.dims() != value.dims() || w_len != kv_len {
        bail!(
            "aft: key {:?}, value {:?}, w {:?}: expected key and value (batch, kv_len, d_model), \
             w (q_len, kv_len)",
            key.shape(),
            value.shape(),
            w.shape()
        )
    }
    if reach == Reach::Past && q_len != kv_len {
        bail!("aft: {q_len} positions cannot read the past of {kv_len} others")
    }
    padding_mask::check(key_padding_mask, batch, kv_len)?;
    dispatch!(match [key, value, w] {
        Cpu(T) => full::aft::<T>([key, value, w], key_padding_mask, reach),
        Cuda => cuda::aft(key, value, Weights::OfPairs(w), key_padding_mask, reach),
        Reference => widened_all([key, value, w], |[key, value, w]| {
            reference::aft_full(key, value, w, key_padding_mask, reach)
        }),
    })
}

/// `key (batch, len, d_model)`, `value` likewise, `w (len, 2 window − 1)` → `(batch, len, d_model)`
///
/// `w[t, window − 1 + t' − t]` belongs to the pair (t, t') with |t − t'| < window. Keys farther away are read with w =
/// 0. Entries of `w` for keys outside the sequence, or in the future of a causal one, have no influence.
///
/// # Errors
/// If shapes do not match.
pub fn aft_local(
    key: &Tensor,
    value: &Tensor,
    w: &Tensor,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (batch, len, d_model) = key.dims3()?;
    let (w_len, n_taps) = w.dims2()?;
    if key.dims() != value.dims() || w_len != len || n_taps % 2 == 0 {
        bail!(
            "aft-local: key {:?}, value {:?}, w {:?}: expected key and value \
             (batch, len, d_model), w (len, 2 window − 1)",
            key.shape(),
            value.shape(),
            w.shape()
        )
    }
    let sizes = Sizes { batch, len, n_maps: d_model, width: 1 };
    let (origin, layout) = (n_taps / 2, TapLayout::OfPositions);
    let band = Band { sizes, n_taps, origin, reach, layout };
    padding_mask::check(key_padding_mask, batch, len)?;
    dispatch!(match [key, value, w] {
        Cpu(T) => band::aft::<T>([key, value, w], key_padding_mask, band),
        Cuda => cuda::aft(key, value, Weights::OfPositions(w), key_padding_mask, reach),
        Reference => widened_all([key, value, w], |[key, value, w]| {
            reference::aft_local(key, value, w, key_padding_mask, reach)
        }),
    })
}

/// `key (batch, len, n_heads)`, `value (batch, len, n_heads, head_dim)`, `w (n_heads, kernel_size)` →
/// `(batch, len, n_heads, head_dim)`
///
/// A head's channels share key and filter. Keys outside the filter are read with w = 0. Taps outside the sequence, or
/// in the future of a causal one, have no influence.
///
/// # Errors
/// If shapes do not match.
pub fn aft_conv(
    key: &Tensor,
    value: &Tensor,
    w: &Tensor,
    alignment: Alignment,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (batch, len, n_heads, head_dim) = value.dims4()?;
    let (w_heads, n_taps) = w.dims2()?;
    if key.dims() != [batch, len, n_heads] || w_heads != n_heads || n_taps == 0 {
        bail!(
            "aft-conv: key {:?}, value {:?}, w {:?}: expected key (batch, len, n_heads), value \
             (batch, len, n_heads, head_dim), w (n_heads, kernel_size) with a kernel_size above 0",
            key.shape(),
            value.shape(),
            w.shape()
        )
    }
    let sizes = Sizes { batch, len, n_maps: n_heads, width: head_dim };
    let (origin, layout) = (alignment.origin(n_taps), TapLayout::OfMaps);
    let band = Band { sizes, n_taps, origin, reach, layout };
    padding_mask::check(key_padding_mask, batch, len)?;
    dispatch!(match [key, value, w] {
        Cpu(T) => band::aft::<T>([key, value, &w.t()?], key_padding_mask, band),
        Cuda => cuda::aft(key, value, Weights::OfHeads(w, alignment), key_padding_mask, reach),
        Reference => widened_all([key, value, w], |[key, value, w]| {
            reference::aft_conv(key, value, w, alignment, key_padding_mask, reach)
        }),
    })
}

/// `key (batch, kv_len, d_model)`, `value` likewise → `(batch, kv_len, d_model)` under [`Reach::Past`],
/// `(batch, 1, d_model)` under [`Reach::Everything`], where the result is the same for all positions.
///
/// # Errors
/// If shapes do not match.
pub fn aft_simple(
    key: &Tensor,
    value: &Tensor,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (batch, len, d_model) = key.dims3()?;
    if key.dims() != value.dims() {
        bail!(
            "aft-simple: key {:?}, value {:?}: expected the same (batch, kv_len, d_model)",
            key.shape(),
            value.shape()
        )
    }
    padding_mask::check(key_padding_mask, batch, len)?;
    dispatch!(match [key, value] {
        Cpu(T) => match reach {
            Reach::Past => {
                let sizes = Sizes { batch, len, n_maps: d_model, width: 1 };
                let layout = TapLayout::OfMaps;
                let band = Band { sizes, n_taps: 1, origin: 0, reach, layout };
                let no_taps = Tensor::zeros((1, d_model), key.dtype(), key.device())?;
                band::aft::<T>([key, value, &no_taps], key_padding_mask, band)
            }
            Reach::Everything => mean_of_everything(key, value, key_padding_mask),
        },
        Cuda => cuda::aft(key, value, Weights::None, key_padding_mask, reach),
        Reference => widened_all([key, value], |[key, value]| {
            reference::aft_simple(key, value, key_padding_mask, reach)
        }),
    })
}

/// Σ exp(K) ⊙ V / Σ exp(K), per channel: `(batch, 1, d_model)`
fn mean_of_everything(key: &Tensor, value: &Tensor, padding: Option<&Tensor>) -> Result<Tensor> {
    let scores = match padding {
        Some(padding) => {
            key.broadcast_add(&padding_mask::additive(padding, key.dtype())?.unsqueeze(2)?)?
        }
        None => key.clone(),
    };
    let weights = softmax(&scores.transpose(1, 2)?)?; // (batch, d_model, kv_len)
    (weights * value.transpose(1, 2)?)?.sum_keepdim(2)?.transpose(1, 2)
}
