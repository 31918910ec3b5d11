//! Which code computes: a fused loop, or the definition.

use candle_core::{DType, Result, Tensor};

use crate::backend::cuda;
use crate::backend::reference_ops;

/// Chosen from the operands, so that equal calls take equal paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The fused loop in f32.
    F32,
    /// The fused loop in f64.
    F64,
    /// Kernels on the device.
    Cuda,
    /// The definition: another device, another dtype, nothing to compute, or asked for.
    Reference,
}

impl Backend {
    /// The backend that takes all of `operands`; inside [`with_reference_ops`](reference_ops::with_reference_ops),
    /// the definition.
    pub(crate) fn of(operands: &[&Tensor]) -> Self {
        let all = |dtype| {
            operands.iter().all(|t| t.device().is_cpu() && t.dtype() == dtype && t.elem_count() > 0)
        };
        match (all(DType::F32), all(DType::F64)) {
            _ if reference_ops::are_forced() => Self::Reference,
            _ if cuda::takes(operands) => Self::Cuda,
            (true, _) => Self::F32,
            (_, true) => Self::F64,
            _ => Self::Reference,
        }
    }
}

/// `f(x)` with half precision computed in f32 and rounded once, at the end.
pub(crate) fn widened(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => f(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype()),
        _ => f(x),
    }
}
