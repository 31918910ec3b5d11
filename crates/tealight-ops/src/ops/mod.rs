//! The operations, a folder for each:
//!
//! ```text
//! mod.rs         formula, public functions: checks, dispatch, what is saved for the backward
//! reference.rs   definition in plain differentiable tensor operations
//! cpu.rs         fused loops for f32 and f64
//! cuda.rs        kernel launches
//! ```

pub mod activation;
pub mod aft;
pub mod attention;
pub mod block_sparse_attention;
pub mod broadcast;
pub mod convolution;
pub mod cross_entropy;
pub mod depthwise_convolution;
pub mod dropout;
pub mod embedding;
pub mod entmax;
pub mod gate;
pub mod gated_delta_rule;
pub(crate) mod heads;
pub mod int8_linear;
pub mod linear;
pub mod linear_attention;
pub mod linear_cross_entropy;
pub mod matmul;
pub mod max_pool;
pub mod mean;
pub mod mlp;
pub mod norm;
pub mod nystrom;
pub(crate) mod outer_product;
pub(crate) mod padding_mask;
pub mod patches;
pub(crate) mod reach;
pub mod residual;
pub mod retention;
pub mod rotary;
pub mod short_convolution;
pub mod softmax;
pub mod softplus;
pub mod stick_breaking;
pub mod stochastic_depth;
pub mod swap_axes;
pub(crate) mod tokens;
pub mod truncated_softmax;
pub(crate) mod window;
pub mod wkv;
