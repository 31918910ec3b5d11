//! Checks during training: the gradient audit, bad steps, early stopping.

pub mod bad_step;
pub mod early_stopping;
pub mod gradient_audit;
