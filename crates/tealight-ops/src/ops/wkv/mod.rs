//! WKV, the attention of RWKV-4: an average over the past whose weights decay in each channel (Peng
//! et al. 2023, <https://arxiv.org/abs/2305.13048>).
//!
//! ```text
//!          Σ_{j<i} e^(−(i−1−j) w + kⱼ) vⱼ + e^(u + kᵢ) vᵢ
//! wkvᵢ  =  ──────────────────────────────────────────────         eq. (16), in each channel
//!          Σ_{j<i} e^(−(i−1−j) w + kⱼ)    + e^(u + kᵢ)
//! ```
//!
//! The sums over j < i are a state (α, β) that each position multiplies by e^(−w) and adds to (the
//! appendix on the block as an RNN cell). It is relative to the largest exponent so far, which
//! decays with the state, so that no exponential is above 1, whatever k, w and u. The paper has w ≥ 0;
//! here w may be any number.
//!
//! The backward scans once forward, for the gradients of w and u, and once in reverse, where the state is Σ_{i>j}
//! e^(−(i−1−j) w) gᵢ / denominatorᵢ, for the gradients of k and v:
//!
//! ```text
//! pᵢⱼ = the weight with which i reads j
//! dkⱼ = Σᵢ pᵢⱼ gᵢ (vⱼ − wkvᵢ),   dvⱼ = Σᵢ pᵢⱼ gᵢ
//! du  = Σᵢ pᵢᵢ gᵢ (vᵢ − wkvᵢ),   dw  = −Σᵢ Σ_{j<i} (i−1−j) pᵢⱼ gᵢ (vⱼ − wkvᵢ)
//! ```
//!
//! A padded key adds nothing, but the state still decays at its position. In a packed sequence the sums are those of the
//! position's own document.
//!
//! Cost: O(len·d_model) time, O(len·d_model) memory, forward and backward. The definition, which
//! other devices run, takes O(len²·d_model) of both.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened_all};
use crate::ops::padding_mask;
use crate::ops::tokens::Tokens;
use cpu::Scan;

/// `key` and `value (batch, len, d_model)`, `decay` and `bonus (d_model)` → `(batch, len, d_model)`
///
/// `decay` is w of the formula itself, e^(−w) its factor per position; `bonus` is u.
/// `key_padding_mask (batch, len)` of dtype u8 holds 1 where a key is not to be read. `segments (batch, len)` of dtype
/// u32 numbers the documents of a packed sequence: the sums begin anew where the number changes. A position that may
/// read nothing gets zeros and has no gradient.
///
/// # Errors
/// If the shapes do not match.
pub fn wkv(
    key: &Tensor,
    value: &Tensor,
    decay: &Tensor,
    bonus: &Tensor,
    key_padding_mask: Option<&Tensor>,
    segments: Option<&Tensor>,
) -> Result<Tensor> {
    let (batch, len, d_model) = key.dims3()?;
    if value.dims() != key.dims() || [decay, bonus].iter().any(|x| x.dims() != [d_model]) {
        let (decay, bonus) = (decay.shape(), bonus.shape());
        bail!(
            "wkv of key {:?}, value {:?}, decay {decay:?}, bonus {bonus:?}: expected key and value \
             (batch, len, d_model), decay and bonus (d_model)",
            key.shape(),
            value.shape()
        )
    }
    let tokens = Tokens { key_padding_mask, segments };
    tokens.check(batch, len)?;
    let operands = [key, value, decay, bonus];
    dispatch!(match operands {
        Cpu(T) => {
            let padding = padding_mask::flags(key_padding_mask)?;
            let scan = Scan { len, padding, beginnings: tokens.beginnings(len)? };
            fused("wkv", operands, key.shape(), Saved::InputsAndOutput, |inputs: [&[T]; 4]| {
                (scan.forward(inputs), move |inputs, y, g| scan.backward(inputs, y, g))
            })
        }
        Cuda => cuda::wkv(operands, tokens),
        Reference => widened_all([value, key, decay, bonus], |[value, key, decay, bonus]| {
            reference::wkv(key, value, decay, bonus, tokens)
        }),
    })
}
