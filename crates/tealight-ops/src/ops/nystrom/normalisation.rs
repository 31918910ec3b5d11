//! The start of the iteration for the inverse.

use candle_core::{D, Result, Tensor};

/// The divisor of Z₀.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalisation {
    /// The largest sum of a column of the matrix itself (the paper).
    // Not over the batch: an example must not depend on its neighbours.
    #[default]
    EachMatrix,
    /// The largest sum of a column of any matrix in the tensor (the authors' code).
    WholeTensor,
}

/// Z₀, and the values that its gradient needs.
pub(super) struct Start {
    pub(super) normalisation: Normalisation,
    /// Aᵀ / s
    pub(super) z: Tensor,
    /// s, `(.., 1, 1)`
    pub(super) scale: Tensor,
    /// The derivative of s with respect to the columns' sums: 1 at the largest, shared by equal ones: `(.., 1, m)`
    pub(super) shares: Tensor,
}

impl Normalisation {
    /// The start for `a (.., m, m)`, in tensor operations.
    pub(super) fn in_operations(self, a: &Tensor) -> Result<Start> {
        let columns = a.sum_keepdim(D::Minus2)?; // (.., 1, m)
        let shares = self.share_of_maximum(a)?;
        let scale = self.total(&columns.mul(&shares)?)?;
        // If everything is masked, A is zeros, and its inverse should be, too.
        let is_zero = scale.eq(0.)?.to_dtype(a.dtype())?;
        let scale = (scale + is_zero)?;
        Ok(Start { normalisation: self, z: a.t()?.broadcast_div(&scale)?, scale, shares })
    }

    /// 1 at the column of the largest sum; equal sums share it: `a (.., m, m)` → `(.., 1, m)`
    fn share_of_maximum(self, a: &Tensor) -> Result<Tensor> {
        let columns = a.detach().sum_keepdim(D::Minus2)?; // (.., 1, m)
        let largest = columns.max_keepdim(D::Minus1)?; // (.., 1, 1)
        let largest = match self {
            Self::EachMatrix => largest,
            Self::WholeTensor => largest.flatten_all()?.max(0)?.broadcast_as(largest.shape())?,
        };
        let is_largest = columns.broadcast_eq(&largest)?.to_dtype(a.dtype())?;
        is_largest.broadcast_div(&self.total(&is_largest)?)
    }

    /// The sum over each matrix, or over all of them: `x (.., _, _)` → `(.., 1, 1)`
    pub(super) fn total(self, x: &Tensor) -> Result<Tensor> {
        let each = x.sum_keepdim(D::Minus1)?.sum_keepdim(D::Minus2)?;
        match self {
            Self::EachMatrix => Ok(each),
            Self::WholeTensor => each.sum_all()?.broadcast_as(each.shape()),
        }
    }
}
