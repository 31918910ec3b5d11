//! How a transformer is trained: tasks, data, optimizers, the loop, and what is kept of a run.
//!
//! ```text
//! RunConfig ──► Task ──► Session (model, twin, optimizer) ──► fit ──► run directory
//! ```
//!
//! [`fit`](fit::fit) names no task, a task names no optimizer, and this crate names no attention.
//! It prints nothing: observers are told, and the binary draws.

pub mod audit;
mod clock;
pub mod config;
pub mod continuation;
pub mod data;
pub mod doctor;
pub mod early_stopping;
pub mod ema;
mod error;
pub mod evaluate;
mod feed;
pub mod fill_mask;
pub mod fine_tuning;
mod fit;
pub mod guard;
mod limits;
mod metrics;
pub mod observer;
pub mod optimizer;
mod passes;
pub mod pretrained;
pub mod run;
pub mod schedule;
pub mod session;
pub mod task;
pub mod text;
pub mod translation;
pub mod weather;

pub use config::RunConfig;
pub use error::{Error, Result};
pub use fit::{Until, fit};
pub use metrics::{Measures, Metrics};
pub use session::Session;
