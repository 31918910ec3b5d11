//! Linear attention (Katharopoulos et al. 2020, <https://arxiv.org/abs/2006.16236>), stable for features
//! of any size.
//!
//! ```text
//! outᵢ = φ(qᵢ)ᵀ Sᵢ / φ(qᵢ)ᵀ zᵢ                                       eq. (5); causal: eq. (9, 12)
//! Sᵢ = Σⱼ φ(kⱼ) vⱼᵀ,   zᵢ = Σⱼ φ(kⱼ)         over all j, or over j ≤ i        eq. (10, 11)
//! ```
//!
//! The operands are *logarithms* of features, ln φ. Features that are exponentials (Performer's,
//! elu(x) + 1 below zero) overflow and underflow; their logarithms do not. Each feature r has a running
//! maximum of its logarithms, mᵢᵣ, and the state is relative to it:
//!
//! ```text
//! S̃ᵢᵣ = e^(mᵢ₋₁ᵣ − mᵢᵣ) S̃ᵢ₋₁ᵣ + e^(ln φ(kᵢ)ᵣ − mᵢᵣ) vᵢ          z̃ likewise, with 1 for vᵢ
//! aᵢᵣ = e^(ln φ(qᵢ)ᵣ + mᵢᵣ − cᵢ),   cᵢ = maxᵣ (ln φ(qᵢ)ᵣ + mᵢᵣ),   outᵢ = aᵢᵀ S̃ᵢ / aᵢᵀ z̃ᵢ
//! ```
//!
//! No exponent is positive and, since z̃ᵢᵣ ≥ 1 and one of aᵢ is 1, the denominator is at least 1. The
//! maximum is a running one, so later keys do not change a result, not even by rounding.
//! The backward scans once forward for the queries and once in reverse for keys and values. There
//! the state is Σ_{i≥j} φ(qᵢ) gᵢᵀ / (φ(qᵢ)ᵀ zᵢ), held relative to a running maximum too.
//!
//! Cost: O(len·n_features·width) time; beyond operands and results O(n_features·width + len) memory
//! per head, forward and backward. The definition, which other devices run, costs the same if a
//! query reads everything; under causality it takes O(len²·n_features) time and memory.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened_all};
use crate::ops::heads::Sizes;
use crate::ops::padding_mask;
use crate::ops::reach::Reach;
use cpu::Scan;

pub(crate) use cpu::lowest;

/// `log_query (batch, n_heads, q_len, n_features)`, `log_key (batch, n_heads, kv_len, n_features)`
/// and `value (batch, n_heads, kv_len, width)` → `(batch, n_heads, q_len, width)`: averages of the
/// values.
///
/// `key_padding_mask (batch, kv_len)` of dtype u8 holds 1 where a key is not to be read. A query
/// that may read nothing gets zeros and has no gradient. A feature may be zero, its logarithm −∞.
///
/// # Errors
/// If the shapes do not match; under [`Reach::Past`], if there are not as many queries as keys.
pub fn linear_attention(
    log_query: &Tensor,
    log_key: &Tensor,
    value: &Tensor,
    reach: Reach,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let operands = [log_query, log_key, value];
    let fits = |sizes: &Sizes| reach == Reach::Everything || sizes.q_len == sizes.kv_len;
    let Some(sizes) = Sizes::from_operands(operands)?.filter(fits) else {
        let [query, key, value] = operands.map(Tensor::shape);
        bail!(
            "linear attention ({reach:?}) of query {query:?}, key {key:?}, value {value:?}: \
             expected (batch, n_heads, q_len, n_features), (batch, n_heads, kv_len, n_features), \
             (batch, n_heads, kv_len, width), with q_len = kv_len if it reads the past"
        )
    };
    padding_mask::check(key_padding_mask, sizes.batch, sizes.kv_len)?;
    let shape = (sizes.batch, sizes.n_heads, sizes.q_len, sizes.width);
    if operands.iter().any(|operand| operand.elem_count() == 0) {
        return Tensor::zeros(shape, value.dtype(), value.device());
    }
    dispatch!(match operands {
        Cpu(T) => {
            let scan = Scan { sizes, reach, padding: padding_mask::flags(key_padding_mask)? };
            let saved = Saved::InputsAndOutput;
            fused("linear-attention", operands, shape, saved, |inputs: [&[T]; 3]| {
                (scan.forward(inputs), move |inputs, y, g| scan.backward(inputs, y, g))
            })
        }
        Cuda if cuda::takes(&sizes, value) => {
            cuda::linear_attention(sizes, reach, operands, key_padding_mask)
        }
        Cuda | Reference => {
            widened_all([value, log_query, log_key], |[value, log_query, log_key]| {
                reference::linear_attention(log_query, log_key, value, reach, key_padding_mask)
            })
        }
    })
}
