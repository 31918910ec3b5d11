//! The training loop and what it works on.
//!
//! ```text
//! Session          task, model, optimizer, progress            session.rs
//! train_step       batch → forward → backward → norm → judgement → clip → update
//! fit              steps, logging, evaluation, checkpoints     fit.rs
//! ```

pub mod doctor;
mod fit;
mod forward_backward;
mod prefetch;
pub mod session;
mod throughput;

pub use fit::{StopCondition, fit};
pub use session::Session;
