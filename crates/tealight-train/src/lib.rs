//! Trains transformers: data, tasks, optimizers, the training loop, and the files of a run.
//!
//! ```text
//! TOML ──► RunConfig ──► Task ──► Session (model, optimizer, progress) ──► fit ──► run directory
//! ```
//!
//! [`fit`] works with any task, a task works with any optimizer, and nothing in this crate depends on a
//! kind of attention. The crate prints nothing: it reports events to observers.
//!
//! The folders are layers. Each uses only those named before it in `ARCHITECTURE.md`.

mod checks;
pub mod communicator;
pub mod config;
pub mod data;
mod error;
pub mod export;
pub mod inference;
pub mod monitor;
pub mod observer;
pub mod optimizer;
pub mod pipelines;
pub mod run;
pub mod settings;
pub mod storage;
pub mod task;
pub mod trained;
pub mod training;

pub use config::RunConfig;
pub use data::{text, weather};
pub use error::{BadStepReport, CommunicationError, Error, Result, StepFault, StepQuantity};
pub use task::metrics::{Measures, Metrics};
pub use training::{Session, fit, fit_unless_stopped};
