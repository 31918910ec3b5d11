//! Checks of a run while it trains: gradients, bad steps, early stopping.

pub mod bad_step;
pub mod early_stopping;
pub mod gradient_audit;
