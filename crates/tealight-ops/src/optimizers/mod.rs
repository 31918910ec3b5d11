//! Optimizer updates, in place, and the half-precision copies of parameters.

pub mod adafactor;
pub mod adamw;
pub mod half_precision;
pub mod lamb;
pub mod lion;
pub mod muon;
pub mod sgd;
