//! Differentiable tensor operations for training with Candle, every one with a proven gradient.
//!
//! **The contract.** Each operation has a definition, `reference.rs`, in plain differentiable
//! tensor operations. On every device and in every dtype the public function has the same value and
//! the same gradient as that definition, up to rounding: `tests/agreement.rs` holds it to that, with
//! `tests/attention.rs` and `tests/scans.rs`, and `tests/finite_differences.rs` holds the gradients to
//! calculus. On the CPU, f32 and f64 run as fused loops, forward and backward; on CUDA, many operations
//! run as kernels, in f32, f64 and bf16. The definition itself runs everywhere else: in half precision
//! (in f32, rounded once), where the operands' dtypes differ, and where there is nothing to compute.
//!
//! **What is not one loop.** Products of large matrices: those of [`linear`], [`mlp`],
//! [`linear_cross_entropy`], [`matmul`](mod@matmul) and [`nystrom::pseudo_inverse()`] are this crate's
//! own, those of [`aft::aft_full`] and [`muon`] are Candle's. Those of linear maps and of
//! [`matmul`](mod@matmul) stay in half precision: that is what half precision is for. [`nystrom::attention`] and the mean of everything of [`aft::aft_simple`] are put
//! together from other operations of this crate.
//!
//! A result is bit-identical whatever the number of threads. Between processors the last bits of
//! matrix products differ, and with them those of [`attention`](mod@attention).
//!
//! [`backward`] walks back over a graph of its own, and over Candle's in between; it frees what it has
//! walked over, so that a graph is walked once.
//!
//! Why not Candle's own: its fused operations have no backward. They compile, run, and stop the
//! gradient silently.
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
    reason = "only what is inlined is compiled for the instruction set found at run time"
)]

mod autograd;
mod backend;
mod ops;
mod optimizers;
pub mod rng;
#[doc(hidden)]
pub mod testing;

pub use autograd::gradients::{Gradients, backward, backward_scaled, backward_weighted};
pub use autograd::graph::reshape;
pub use autograd::{gradients, nan_trace, recompute};
pub use backend::cuda::factor::with_tf32;
pub use backend::{allocator, cuda_graph, device, profile, reference_ops, threads};
pub use ops::{
    activation, aft, attention, broadcast, cross_entropy, depthwise_convolution, dropout,
    embedding, entmax, gate, linear, linear_attention, linear_cross_entropy, matmul, mean, mlp,
    norm, nystrom, residual, retention, rotary, softmax, swap_axes, truncated_softmax, wkv,
};
pub use optimizers::{adafactor, adamw, half_precision, lamb, lion, muon, sgd};
