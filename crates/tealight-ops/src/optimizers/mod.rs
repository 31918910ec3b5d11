//! Optimizers, which update parameters in place, and half-precision copies of parameters.

pub mod adafactor;
pub mod adamw;
pub mod half_precision;
pub mod lamb;
pub mod lion;
pub mod muon;
pub mod sgd;
mod update;
