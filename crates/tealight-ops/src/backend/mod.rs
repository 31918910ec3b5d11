//! How a loop or a kernel runs: threads, SIMD, matrix products and memory on the CPU; kernels, copies and
//! CUDA graphs on a GPU; and the choice between them.

pub mod allocator;
pub(crate) mod buffer;
pub(crate) mod choice;
pub(crate) mod cuda;
pub mod cuda_graph;
pub mod device;
pub(crate) mod element;
pub(crate) mod gemm;
pub(crate) mod matrix;
pub(crate) mod parallel;
pub mod profile;
pub mod reference_ops;
pub(crate) mod scratch;
pub(crate) mod simd;
pub mod threads;
