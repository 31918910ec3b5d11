//! The training loop and the session that it trains.
//!
//! ```text
//! Session       task, model, optimizer, progress                                session.rs
//! train_step    batch → forward → backward → norm → judgement → clip → update   train_step.rs
//! fit           steps, logging, evaluation, checkpoints                         fit.rs
//! ```

mod bad_step_diagnosis;
pub mod distributed;
mod evaluation;
mod fit;
mod forward;
mod forward_backward;
mod graph;
pub mod imitation;
mod joint_loss;
mod memory;
mod outputs;
mod pairwise_sum;
mod pass;
mod prefetch;
pub mod preflight;
pub mod session;
mod shards;
mod teacher;
mod throughput;
mod train_step;

pub use fit::{fit, fit_unless_stopped};
pub use session::Session;
