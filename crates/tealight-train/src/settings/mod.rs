//! Settings from TOML: `--set` overrides, defaults from another model, and errors that show the line.
//!
//! ```text
//! text ─► toml ─► --set overrides ─► tree ─► any struct (unknown keys refused)
//! ```

mod base;
mod de;
mod error;
mod fault;
mod overrides;
mod render;
mod report;
mod source;
pub(crate) mod suggest;
mod tree;

pub use error::ConfigError;
pub use overrides::DroppedKey;
pub use source::{ConfigSource, to_resolved_toml};
pub(crate) use tealight_model::settings;
