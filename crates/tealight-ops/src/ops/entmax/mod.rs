//! Sparsemax and 1.5-entmax over the last dimension: softmax with exact zeros.
//!
//! ```text
//! α-entmax(z) = argmax over p ∈ Δ of pᵀz + Hα(p),   Hα Tsallis' entropy
//!             = [(α − 1) z − τ]₊^(1/(α − 1)),  τ such that the sum is 1
//!
//! sparsemax(z) = [z − τ]₊                α = 2
//! entmax15(z)  = [z/2 − τ]₊²             α = 1.5
//!
//! dz = s ⊙ (g − Σⱼ sⱼ gⱼ / Σⱼ sⱼ),   sᵢ = pᵢ^(2 − α) where pᵢ > 0, else 0
//! ```
//!
//! Sparsemax is the Euclidean projection onto the simplex (Martins and Astudillo 2016,
//! <https://arxiv.org/abs/1602.02068>, Algorithm 1 and eq. (14)); 1.5-entmax lies half way between it and softmax
//! (Peters, Niculae and Martins 2019, <https://arxiv.org/abs/1905.05702>). Both are continuous. Where an element enters
//! the support, sparsemax has a kink; its derivative there is the one for the smaller support. The CPU loops remove,
//! pass by pass, elements that cannot be in the support, until the rest is the support or is sorted (Martins' Algorithm
//! 1, Peters' Algorithm 2). The definition finds τ by bisection (Peters' Algorithm 1), which runs on every device.
//!
//! An element of −∞ gets weight 0; a row of −∞ alone gives zeros and has a gradient of zero. τ is computed
//! for z − max z, so that large scores lose no precision.
//!
//! Cost: a few passes over a row; at most O(width log width).

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor};

use crate::backend::choice::{dispatch, widened};
use crate::ops::softmax::over_rows;

/// `x (.., width)` → `(.., width)`: the point of the simplex that is nearest to each row.
///
/// # Errors
/// If `x` is a scalar.
pub fn sparsemax(x: &Tensor) -> Result<Tensor> {
    dispatch!(match [x] {
        Cpu(T) => over_rows("sparsemax", x, cpu::sparsemax::<T>, cpu::sparsemax_backward),
        Cuda | Reference => widened(x, reference::sparsemax),
    })
}

/// `x (.., width)` → `(.., width)`: entmax of α = 1.5, with fewer zeros than [`sparsemax`].
///
/// # Errors
/// If `x` is a scalar.
pub fn entmax15(x: &Tensor) -> Result<Tensor> {
    dispatch!(match [x] {
        Cpu(T) => over_rows("entmax15", x, cpu::entmax15::<T>, cpu::entmax15_backward),
        Cuda | Reference => widened(x, reference::entmax15),
    })
}
