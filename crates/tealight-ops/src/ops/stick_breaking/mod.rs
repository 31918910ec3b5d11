//! Weights by stick breaking (Tan et al. 2025, <https://arxiv.org/abs/2410.17980>): each key, the nearest first, breaks its
//! share off what is left of a stick.
//!
//! ```text
//! z_j = σ(x_j),   y_j = z_j Π_{j<k<i} (1 − z_k) = e^(ln z_j + Σ_{j<k<i} ln(1 − z_k))         over j < i
//! y_i = Π_{k<i} (1 − z_k), what is left, or 0
//!
//! dx_j = y_j g_j (1 − z_j) − z_j (Σ_{k<j} y_k g_k + y_i g_i)
//! ```
//!
//! i is the position of the query itself. In logarithms, because the products underflow. A key of −∞ breaks off nothing.
//!
//! Cost: three exponentials and a logarithm for each score, in one pass over a row.

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened};

/// Who gets what is left when all keys have taken their share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nobody.
    Lost,
    /// The query's own position.
    Own,
}

/// Scores `(.., q_len, kv_len)` → weights of the same shape, q_len ≤ kv_len. The last query stands at the last key, and a
/// query gives weight to keys before its own position.
///
/// # Errors
/// If there are more queries than keys.
pub fn stick_breaking(x: &Tensor, rest: Rest) -> Result<Tensor> {
    let &[.., q_len, kv_len] = x.dims() else { bail!("scores of shape {:?}", x.shape()) };
    if q_len > kv_len {
        bail!("{q_len} queries of {kv_len} positions")
    }
    dispatch!(match [x] {
        Cpu(T) => {
            let matrix = cpu::Matrix { q_len, kv_len, rest };
            fused("stick-breaking", [x], x.shape(), Saved::InputsAndOutput, |[x]: [&[T]; 1]| {
                (matrix.forward(x), move |[x], y, g| [matrix.backward(x, y, g)])
            })
        }
        Cuda | Reference => widened(x, |x| reference::stick_breaking(x, rest)),
    })
}
