//! Which code computes an operation: fused CPU loops, kernels or the reference implementation.

use candle_core::{DType, Result, Tensor};

use crate::backend::cuda;
use crate::backend::reference_ops;

/// A function of the operands alone, so that equal calls take equal paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Fused CPU loops in f32.
    CpuF32,
    /// Fused CPU loops in f64.
    #[cfg(feature = "f64")]
    CpuF64,
    /// Kernels on the device.
    Cuda,
    /// Plain tensor operations: other devices, other or mixed dtypes (f64 without the feature `f64`), tensors without
    /// elements, and
    /// everything inside [`with_reference_ops`](reference_ops::with_reference_ops).
    Reference,
}

impl Backend {
    /// The backend that supports all of `operands`.
    pub(crate) fn from_operands(operands: &[&Tensor]) -> Self {
        let all = |dtype| {
            operands.iter().all(|t| t.device().is_cpu() && t.dtype() == dtype && t.elem_count() > 0)
        };
        match () {
            () if reference_ops::are_forced() => Self::Reference,
            () if cuda::takes(operands) => Self::Cuda,
            () if all(DType::F32) => Self::CpuF32,
            #[cfg(feature = "f64")]
            () if all(DType::F64) => Self::CpuF64,
            () => Self::Reference,
        }
    }
}

/// Runs the code for the backend of some operands. The CPU code is generic in the type of the elements:
/// `T` is f32, or f64 with the feature `f64`, which only tests have.
///
/// ```text
/// dispatch!(match [x, weight] {
///     Cpu(T) => fused::<T>(x, weight),
///     Cuda => cuda::norm(x, weight),
///     Reference => reference::norm(x, weight),
/// })
/// ```
///
/// The arms after the first are arms of a `match` on [`Backend`]: they may have guards, and share code.
macro_rules! dispatch {
    (match $operands:tt { Cpu($T:ident) => $cpu:block $($others:tt)* }) => {
        dispatch!(match $operands { Cpu($T) => ($cpu), $($others)* })
    };
    (match $operands:tt { Cpu($T:ident) => $cpu:expr, $($others:tt)* }) => {{
        use $crate::backend::choice::Backend::{self, Cuda, Reference};
        match Backend::from_operands(&$operands) {
            Backend::CpuF32 => {
                type $T = f32;
                $cpu
            }
            #[cfg(feature = "f64")]
            Backend::CpuF64 => {
                type $T = f64;
                $cpu
            }
            $($others)*
        }
    }};
}
pub(crate) use dispatch;

/// `f(x)` with half precision computed in f32 and rounded once, at the end.
pub(crate) fn widened(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    widened_all([x], |[x]| f(x))
}

/// `f` of all operands in the dtype of the first. Half precision is computed in f32, and the result
/// rounded once.
pub(crate) fn widened_all<const N: usize>(
    operands: [&Tensor; N],
    f: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
) -> Result<Tensor> {
    let dtype = operands[0].dtype();
    let operands = operands.iter().map(|x| x.to_dtype(wide(dtype))).collect::<Result<Vec<_>>>()?;
    f(std::array::from_fn(|i| &operands[i]))?.to_dtype(dtype)
}

/// `x` in f32 if it is of half precision.
pub(crate) fn at_least_f32(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(wide(x.dtype()))
}

fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        _ => dtype,
    }
}
