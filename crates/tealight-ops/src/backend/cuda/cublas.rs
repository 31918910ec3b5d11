//! Matrix products of cuBLAS.

#![expect(unsafe_code, reason = "cuBLAS takes addresses")]

use std::ffi::c_void;

use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::{CudaDevice, DType, Error, Result, bail};

use super::buffer::Buffer;
use super::factor::{Addend, Factor, Sizes};
use super::{address, int, long};
use crate::backend::product_precision::{ProductPrecision, product_precision};

/// The type of the factors and the result, and the type of the sums.
fn types(dtype: DType) -> Result<(sys::cudaDataType_t, sys::cublasComputeType_t)> {
    use sys::cublasComputeType_t as Sums;
    use sys::cudaDataType_t as Number;

    Ok(match dtype {
        DType::F32 if product_precision() == ProductPrecision::Tf32 => {
            (Number::CUDA_R_32F, Sums::CUBLAS_COMPUTE_32F_FAST_TF32)
        }
        DType::F32 => (Number::CUDA_R_32F, Sums::CUBLAS_COMPUTE_32F),
        DType::F64 => (Number::CUDA_R_64F, Sums::CUBLAS_COMPUTE_64F),
        DType::BF16 => (Number::CUDA_R_16BF, Sums::CUBLAS_COMPUTE_32F),
        dtype => bail!("there are no products of {dtype:?}"),
    })
}

/// C = A B, or C + A B. Matrices here are row-major. cuBLAS reads them column-major, as transposed, and computes
/// Cᵀ = Bᵀ Aᵀ.
pub(super) fn product(
    device: &CudaDevice,
    a: Factor<'_>,
    b: Factor<'_>,
    c: &mut Buffer,
    Sizes { batch, m, n, k }: Sizes,
    addend: Addend,
) -> Result<()> {
    let (number, sums) = types(a.x.dtype())?;
    let is_wide = a.x.dtype() == DType::F64;
    let ([one_f32, zero_f32], [one_f64, zero_f64]) = ([1_f32, 0.], [1_f64, 0.]);
    let [one, zero]: [*const c_void; 2] = if is_wide {
        [(&raw const one_f64).cast(), (&raw const zero_f64).cast()]
    } else {
        [(&raw const one_f32).cast(), (&raw const zero_f32).cast()]
    };
    let beta = match addend {
        Addend::Zero => zero,
        Addend::Result => one,
    };
    let transposition = |factor: Factor<'_>| {
        use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};

        if factor.is_transposed { CUBLAS_OP_T } else { CUBLAS_OP_N }
    };
    let [m_, n_, k_, batch_] = [int(m)?, int(n)?, int(k)?, int(batch)?];
    let [mn, mk, kn] = [long(m * n)?, long(m * k)?, long(k * n)?];
    let (of_a, _lock_a) = address::of_tensor(a.x)?;
    let (of_b, _lock_b) = address::of_tensor(b.x)?;
    // SAFETY: the three addresses are on the device and their memory is as large as the sizes say. The locks keep
    // the factors in place until the call returns; memory freed later is freed in the order of the stream.
    let status = unsafe {
        result::gemm_strided_batched_ex(
            *device.cublas_handle().handle(),
            transposition(b),
            transposition(a),
            n_,
            m_,
            k_,
            one,
            of_b as *const c_void,
            number,
            if b.is_transposed { k_ } else { n_ },
            kn,
            of_a as *const c_void,
            number,
            if a.is_transposed { m_ } else { k_ },
            mk,
            beta,
            c.address_of(0)? as *mut c_void,
            number,
            n_,
            mn,
            batch_,
            sums,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )
    };
    status.map_err(|error| Error::Msg(format!("a product of {a:?} and {b:?}: {error}")))
}
