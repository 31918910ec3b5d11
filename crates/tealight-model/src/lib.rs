//! Transformer models: embeddings, positions, attention, blocks, heads.
//!
//! Plain structs ([`ModelConfig`]) describe a model; building it from a combination that is not
//! supported returns a [`BuildError`] that names the TOML keys. A transformer in 30 lines:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use tealight_model::embedding::{Input, InputSpec};
//! use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
//! use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = ModelConfig { d_model: 32, n_layers: 2, n_heads: 4, ..ModelConfig::default() };
//! let spec = ForecasterSpec {
//!     input: InputSpec::Tokens { vocab_size: 3, n_token_types: 0, pad_id: None },
//!     seq_len: 10,
//!     n_classes: 3,
//!     read_out: ReadOut::Mean,
//! };
//! let store = ParamStore::new(17, DType::F32, &Device::Cpu);
//! let model = Forecaster::build(&config, &spec, &store.trainable())?;
//!
//! // (batch, seq_len) → (batch, n_classes)
//! let days = Tensor::new(&[[0_u32, 1, 2, 2, 1, 0, 0, 1, 2, 0]], &Device::Cpu)?;
//! let labels = Tensor::new(&[2_u32], &Device::Cpu)?;
//! let logits = model.forward(&Input::tokens(&days), &Mask::none(), Mode::Eval)?;
//! assert_eq!(logits.dims(), [1, 3]);
//!
//! // Every parameter has a gradient.
//! let loss = tealight_ops::cross_entropy::cross_entropy(&logits, &labels, 0.)?;
//! let parameters: Vec<_> = store.iter().collect();
//! let named = parameters.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
//! let gradients = tealight_ops::backward(&loss, named)?;
//! assert!(gradients.iter().all(|(_, gradient)| gradient.is_some()));
//!
//! // The evaluation model shares the parameters and records no graph.
//! let evaluated = Forecaster::build(&config, &spec, &store.without_gradients())?;
//! assert!(!evaluated.forward(&Input::tokens(&days), &Mask::none(), Mode::Eval)?.track_op());
//! # Ok(())
//! # }
//! ```
//!
//! The crate reads no file. To load a folder of Hugging Face and fill a mask, see `examples/fill_mask.rs` of
//! tealight-train.

pub mod attention;
pub mod choice;
pub mod config;
mod error;
pub mod generation;
pub mod hf;
pub mod layers;
pub mod mask;
mod mode;
pub mod models;
pub mod onnx;
mod onnx_graph;
pub mod params;
pub mod patches;
pub mod position;
pub mod transformer;

pub use attention::{Attention, AttentionInput, AttentionSpec, LayerPlace, Memory, Outputs, Reads};
pub use choice::{Choice, Kind, describe, names};
pub use config::ModelConfig;
pub use error::{BuildError, BuildResult, ConfigFault};
pub use layers::linear::{Bias, Linear};
pub use layers::{classifier_head, dropout, feed_forward, linear, norm};
pub use mask::Mask;
pub use mode::{Activations, Mode};
pub use models::cost;
pub use models::record::SpecRecord;
pub use models::spec::ModelSpec;
pub use params::init::Initializer;
pub use params::{ParamStore, init, pattern};
pub use transformer::{block, embedding, leaks, stack};
