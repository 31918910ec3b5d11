//! Retention: linear attention whose state decays (Sun et al. 2023,
//! <https://arxiv.org/abs/2307.08621>).
//!
//! ```text
//! Sᵢ = γ Sᵢ₋₁ + kᵢ vᵢᵀ,   outᵢ = qᵢᵀ Sᵢ                                  eq. (6), recurrent
//! Retention(X) = (Q Kᵀ ⊙ D) V,   Dᵢⱼ = γ^(i−j) for j ≤ i, else 0         eq. (5), parallel
//!
//! Rⱼ = γ Rⱼ₊₁ + qⱼ gⱼᵀ,   dqᵢ = Sᵢ gᵢ,   dkⱼ = Rⱼ vⱼ,   dvⱼ = Rⱼᵀ kⱼ
//! ```
//!
//! Each head has its γ in (0, 1]; with γ = 1 this is causal linear attention without the
//! denominator. A padded key adds nothing, but the state still decays at its position.
//!
//! Cost: O(len·head_dim²) time, O(head_dim²) memory per head beyond operands and results, forward and
//! backward: two scans. The definition, which other devices run, is the parallel form, O(len²).

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, WithDType, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened_all};
use crate::ops::heads::Sizes;
use crate::ops::padding_mask;
use cpu::Scan;

/// `query` and `key (batch, n_heads, len, n_features)`, `value (batch, n_heads, len, width)`,
/// `decay (n_heads)` → `(batch, n_heads, len, width)`: decaying sums of the values.
///
/// `key_padding_mask (batch, len)` of dtype u8 holds 1 where a key is not to be read. `decay` holds
/// each head's γ, a constant.
///
/// # Errors
/// If the shapes do not match, or a decay is not in (0, 1].
pub fn retention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    decay: &[f64],
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let operands = [query, key, value];
    let Some(sizes) = Sizes::from_operands(operands)?.filter(|sizes| sizes.q_len == sizes.kv_len)
    else {
        let [query, key, value] = operands.map(Tensor::shape);
        bail!(
            "retention of query {query:?}, key {key:?}, value {value:?}: expected query and key \
             (batch, n_heads, len, n_features), value (batch, n_heads, len, width)"
        )
    };
    if decay.len() != sizes.n_heads || decay.iter().any(|&decay| !(decay > 0. && decay <= 1.)) {
        bail!(
            "retention of {} heads with the decays {decay:?}: expected one in (0, 1] for each head",
            sizes.n_heads
        )
    }
    padding_mask::check(key_padding_mask, sizes.batch, sizes.kv_len)?;
    dispatch!(match operands {
        Cpu(T) => {
            let padding = padding_mask::flags(key_padding_mask)?;
            let decay = decay.iter().map(|&decay| T::from_f64(decay)).collect();
            let scan = Scan::<T> { sizes, decay, padding };
            fused("retention", operands, value.shape(), Saved::Inputs, |inputs| {
                (scan.forward(inputs), move |inputs, _, g| scan.backward(inputs, g))
            })
        }
        Cuda | Reference => widened_all([value, query, key], |[value, query, key]| {
            reference::retention(query, key, value, decay, key_padding_mask)
        }),
    })
}
