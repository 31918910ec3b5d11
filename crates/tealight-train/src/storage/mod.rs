//! Crash-safe files with digests, tensors by name in the formats of safetensors and PyTorch, matrices in
//! NumPy's, the cache of Hugging Face, and the clock.

pub mod clock;
pub mod digests;
pub(crate) mod disk;
pub mod encoding;
pub mod files;
pub mod hub;
pub mod npy;
mod pickle;
mod stored;
pub mod tensor_file;
pub mod tensors;
mod torch_file;
