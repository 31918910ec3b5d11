//! How operations run. On the CPU: threads, SIMD, matrix products, memory. On a GPU: kernels, copies, CUDA
//! graphs. And the choice between the two.

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
pub(crate) mod product_precision;
pub mod profile;
pub mod reference_ops;
pub(crate) mod scratch;
pub(crate) mod simd;
pub mod threads;
