//! Differentiable tensor operations for training with Candle, each with a tested gradient.
//!
//! **The contract.** Each operation has a reference implementation, `reference.rs`, in plain differentiable tensor
//! operations. On every device and in every dtype the public function has the same value and the same gradient,
//! up to rounding. `tests/agreement.rs`, `tests/attention.rs`, `tests/scans.rs` and `tests/pictures.rs` check this, and
//! `tests/finite_differences.rs` checks gradients numerically. On the CPU, f32 and f64 run as fused loops, forward and
//! backward. On CUDA, many operations run as kernels, in f32, f64 and bf16. The reference implementation runs
//! everywhere else: for half precision without a kernel (computed in f32, rounded once), for operands of mixed
//! dtypes, and for tensors without elements. The exception is [`int8_linear`](mod@int8_linear), which
//! rounds its operands: it has no gradient, and is for f32 on the CPU alone.
//!
//! **Matrix products.** [`linear`], [`mlp`], [`linear_cross_entropy`], [`matmul`](mod@matmul),
//! [`convolution`](mod@convolution), [`nystrom::pseudo_inverse()`] and [`muon`] use the products of this crate,
//! [`aft::aft_full`] uses Candle's.
//! [`linear`] and [`matmul`](mod@matmul) multiply in half precision if their operands are in it. Operands in f32 are
//! rounded to bf16 or TF32 within [`with_product_precision`].
//!
//! **Reproducibility.** Results are bit-identical whatever the number of threads. Between instruction sets, matrix
//! products and [`attention`](mod@attention) differ in the last bits.
//!
//! **Gradients.** [`backward`] walks a graph of its own and calls Candle's backward for Candle's operations in
//! between. It frees saved tensors as it goes, so a graph can be walked once. Candle's own fused operations have no
//! backward: they stop the gradient without an error.
//!
//! ```
//! use candle_core::{DType, Device, Result, Var};
//! use tealight_ops::{backward, cross_entropy::cross_entropy, linear::linear, norm::rms_norm};
//!
//! # fn main() -> Result<()> {
//! let x = candle_core::Tensor::new(&[[1_f32, -2., 3.], [0.5, 0., -1.]], &Device::Cpu)?;
//! let gain = Var::ones(3, DType::F32, &Device::Cpu)?;
//! let weight = Var::from_slice(&[0.1_f32, 0.2, 0.3, -0.1, 0., 0.1], (2, 3), &Device::Cpu)?;
//! let labels = candle_core::Tensor::new(&[0_i64, 1], &Device::Cpu)?;
//!
//! let logits = linear(&rms_norm(&x, &gain, 1e-6)?, &weight, None)?; // (2, 2)
//! let loss = cross_entropy(&logits, &labels, 0.)?; // the sum over both rows
//! let gradients = backward(&loss, [("gain", gain.as_tensor()), ("weight", weight.as_tensor())])?;
//! assert!(gradients.audit()?.is_empty());
//! # Ok(())
//! # }
//! ```

#![expect(
    clippy::inline_always,
    reason = "only inlined code is compiled for the instruction set found at run time"
)]

mod autograd;
mod backend;
mod ops;
mod optimizers;
pub mod rng;
#[doc(hidden)]
pub mod testing;

pub use autograd::gradients::{
    Gradients, backward, backward_observed, backward_scaled, backward_weighted,
};
pub use autograd::graph::reshape;
pub use autograd::{gradients, nan_trace, recompute};
pub use backend::buffer::unwritten_f32;
pub use backend::product_precision::{ProductPrecision, product_precision, with_product_precision};
pub use backend::simd::int8::int8_instructions;
pub use backend::simd::{bf16_instructions, check_instructions, instructions};
pub use backend::{allocator, cuda_graph, device, profile, reference_ops, threads};
pub use ops::reach::Reach;
pub use ops::tokens::Tokens;
pub use ops::{
    activation, aft, attention, block_sparse_attention, broadcast, convolution, cross_entropy,
    depthwise_convolution, dropout, embedding, entmax, gate, gated_delta_rule, int8_linear, linear,
    linear_attention, linear_cross_entropy, matmul, max_pool, mean, mlp, norm, nystrom, patches,
    residual, retention, rotary, short_convolution, softmax, softplus, stick_breaking,
    stochastic_depth, swap_axes, truncated_softmax, wkv,
};
pub use optimizers::{adafactor, adamw, half_precision, lamb, lion, muon, sgd};
