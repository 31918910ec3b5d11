//! What tasks share when they cut data into batches.

pub mod fingerprint;
mod order;

pub use order::ShuffledOrder;
